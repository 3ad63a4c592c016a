"""Text formatting for messages: percentages, durations, errors, plurals, text of others."""

import re

# Escape sequences of terminals, complete or cut off, then single control characters: all but tab
# and newline, and those that change the direction of the text.
_UNPRINTABLE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[]P^_X]|[\x90\x98\x9d-\x9f])(?:[^\x07\x1b\x9c\n]*(?:\x07|\x9c|\x1b\\))?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
    """Remove control characters and escape sequences, which could change a terminal's content.

    Logs, errors of runs and the rows of a store may come from another user.
    """
    return _UNPRINTABLE.sub("", text)


def percent(share: float | None, digits: int = 1) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f}%"


def duration(seconds: float | None) -> str:
    """Format a duration in its two largest units."""
    if seconds is None:
        return "–"
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def one_line(error: BaseException, *, last: bool = False) -> str:
    """Return the first (or last) line of an error's message; its class name if it has none."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return lines[-1 if last else 0].strip()


def plural(number: int, noun: str) -> str:
    """Format a count with its noun: 1 run, 2 runs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
