"""`ascl-sweep paper`: every table and figure of the paper, and one report on them."""

import re
from functools import partial
from pathlib import Path

import pytest

from ascl_sweep.cli import paper as command
from ascl_sweep.cli.paper import SWEEPS
from ascl_sweep.cli.run import Ways
from ascl_sweep.reproduction.claims import SWEEPS as CLAIMED
from ascl_sweep.reproduction.compare import TABLES
from ascl_sweep.store.store import Store
from tests.ascl_sweep.conftest import Ask
from tests.paths import ROOT

SPACES = ROOT / "search_spaces"
# The smallest runs that every method accepts: clusters and memory banks must fit.
SMOKE = (
    *("seeds=[0]", "epochs=1", "data.train_size=640", "encoder.width=4", "eval.probe_epochs=1"),
    "encoder.projector_hidden=16",
)


def test_every_table_claim_and_file_of_the_paper_is_among_its_sweeps() -> None:
    assert set(TABLES) <= set(SWEEPS)
    assert set(SWEEPS) >= CLAIMED
    ours = {"quickstart", "compare_methods"}  # not from the paper
    assert {path.stem for path in SPACES.glob("*.yaml")} - ours == set(SWEEPS)


@pytest.mark.parametrize("scale", ["paper", "laptop"])
def test_the_plan_trains_once_what_sweeps_share(ask: Ask, scale: str) -> None:
    said = ask("paper", "--spaces", SPACES, "--scale", scale, "--dry-run")
    assert said.exit_code == 0, said.stderr
    for name in SWEEPS:
        assert f"\n{name}" in f"\n{said.stderr}"
    shared = re.search(r"(\d+) runs shared between sweeps", said.stderr)
    assert shared and int(shared[1]) > 50


def test_the_papers_sweeps_can_run_until_decided(ask: Ask) -> None:
    words = ["paper", "tau_prime", "--spaces", SPACES, "--scale", "laptop", "--dry-run"]
    assert "looks at" not in ask(*words).stderr
    assert "looks after 3, 5 and 8 seeds" in ask(*words, "--until-decided").stderr


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--scale", "full"], "'full' is not one of paper, laptop"),
        (["tau"], "no sweep of the paper named 'tau'"),
        (["--spaces", "nowhere"], "run the command in a clone of the project"),
    ],
)
def test_bad_input_is_refused(ask: Ask, words: list[str], part: str) -> None:
    said = ask("paper", "--dry-run", *words)
    assert said.exit_code == 2 and part in said.stderr and "Traceback" not in said.stderr


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_file_runs_and_the_report_counts_the_claims(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Smoke run of all sweeps with one seed and one epoch, so that no claim can be decided.

    Trains in this process: starting the processes of a Ray for each sweep takes twice as long.
    """
    monkeypatch.setattr(command, "Ways", partial(Ways, executor="local"))
    store, out = tmp_path / "results", tmp_path / "report"
    changes = [word for change in SMOKE for word in ("--set", change)]
    words = ["paper", "--scale", "laptop", "--spaces", SPACES, "--store", store, "--out", out]
    said = ask(*words, *changes, "--yes")
    assert said.exit_code == 0, said.stderr
    rows = Store(str(store)).runs().values()
    assert {name for row in rows for name in row.sweeps} == set(SWEEPS)
    assert {row.state for row in rows} <= {"done", "stopped"}
    text = (out / "report.md").read_text()
    claims, *rest = text.split("\n## ")[1:]
    assert claims.startswith("Claims of the paper (laptop scale)")
    counts = r"Of \d+ claims: \d+ inconclusive, \d+ not tested\."
    assert re.search(counts, claims)
    headings = {part.split()[0].replace("\\", "") for part in rest}
    assert headings - {"Figures", "Appendix:"} == set(SWEEPS)
    assert "Features by t-SNE" in text and "Features by t-SNE" in (out / "report.html").read_text()
    # Repeating the command trains nothing, and the report is the same.
    before = {row.run_id: row.ended for row in rows}
    assert ask(*words, *changes, "--yes").exit_code == 0
    assert {row.run_id: row.ended for row in Store(str(store)).runs().values()} == before
    assert (out / "report.md").read_text() == text
