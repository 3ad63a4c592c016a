"""Record every output that README and documentation show, from real runs.

    .venv/bin/pip install -e '.[test]' && .venv/bin/python docs/record.py FOLDER

Runs the quickstart, the tutorial's sweep and the README's example (20 minutes on two cores), and
writes their tables, logs and pictures into the pages. FOLDER keeps the stores, the log of the
tutorial's `run` and the picture of the progress display, so a repetition trains nothing. Needs
Debian's chromium for the picture of the report page.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

import ascl_sweep
from ascl.metrics import EpochMetrics
from ascl_sweep.contracts import RunRow
from ascl_sweep.runtime.callbacks.console import ConsoleCallback

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PICTURES = DOCS / "pictures"
README, TUTORIAL = ROOT / "README.md", DOCS / "tutorial.md"
WIDTH = 120  # of the prose in Markdown files
PLAN_LINES = 3  # with which the log of a sweep begins
FINISHED_RUNS = 10  # the picture shows the progress display once so many runs have ended

FILE = re.compile(r"^<!-- file: (\S+) -->\n```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(
    r"(^<!-- output(?: (\d+)\+(\d+))?: (.+?) -->\n```text\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL
)
"""A command and its output, or only the first and the last lines of it."""


_pages: dict[Path, str] = {}
"""New text of pages. Written last, so that a clean commit stays clean while it trains."""


def main(folder: Path) -> None:
    for name in ("quickstart", "tutorial", "readme"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    record_readme(folder / "readme")
    record_tutorial(folder / "tutorial")
    record_quickstart(folder / "quickstart")
    for page, text in _pages.items():
        page.write_text(text)


def ascl(*words: str, cwd: Path) -> str:
    """Run a command and return its standard output."""
    command = [sys.executable, "-m", "ascl_sweep", *words]
    print(" ".join(["ascl-sweep", *words]), flush=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout


def put(page: Path, name: str, content: str) -> None:
    """Replace the recorded block of a page."""
    before, opening, rest = page.read_text().partition(f"<!-- recorded: {name} -->\n")
    _, closing, after = rest.partition("<!-- end -->\n")
    assert opening and closing, f"{page} has no block `<!-- recorded: {name} -->`"
    _pages[page] = f"{before}{opening}\n{content.strip()}\n\n{closing}{after}"


# ---------------------------------------------------------------- parts of a report in Markdown


def wrap(markdown: str) -> str:
    """Wrap paragraphs, list items and footnotes."""
    return "\n".join(
        line
        if line.startswith(("|", "#", "<!--", "!["))
        else textwrap.fill(
            *(line, WIDTH),
            subsequent_indent="  " if line.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in markdown.splitlines()
    )


def quote(paragraph: str) -> str:
    return textwrap.indent(textwrap.fill(paragraph, WIDTH - 2, break_on_hyphens=False), "> ")


def columns(table: str, titles: Sequence[str]) -> str:
    """Return some columns of a table, without the marks of footnotes."""
    text = re.sub(r"<sup>.*?</sup>", "", table)
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()]
    places = [rows[0].index(title) for title in titles]
    return "\n".join(f"| {' | '.join(row[place] for place in places)} |" for row in rows)


# ---------------------------------------------------------------- README, tutorial, quickstart


def record_readme(folder: Path) -> None:
    """Record the report of the README's example."""
    sweep = ROOT / "examples" / "sweeps" / "moco_vs_ascl.yaml"
    ascl("run", str(sweep), "--yes", "--executor", "local", cwd=folder)
    blocks = ascl("report", "moco_vs_ascl", "--format", "md", cwd=folder).split("\n\n")
    put(README, "report", f"{quote(blocks[2])}\n\n{blocks[4]}")


