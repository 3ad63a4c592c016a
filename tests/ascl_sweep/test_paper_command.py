"""`ascl-sweep paper`: every table and figure of the paper, and one report on them."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ascl_sweep.claims import SWEEPS as CLAIMED
from ascl_sweep.cli import app
from ascl_sweep.cli.paper import SWEEPS
from ascl_sweep.ledger import Ledger
from ascl_sweep.paper import TABLES
from tests.sweeps import ascl_sweep

SPACES = Path(__file__).parents[2] / "search_spaces"
Ask = Callable[..., Result]
# As small as every method lets a run be: clusters and banks have to fit.
SMOKE = (
    *("seeds=[0]", "epochs=1", "data.train_size=640", "encoder.width=4", "eval.probe_epochs=1"),
    "encoder.projector_hidden=16",
)


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: CliRunner().invoke(app, ["paper", *map(str, words)])


def test_every_table_claim_and_file_of_the_paper_is_among_its_sweeps() -> None:
    assert set(TABLES) <= set(SWEEPS)
    assert set(SWEEPS) >= CLAIMED
    ours = {"quickstart", "compare_methods"}  # of the tool, and of all methods at once
    assert {path.stem for path in SPACES.glob("*.yaml")} - ours == set(SWEEPS)


@pytest.mark.parametrize("scale", ["paper", "laptop"])
def test_the_plan_trains_once_what_sweeps_share(ask: Ask, scale: str) -> None:
    said = ask("--spaces", SPACES, "--scale", scale, "--dry-run")
    assert said.exit_code == 0, said.stderr
    for name in SWEEPS:
        assert f"\n{name}" in f"\n{said.stderr}"
    shared = re.search(r"(\d+) are shared between sweeps", said.stderr)
    assert shared and int(shared[1]) > 50


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--scale", "full"], "--scale must be paper or laptop, got 'full'"),
        (["tau"], "no sweep of the paper named 'tau'"),
        (["--spaces", "nowhere"], "call it in a clone of the project"),
    ],
)
def test_bad_input_gets_a_sentence(ask: Ask, words: list[str], part: str) -> None:
    said = ask("--dry-run", *words)
    assert said.exit_code == 2 and part in said.stderr and "Traceback" not in said.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_file_runs_and_the_report_says_what_of_the_paper_was_seen(tmp_path: Path) -> None:
    """A smoke run of all of them: one seed and one epoch, so that no claim can be decided."""
    store, out = tmp_path / "results", tmp_path / "report"
    changes = [word for change in SMOKE for word in ("--set", change)]
    words = ["paper", "--scale", "laptop", "--spaces", SPACES, "--store", store, "--out", out]
    said = ascl_sweep(*words, *changes, "--yes", timeout=1500)
    assert said.returncode == 0, said.stderr
    rows = Ledger(str(store)).runs().values()
    assert {name for row in rows for name in row.sweeps} == set(SWEEPS)
    assert {row.state for row in rows} <= {"done", "stopped"}
    text = (out / "report.md").read_text()
    claims, *rest = text.split("\n## ")[1:]
    assert claims.startswith("Claims of the paper (laptop scale)")
    assert re.search(r"Of \d+ claims: holds 1, does not hold 1, undecided \d+, not run 3\.", claims)
    headings = {part.split()[0].replace("\\", "") for part in rest}
    assert headings - {"Figures"} == set(SWEEPS)
    assert "Features by t-SNE" in text and "Features by t-SNE" in (out / "report.html").read_text()
    # Called again it trains nothing, and the report is the same.
    before = {row.run_id: row.ended for row in rows}
    assert ascl_sweep(*words, *changes, "--yes", timeout=600).returncode == 0
    assert {row.run_id: row.ended for row in Ledger(str(store)).runs().values()} == before
    assert (out / "report.md").read_text() == text
