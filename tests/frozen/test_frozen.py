"""What no refactoring may change: run ids, columns, exit codes and the stores of earlier versions.

`frozen.json` and `store/` were recorded at commit 7c813c9, before the code was restructured. They
are inputs here. Since then only the search runs of `frozen.json` were rewritten, because searches
got a seed of their own and always try their base, and one exit code (`replay` needs four complete
curves of the search). Golden losses are frozen in `tests/ascl/methods`, golden reports in
`tests/ascl_sweep/report`.
"""

import csv
import json
import lzma
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ascl_sweep import build_report
from ascl_sweep.cli import app
from tests import sweeps
from tests.paths import ROOT

HERE = Path(__file__).parent
FROZEN: dict[str, Any] = json.loads((HERE / "frozen.json").read_text())


def run(*words: object) -> tuple[int, str]:
    """The exit code and stdout of a command, run in this process."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.stdout


@pytest.fixture
def store(tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(HERE / "store", tmp_path / "store"))
    for packed in copy.glob("work/*/checkpoint.pt.xz"):
        packed.with_suffix("").write_bytes(lzma.decompress(packed.read_bytes()))
        packed.unlink()
    return copy


NUMBERS = ("n", "planned", "mean", "sd", "pairs", "delta", "wins", "device_hours", "epochs")


@pytest.mark.parametrize("scale", ["full", "laptop"])
@pytest.mark.parametrize("file", sorted(p.name for p in (ROOT / "search_spaces").glob("*.yaml")))
def test_run_ids_of_every_search_space_are_unchanged(file: str, scale: str, tmp_path: Path) -> None:
    code, out = run(
        *("plan", ROOT / "search_spaces" / file, "--scale", scale, "--json"),
        *("--store", tmp_path / "empty"),
    )
    assert code == 0, out
    plan = json.loads(out)
    ids = [f"{r['run_id']} {r['phase']} {r['seed']} {r['epochs']}" for r in plan["runs"]]
    later = [sweep["later"] for sweep in plan["sweeps"]]
    assert {"runs": ids, "later": later} == FROZEN["run_ids"][f"{file} {scale}"]


@pytest.mark.parametrize("words", FROZEN["exit_codes"])
def test_exit_codes_are_unchanged(words: str, store: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: x\nbase: {batch_sise: 3}\n")
    names = {"STORE": store, "BAD": bad, "NOWHERE": tmp_path / "nowhere"}
    names["QUICKSTART"] = ROOT / "search_spaces" / "quickstart.yaml"
    code, out = run(*(names.get(word, word) for word in words.split()))
    assert code == FROZEN["exit_codes"][words], out


def test_parquet_columns_are_unchanged(store: Path) -> None:
    """The old store has them, and a store that is written now has them with the same types."""
    import pyarrow.parquet as pq

    from ascl_sweep.store.store import Store

    opened = Store(store)
    with opened.writer() as writer:
        for row in opened.sweeps().values():
            writer.put_sweep(row)
        for run_row in opened.runs().values():
            writer.put_run(run_row)
        for run_id, epochs in opened.epochs().items():
            for epoch in epochs:
                writer.put_epoch(run_id, epoch)
    for table, columns in FROZEN["columns"].items():
        for path in sorted((store / table).glob("*.parquet")):
            schema = pq.read_schema(path)
            found = {f.name: str(f.type) for f in schema}
            assert found | columns == found, path


def test_an_old_store_is_reported_with_the_same_numbers(store: Path) -> None:
    """Means, spreads and differences; the inference over them has changed since."""
    found = build_report(store).to_pandas().astype(dict.fromkeys(NUMBERS, float))
    rows = csv.DictReader(line for line in FROZEN["report"] if line and not line.startswith("#"))
    for ours, theirs in zip(found.to_dict("records"), rows, strict=True):
        assert ours["sweep"] == theirs["sweep"] and ours["seeds"] == theirs["seeds"]
        known = [float(theirs[name]) if theirs[name] else math.nan for name in NUMBERS]
        assert [ours[name] for name in NUMBERS] == pytest.approx(known, nan_ok=True)
    code, out = run("best", "--metric", "knn_top1", "--store", store, "--json")
    assert code == 0
    found = {name: (best["mean"], best["n"]) for name, best in json.loads(out).items()}
    assert found == {name: tuple(values) for name, values in FROZEN["best"].items()}


def test_an_old_store_shows_the_same_status(store: Path) -> None:
    code, out = run("status", "--store", store, "--json")
    assert code == 0
    found = {s["name"]: [s["states"], s["planned"]] for s in json.loads(out)["sweeps"]}
    assert found == FROZEN["status"]


@pytest.mark.slow
def test_an_old_store_is_resumed_to_the_same_numbers(store: Path) -> None:
    done = sweeps.ascl_sweep("resume", "--store", store)
    assert done.returncode == 0, done.stderr
    found = sweeps.numbers(store)
    assert found.keys() == FROZEN["numbers"].keys()
    for run_id, epochs in FROZEN["numbers"].items():
        for ours, theirs in zip(found[run_id], epochs, strict=True):
            known = [math.nan if value is None else value for value in ours]
            wanted = [math.nan if value is None else value for value in theirs]
            assert known == pytest.approx(wanted, rel=1e-3, abs=5e-3, nan_ok=True), run_id
