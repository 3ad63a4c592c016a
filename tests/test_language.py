"""Text that people read avoids the words that readers stumbled over.

`python -m tests.test_language [PATH…]` lists every hit with its line.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT

# Pattern, and the plain word to use instead.
DIALECT = {
    r"mend(s|ed|ing)?": "fix",
    r"(is|are|was|were|be|been|stays?|goes|go|went|gone|look|looks) away": "unreachable, lost",
    r"far (store|disk|one|away)": "remote",
    r"(go|goes|going|went|gone) on\b(?! (the|a|an|GPUs?|CPUs?|to)\b)": "resume, continue",
    r"(come|comes|came|coming) to (?!an? (end|stop))": "result, reach",
    r"(come|comes|came) (of|in)\b": "result, arrive",
    r"(get|gets|got|getting) on\b(?! (the|a|an)\b)": "make progress",
    r"(let|lets|letting) (in|through)": "authenticate, admit",
    r"(left|leave|leaves|leaving) out": "exclude, omit",
    r"(put|puts|putting) (off|back)": "defer, requeue",
    r"(hang|hangs|hung) on\b": "depend on",
    r"for want of": "because there is no",
    r"in vain": "to no effect",
    r"way out": "fix",
    r"called again": "repeat the command",
    r"(is|are|was|were|be|been) (told|said)\b": "reported, logged",
    r"what (it|they|he|one) (says?|said|tells?|told)": "output",
    r"(is|are|was|were|be) asked\b": "requested",
    r"no room|room for|makes? room": "capacity, space",
    r"bears? (it|them|this) out": "support",
    r"one's own|of our own|ours to": "your own, own",
    r"nobody": "no process, no user",
    r"who(ever)? (has|wants|needs|waits|asks|does|can)": "name the subject",
    r"forgiven|forgives?": "readmit",
    r"(is|are) (there|not there)[,;.:]": "exist, be present",
    r"at a stretch|thereby|hitherto|lest": "plain words",
}
PATTERN = re.compile(rf"\b(?:{'|'.join(f'(?:{pattern})' for pattern in DIALECT)})", re.IGNORECASE)

# Real uses of these words, as they stand in the text.
ALLOWED: tuple[str, ...] = ()

SOURCES = ("ascl/**/*.py", "ascl_sweep/**/*.py", "benchmarks/*.py", "examples/*.py", "docs/*.py")
TEXTS = (
    *("*.md", "docs/**/*.md", "cluster.yaml", "clusters/*", "search_spaces/*.yaml"),
    *("examples/**/*.yaml", "ascl_sweep/**/*.js", "ascl_sweep/**/*.html", ".ci/run"),
    *("ascl_sweep/reproduction/*.yaml", "mkdocs.yml", "search_spaces/sweep.schema.json"),
)


def python_text(source: str) -> Iterator[tuple[int, str]]:
    """Comments and string constants, docstrings included, by line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, line


def find_dialect(path: Path) -> list[tuple[int, str]]:
    """Lines of a file with words of the list, less the real uses."""
    source = path.read_text("utf-8")
    lines = python_text(source) if path.suffix == ".py" else enumerate(source.splitlines(), 1)
    hits = []
    for number, line in lines:
        for use in ALLOWED:
            line = line.replace(use, "")
        if PATTERN.search(line):
            hits.append((number, line.strip()))
    return sorted(set(hits))


# Reports carry a checksum of what the tool wrote: they are regenerated, never edited.
GENERATED = {ROOT / "docs/paper/laptop.md", ROOT / "docs/paper/cifar10.md"}


def files(*patterns: str) -> list[Path]:
    found = {path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}
    return sorted(found - GENERATED)


@pytest.mark.parametrize(
    "path", files(*SOURCES, *TEXTS), ids=lambda path: str(path.relative_to(ROOT))
)
def test_text_uses_plain_words(path: Path) -> None:
    assert find_dialect(path) == []


def test_the_word_list_finds_known_dialect() -> None:
    for line in (
        "Run what the sweeps want and the store lacks; called again, it goes on.",
        "runs keep failing on node 1a2b…: it is left out from now on",
        "a store that is away is asked again",
        "Nobody waits in vain.",
    ):
        assert PATTERN.search(line)
    for line in ("Run on a GPU", "the loss comes from the bank", "it resumes on the node"):
        assert not PATTERN.search(line)


if __name__ == "__main__":
    named = [path for arg in sys.argv[1:] for path in [Path(arg), *Path(arg).rglob("*")]]
    for path in [p for p in named if p.is_file()] or files(*SOURCES, *TEXTS):
        if path.suffix in (".py", ".md", ".yaml", ".sh", ".js", ".html", ".css", ""):
            for number, line in find_dialect(path.resolve()):
                print(f"{path}:{number}: {line}")
