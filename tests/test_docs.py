"""The documentation holds: recipes work, links resolve, pages name everything that exists.

MkDocs is not needed: `mkdocs build --strict` is a step of CI. `docs/record.py` records all outputs.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from typer.testing import CliRunner

import ascl_sweep
from ascl.config import RunConfig
from ascl.methods import method_label, method_names, method_paper
from ascl_sweep.analysis.comparison import Design
from ascl_sweep.analysis.inference import ALPHA, smallest_effect, spend_alpha
from ascl_sweep.cli.main import PANELS, app
from ascl_sweep.spec.schema import config_keys
from ascl_sweep.spec.sweep import SweepSpec, UntilDecided
from tests.paths import ROOT

DOCS = ROOT / "docs"
CONTRIBUTING = (DOCS / "contributing.md").read_text()
TUTORIAL = DOCS / "tutorial.md"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
BLOCK = re.compile(r"^<!-- (file|diff): (\S+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def load_script(name: str) -> ModuleType:
    """Load a script of docs/, which is in no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RECORD = load_script("record")


@cache
def generated_pages() -> dict[str, str]:
    pages: dict[str, str] = load_script("reference").pages()
    return pages


# ---------------------------------------------------------------- recipes


def apply_diff(text: str, diff: str) -> str:
    """Change a text as a diff says, whose lines start with a space, a minus or a plus."""
    lines = diff.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] in " -")
    new = "".join(line[1:] for line in lines if line[0] in " +")
    assert text.count(old) == 1, f"the page shows lines that the file does not have once:\n{old}"
    return text.replace(old, new)


