"""Text in LaTeX: escaping, symbols in math mode, comments."""

import re
import unicodedata
from collections.abc import Sequence

from ascl_sweep.text import printable

_SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "-": "-{}",  # before another hyphen, which would make it a dash
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    '"': "''",
    "“": "``",
    "”": "''",
    "’": "'",
    "…": r"\dots{}",
    "–": "--",
    "—": "---",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "≈": r"$\approx$",
    "→": r"$\to$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "τ'": r"$\tau'$",
    "α": r"$\alpha$",
    "τ": r"$\tau$",
    "Δ": r"$\Delta$",
    "σ": r"$\sigma$",
    "√": r"$\surd$",
    "²": "$^2$",
}
_ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0308": '"',
    "\u030a": "r",
    "\u030c": "v",
    "\u0327": "c",
}
_LONGEST_FIRST = sorted(_SIGNS.keys() - {"-"}, key=len, reverse=True)
_SPECIAL = re.compile("|".join(["-(?=-)", *map(re.escape, _LONGEST_FIRST), "[^ -~]"]))
# A symbol with its value, such as K = 1 or τ' = 0.05.
_EQUATION = re.compile(
    r"(?<![\w'])(?P<symbol>[A-Za-zατσ]'?) = (?P<value>[-−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?!\w|\.\w)"
)
_SCIENTIFIC = re.compile(r"([-\d.]+)e(?:(-)|\+?)0*(\d+)")


def row_line(cells: Sequence[str]) -> str:
    # LaTeX reads `[` or `*` after the previous line's `\\` as an argument.
    text = re.sub(r"^[*\[]", r"{\g<0>}", " & ".join(cells))
    return rf"{text} \\"


def comment(text: str) -> str:
    """Return a comment of one line, whatever a name in the store is."""
    return f"% {printable(' '.join(text.split()))}"


def in_math(number: str) -> str:
    """Write a number such as 1.2e−5 for math mode."""
    plain = number.replace("−", "-")
    return _SCIENTIFIC.sub(
        lambda found: rf"{found[1]} \times 10^{{{found[2] or ''}{found[3]}}}", plain
    )


def escape(text: str) -> str:
    """Escape text for LaTeX; a symbol with its value is set in math mode."""
    parts, end = [], 0
    for found in _EQUATION.finditer(text):
        symbol = escape_signs(found["symbol"]).strip("$")
        value = in_math(found["value"])
        parts += [escape_signs(text[end : found.start()]), f"${symbol}={value}$"]
        end = found.end()
    return "".join(parts) + escape_signs(text[end:])


def prose(text: str) -> str:
    """Escape a sentence; n and p are set in math mode."""
    return re.sub(r"(?<![\w$\\{'])([np])(?![\w}$'])", r"$\1$", escape(text))


def escape_signs(text: str) -> str:
    """Escape each character."""
    text = _SPECIAL.sub(lambda found: _sign(found[0]), text)
    return text.replace(" = ", "~=~")  # a key and its value stay on one line


def _sign(sign: str) -> str:
    if sign in _SIGNS:
        return _SIGNS[sign]
    if sign.isspace():
        return " "
    letters = unicodedata.normalize("NFKD", sign)
    plain, accents = letters[0], letters[1:]
    name = unicodedata.name(sign, f"U+{ord(sign):04X}").lower()
    if not (plain.isascii() and plain.isalnum()):
        return rf"\texttt{{{name}}}"
    accent = _ACCENTS.get(accents)
    return rf"\{accent}{{{plain}}}" if accent else plain