def record_tutorial(folder: Path) -> None:
    """Run the commands of the tutorial in order, and record their output."""
    ((name, content),) = FILE.findall(TUTORIAL.read_text())
    script = Path(sys.executable).with_name("ascl-sweep")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1"}
    log = folder / "run.log"
    outputs: dict[str, list[str]] = {}
    (folder / name).write_text(content)

    def recorded(found: re.Match[str]) -> str:
        opening, first, last, command, _, closing = found.groups()
        nonlocal place
        if command.startswith("ascl-sweep run"):
            place = folder  # commands before `run` show an empty store
            if not log.exists():
                log.write_text(output_of(command))
            # Only the plan at the beginning of the log can have changed since.
            plan = outputs[f"ascl-sweep plan {name}"][-PLAN_LINES:]
            lines = [*plan, *log.read_text().splitlines()[PLAN_LINES:]]
        else:
            lines = output_of(command).splitlines()
        outputs[command] = lines
        if first:
            lines = [*lines[: int(first)], "…", *lines[len(lines) - int(last) :]]
        return opening + "\n".join(lines) + "\n" + closing

    def output_of(command: str) -> str:
        print(command, flush=True)
        words = ["bash", "-c", command.replace("ascl-sweep", str(script))]
        done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True)
        lines = (done.stdout + done.stderr).strip().splitlines()
        return "\n".join(line.rstrip() for line in lines)

    with tempfile.TemporaryDirectory() as empty:
        place = Path(empty)
        (place / name).write_text(content)
        _pages[TUTORIAL] = OUTPUT.sub(recorded, TUTORIAL.read_text())


def record_quickstart(folder: Path) -> None:
    """Record the report, the numbers and the pictures of the quickstart."""
    os.chdir(folder)  # the report shows the path of its store as it is given
    Path("search_spaces").mkdir(exist_ok=True)
    sweep = shutil.copy(ROOT / "search_spaces" / "quickstart.yaml", "search_spaces")
    camera = Camera(folder / "progress.svg")
    ascl_sweep.run([ascl_sweep.load_sweep(sweep)], "results", callbacks=[camera])
    camera.close()
    text = ascl("report", "quickstart", "--format", "md", "--figures", "figures", cwd=folder)
    body, pictures = text.split("\n\n## Figures\n\n")
    picture, caption = next(
        (picture, caption)
        for picture, caption in zip(*[iter(pictures.strip().split("\n\n"))] * 2, strict=True)
        if "quickstart-forest.svg" in picture
    )
    body = body.partition("\n\n")[2]
    picture = re.sub(r"\(<\S+>\)$", "(example-report-forest.svg)", picture)
    shown = f"{body}\n\n## Figures\n\n{picture}\n\n{caption}"
    put(DOCS / "example-report.md", "report", wrap(shown))
    shutil.copy("figures/quickstart-forest.svg", DOCS / "example-report-forest.svg")
    shutil.copy("figures/quickstart-curves.svg", DOCS / "quickstart-curves.svg")

    blocks = body.split("\n\n")
    (table,) = [block for block in blocks if block.startswith("| arm | seeds")]
    software = re.search(r"Software and hardware: (.*?)</sub>", body, re.DOTALL)
    assert software
    titles = ("arm", "mean ± SD", "Δ", "interval", "wins", "p", "verdict")
    parts = [quote(blocks[1]), columns(table, titles), f"Recorded with {software[1]}"]
    put(DOCS / "quickstart.md", "report", "\n\n".join(parts))

    shutil.copy("progress.svg", PICTURES / "progress.svg")
    ascl("report", "quickstart", "--out", "report.html", cwd=folder)
    photograph_page(folder / "report.html", PICTURES / "report.png")


# ---------------------------------------------------------------- pictures


class Camera(ConsoleCallback):
    """The progress display; saves one picture of it in the middle of the sweep."""

    def __init__(self, file: Path) -> None:
        self.file, self.ended = file, 0
        super().__init__(Console(file=io.StringIO(), force_terminal=True, width=110, height=14))

    def on_run_end(self, row: RunRow, log_tail: Sequence[str]) -> None:
        super().on_run_end(row, log_tail)
        self.ended += 1

    def on_epoch(self, row: RunRow, metrics: EpochMetrics, curve: Sequence[float]) -> None:
        super().on_epoch(row, metrics, curve)
        if self.ended >= FINISHED_RUNS and len(curve) >= 3 and not self.file.exists():
            console = Console(record=True, width=110, file=io.StringIO(), force_terminal=True)
            console.print("$ ascl-sweep run search_spaces/quickstart.yaml")
            console.print(self.picture())
            svg = console.export_svg(title="ascl-sweep run")
            # Rich's SVG loads its font from another server.
            self.file.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


def photograph_page(page_file: Path, picture: Path) -> None:
    """Save the top of a report page, as a browser shows it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1100, "height": 820})
        page.goto(page_file.as_uri())
        page.wait_for_timeout(2000)  # figures are drawn by a script
        page.screenshot(path=str(picture))
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