@pytest.fixture(scope="module")
def used_recipes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Put every recipe into one copy of the packages, and use them there."""
    tree = tmp_path_factory.mktemp("tree")
    for package in ("ascl", "ascl_sweep"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tree / package, ignore=ignored)
    (tree / "search_spaces").mkdir()
    for kind, path, content in BLOCK.findall(CONTRIBUTING):
        file = tree / path
        if kind == "file":
            assert not file.exists(), f"{path} exists already"
            file.write_text(content)
        else:
            file.write_text(apply_diff(file.read_text(), content))
    words = [sys.executable, "-P", ROOT / "tests" / "recipes.py", tree]
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return results


def recipe_titles() -> list[str]:
    """The sections of the page that have a recipe."""
    sections = re.split(r"^## (.+)$", CONTRIBUTING, flags=re.MULTILINE)[1:]
    return [
        title
        for title, text in zip(sections[::2], sections[1::2], strict=True)
        if BLOCK.search(text)
    ]


@pytest.mark.parametrize("title", recipe_titles())
@pytest.mark.slow
def test_recipe_works(used_recipes: dict[str, str], title: str) -> None:
    assert used_recipes[title] == ""


@pytest.mark.slow
def test_every_extension_point_has_a_recipe(used_recipes: dict[str, str]) -> None:
    assert sorted(recipe_titles()) == sorted(used_recipes)
    text = (DOCS / "architecture.md").read_text()
    table = text.split("## One file per extension")[1].split("\n\n")[1]
    named = {line.split("|")[1].strip().capitalize() for line in table.splitlines()[2:]}
    assert named <= set(recipe_titles())


def test_python_recipes_are_formatted_and_linted(tmp_path: Path) -> None:
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("ruff is not installed (extra `dev`)")
    for i, (kind, path, content) in enumerate(BLOCK.findall(CONTRIBUTING)):
        if kind == "file" and path.endswith(".py"):
            (tmp_path / f"recipe_{i}.py").write_text(content)
    config = ["--config", str(ROOT / "pyproject.toml")]
    for words in (["check", "--no-cache", *config], ["format", "--check", "--no-cache", *config]):
        done = subprocess.run([ruff, *words, tmp_path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


# ---------------------------------------------------------------- links

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|<img[^>]+src=\"([^\"]+)\"")


def links(page: Path) -> Iterator[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\$`[^`]*`\$", "", text)
    for found in LINK.finditer(text):
        target = found[1] or found[2]
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(text: str) -> set[str]:
    """The anchors of a page, as MkDocs and GitHub make them."""
    found = set()
    for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        found.add(re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for link in links(page):
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in anchors(path.read_text()), f"{page.name} links to {link}"


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text().split("\nnav:")[1]
    named = set(re.findall(r"[\w/-]+\.md", text))
    here = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert named == here


@pytest.mark.parametrize("page", ["reference/sweep-file.md", "reference/cli.md"])
def test_generated_pages_are_current(page: str) -> None:
    """If this fails, run `python docs/reference.py`."""
    assert (DOCS / page).read_text() == generated_pages()[page]


def test_the_site_loads_nothing_from_other_servers() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in config and "extra_javascript" not in config
    assert "url(" not in (DOCS / "site.css").read_text()
    for picture in DOCS.rglob("*.svg"):
        assert not re.search(r"(url\(|href=)[\"']?http", picture.read_text()), picture


# Pages that the paper's numbers are written into; the reports have a checksum.
OTHERS = {*(DOCS / "paper").glob("*.md"), DOCS / "statistics.md"}


@pytest.mark.parametrize(
    "page",
    sorted({*PAGES, ROOT / "CHANGELOG.md"} - OTHERS),
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_prose_is_wrapped(page: Path) -> None:
    """Tables, code, formulas and pictures may be wider."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "!["))]
    assert [line for line in lines if len(line) > RECORD.WIDTH] == []


def test_the_readme_is_short_and_shows_the_example_as_it_is() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 200
    shown = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    file = ROOT / "examples" / "sweeps" / "moco_vs_ascl.yaml"
    assert shown and yaml.safe_load(shown[1]) == yaml.safe_load(file.read_text())


# ---------------------------------------------------------------- pages name everything


def test_every_command_is_in_the_reference() -> None:
    page = generated_pages()["reference/cli.md"]
    for panel, functions in PANELS.items():
        assert f"\n## {panel}\n" in page
        for function in functions:
            assert f"\n### {function.__name__}\n" in page
    assert "\n### replay\n" not in page  # an old name
    for words in ("`--concurrency`", "`failed`, `diverged`", "| `130` |"):
        assert words in page


def test_every_key_is_in_the_reference() -> None:
    page = generated_pages()["reference/sweep-file.md"]
    for key in [*SweepSpec.model_fields, *config_keys(), "finalists", "uniform", "audit"]:
        assert f"| `{key}` |" in page, key
    for place in ("space.optuna.domains.KEY", "stop.asha", "resources.cases"):
        assert f"\n## `{place}`\n" in page


METHOD_ROW = re.compile(
    r"^\| \[`(\w+)`\]\(#\w+\) \| ([^|;]+)[^|]*\| ([^|]+) \| [^|]+ \| (\d) \| (yes|no) \|",
    re.MULTILINE,
)


def test_every_method_is_described_as_the_code_has_it() -> None:
    page = (DOCS / "methods.md").read_text()
    rows = {row[0]: row[1:] for row in METHOD_ROW.findall(page)}
    assert rows.keys() == set(method_names())
    for name, (label, paper, backprops, ema) in rows.items():
        cost = RunConfig.of({"method": {"name": name}}).method.cost()
        assert (int(backprops), ema == "yes") == (cost.backprops, cost.ema), name
        assert label.strip() == method_label(name)
        assert (method_paper(name) or "–") in paper
        section = page.split(f"\n## {method_label(name)}\n")[1].split("\n## ")[0]
        assert name == "supervised" or "```math" in section, name


def test_the_table_of_detectable_differences_is_right() -> None:
    page = (DOCS / "reports.md").read_text()
    section = page.split("\n## What the seeds can show\n")[1].split("\n## ")[0]
    head, _, *rows = [line for line in section.splitlines() if line.startswith("|")]
    families = [int(count) for count in re.findall(r"(\d+) comparisons?", head)]
    assert families == [1, 4, 12, 24] and len(rows) == 6
    for row in rows:
        seeds, *effects = re.findall(r"[\d.]+", row)
        for family, effect in zip(families, effects, strict=True):
            found = smallest_effect((int(seeds),), family)
            assert found is not None and f"{found:.1f}" == effect


def test_the_levels_of_planned_looks_are_right() -> None:
    page = (DOCS / "reports.md").read_text()
    section = page.split("\n## Adding seeds\n")[1].split("\n## ")[0]
    head, _, row = [line for line in section.splitlines() if line.startswith("|")]
    looks = tuple(int(count) for count in re.findall(r"(\d+) seeds", head))
    *levels, total = re.findall(r"[\d.]+", row)
    assert looks == UntilDecided(until="decided", at_most=looks[-1]).all_looks
    assert [f"{level:.4f}" for level in spend_alpha(looks)] == levels and float(total) == ALPHA


# ---------------------------------------------------------------- the tutorial


def tutorial_sweep(folder: Path) -> Path:
    """Write the tutorial's sweep file."""
    ((name, content),) = RECORD.FILE.findall(TUTORIAL.read_text())
    (folder / name).write_text(content)
    return folder / name


def test_the_sweep_of_the_tutorial_is_valid_and_as_large_as_the_page_says(tmp_path: Path) -> None:
    path = tutorial_sweep(tmp_path)
    sweep = ascl_sweep.load_sweep(path)
    assert sweep.axes == ("method.num_neighbours", "augment.strength")
    plan = ascl_sweep.plan([sweep], tmp_path / "results")
    text = TUTORIAL.read_text()
    assert f"{len(plan.runs)} runs" in text and f"{plan.epochs} epochs" in text
    # The output on the page is that of this file: it has the ids of these runs and of more seeds.
    outputs = "".join(found[5] for found in RECORD.OUTPUT.finditer(text))
    shown = set(re.findall(r"\b[0-9a-f]{12}\b", outputs))
    more = ascl_sweep.load_sweep(path, overrides=["seeds=[0,1,2,3,4,5]"])
    planned = ascl_sweep.plan([more], tmp_path / "results").runs
    assert shown and shown <= {run.run_id for run in planned}


DETECTABLE = re.compile(r"smallest detectable difference ([\d.]+) SD")


def test_the_tutorial_shows_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, run `docs/record.py`."""
    path = tutorial_sweep(tmp_path)
    typo = path.read_text().replace("num_neighbours: [0", "num_neighbors: [0")
    (tmp_path / "typo.yaml").write_text(typo)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    recorded = {
        command: text for *_, command, text, _ in RECORD.OUTPUT.findall(TUTORIAL.read_text())
    }
    for command, text in recorded.items():
        words = command.rpartition("ascl-sweep ")[2].split()
        if words[0] in ("validate", "plan") and "--set" not in words:
            shown = CliRunner().invoke(app, words).output.splitlines()
            for line in set(text.splitlines()) - {"…"}:
                assert line in [each.rstrip() for each in shown], command
    plan, log = (recorded[f"ascl-sweep {words}"] for words in ("plan neighbors.yaml", RUN))
    assert log.splitlines()[: RECORD.PLAN_LINES] == plan.splitlines()[-RECORD.PLAN_LINES :]
    (more,) = (text for command, text in recorded.items() if "--set" in command)
    added = smallest_effect((6,), 4, Design(extensions=1).alpha)
    assert DETECTABLE.findall(more) == [f"{added:.1f}"]
    assert f"would be {smallest_effect((6,), 4):.1f} SD" in TUTORIAL.read_text()


RUN = "run neighbors.yaml --executor local"


@pytest.mark.parametrize("path", sorted((ROOT / "search_spaces").glob("*.yaml")))
def test_a_sweep_file_states_the_difference_that_its_seeds_detect(path: Path) -> None:
    stated = re.findall(r"([\d.]+) SD\b", path.read_text())
    if stated:
        (planned,) = ascl_sweep.plan([ascl_sweep.load_sweep(path)], "nowhere").sweeps
        assert stated == [f"{planned.smallest_effect:.1f}"]


def test_the_quickstart_file_states_the_numbers_of_its_page() -> None:
    files = (ROOT / "search_spaces" / "quickstart.yaml", DOCS / "quickstart.md")
    stated, shown = (re.findall(r"[\d.]+ ± [\d.]+", file.read_text()) for file in files)
    assert sorted(stated) == sorted(shown) and len(stated) == 4


def test_the_tutorial_shows_the_output_of_every_command() -> None:
    text = TUTORIAL.read_text()
    commands = {
        found[4].split()[1] for found in RECORD.OUTPUT.finditer(text) if "ascl-sweep" in found[4]
    }
    assert {"validate", "plan", "run", "report", "status"} <= commands
    assert all(found[5].strip() for found in RECORD.OUTPUT.finditer(text))
