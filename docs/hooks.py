"""Hooks of MkDocs: formulas as MathML, links to source files."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

FORMULA = re.compile(r"^```math\n(.*?)^```$|\$`([^`\n]+)`\$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def to_mathml(latex: str, block: bool) -> str:
    from latex2mathml.converter import convert

    mathml = convert(latex.strip(), display="block" if block else "inline")
    return f'<div class="formula">{mathml}</div>' if block else mathml


def link_sources(markdown: str, folder: Path, repo_url: str | None) -> str:
    """Point links to files outside docs/ to the repository's page, or drop them without one."""

    def replaced(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        path = (folder / target).resolve()
        inside = path.is_relative_to(ROOT / "docs") or not path.is_relative_to(ROOT)
        if inside or not path.exists():
            return found[0]
        return f"[{text}]({repo_url}/blob/main/{path.relative_to(ROOT)})" if repo_url else text

    return LINK.sub(replaced, markdown)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Take formulas out of the text, so that Markdown leaves them alone."""
    formulas: list[str] = []

    def stash(found: re.Match[str]) -> str:
        block = found[1] is not None
        formulas.append(to_mathml(found[1] if block else found[2], block))
        return f"FORMULA{len(formulas) - 1}END"

    page.meta["formulas"] = formulas
    folder = (ROOT / "docs" / page.file.src_uri).parent
    return link_sources(FORMULA.sub(stash, markdown), folder, config.repo_url)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Put the formulas back."""
    formulas = page.meta.pop("formulas", [])
    html = re.sub(r"<p>(FORMULA\d+END)</p>", r"\1", html)
    return re.sub(r"FORMULA(\d+)END", lambda found: formulas[int(found[1])], html)
