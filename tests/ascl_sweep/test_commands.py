"""Commands that look at files and stores, as a user meets them; those that start Ray are in
test_search.py."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from ascl_sweep.agenda import config_values
from ascl_sweep.cli import app, look
from ascl_sweep.ledger import Ledger, RunRow, SweepRow
from ascl_sweep.spec import spec_of
from tests.ascl.test_decoded import Usage, small_imagenet
from tests.ascl_sweep.test_agenda import GRID, OPTUNA

Ask = Callable[..., Result]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def record(store: Path, text: str, state: str = "done", **changes: object) -> RunRow:
    """Put a sweep and one of its runs into a store."""
    spec = spec_of(text, file="it.yaml")
    config = spec.config({}, seed=0, phase="search" if spec.is_search else "final")
    row = RunRow(
        config.identity(), ("it",), config_values(config), "search" if spec.is_search else "final",
        "full", state, epochs=9, knn_last_top1=0.5, created=1.0, train_seconds=90.0,
    )  # fmt: skip
    row = replace(row, **changes)  # type: ignore[arg-type]
    with Ledger(store).writer() as writer:
        writer.put_sweep(SweepRow("it", text, "it.yaml", (), "full", 1.0, 4))
        writer.put_run(row)
        for epoch in range(1, 10):
            writer.put_epoch(row.run_id, {"epoch": epoch, "knn_top1": epoch / 18})
    return row


def test_validate_shows_every_fault_of_every_file(ask: Ask, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\nseed: 1\nstopp: 2\n")
    said = ask("validate", "a.yaml", "b.yaml", "missing.yaml")
    assert said.exit_code == 2
    for place in ("a.yaml:2", "a.yaml:3", "b.yaml:2", "b.yaml:3", "missing.yaml: cannot be read"):
        assert place in said.stderr
    assert "did you mean 'stop'?" in said.stderr
    assert said.stdout == ""


def test_two_files_may_not_share_a_name(ask: Ask, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(GRID)
    said = ask("validate", "a.yaml", "b.yaml")
    assert said.exit_code == 2 and "each sweep needs a name of its own" in said.stderr


def test_an_unknown_scale_is_refused(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GRID)
    said = ask("plan", "a.yaml", "--scale", "phone")
    assert said.exit_code == 2 and "--scale must be full or laptop, got 'phone'" in said.stderr


def test_the_schema_is_what_the_search_spaces_name(ask: Ask) -> None:
    kept = Path(__file__).parents[2] / "search_spaces" / "sweep.schema.json"
    assert ask("schema").stdout == kept.read_text()


def test_a_plan_states_money_where_the_cluster_file_states_prices(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GRID + "seeds: [0, 1]\n")
    record(tmp_path / "results", GRID)  # 10 seconds an epoch
    (tmp_path / "cluster.yaml").write_text(
        "provider: {type: aws, price_per_hour: {gpu: 4.0}}\n"
        "available_node_types: {gpu: {resources: {GPU: 4}}, head: {resources: {CPU: 2}}}\n"
    )
    plan = json.loads(ask("plan", "a.yaml", "--cluster", "cluster.yaml", "--json").stdout)
    assert plan["dollars"] == pytest.approx(plan["device_hours"] * 1.0)
    assert plan["device_hours"] == pytest.approx(plan["epochs"] * 10 / 3600)
    (tmp_path / "cluster.yaml").write_text(
        "provider: {type: local, price_per_hour: {local.cluster.node: 4.0}}\n"
    )
    own = json.loads(ask("plan", "a.yaml", "--cluster", "cluster.yaml", "--json").stdout)
    assert own["dollars"] == pytest.approx(4.0 * own["device_hours"]), "a machine of one's own"
    (tmp_path / "cluster.yaml").write_text("provider: {type: aws}\n")
    said = ask("plan", "a.yaml", "--cluster", "cluster.yaml")
    assert said.exit_code == 2 and "states no price; add provider.price_per_hour" in said.stderr


def test_doctor_says_what_the_machine_has(ask: Ask) -> None:
    said = ask("doctor")
    assert said.exit_code == 0, said.stderr
    for word in ("Python", "torch", "ray", "GPUs", "CPUs", "disk"):
        assert word in said.stdout


def test_export_writes_a_study_once(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", OPTUNA)
    assert ask("export", "it", "study.db").exit_code == 0
    (trial,) = optuna.load_study(study_name="it", storage="sqlite:///study.db").trials
    assert trial.value == 0.5
    again = ask("export", "it", "study.db")
    assert again.exit_code == 2 and "is there already" in again.stderr


def test_only_a_search_with_optuna_can_be_exported(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID)
    said = ask("export", "it", "study.db")
    assert said.exit_code == 2 and "lists its cells" in said.stderr


@pytest.mark.parametrize("words", [["status"], ["best"], ["resume"], ["replay"]])
def test_an_empty_store_gets_a_sentence(ask: Ask, tmp_path: Path, words: list[str]) -> None:
    said = ask(*words)
    assert said.exit_code == 2
    assert "there is no sweep in results; start one with `ascl-sweep run FILE`" in said.stderr
    assert list(tmp_path.iterdir()) == [], "looking creates nothing"


def test_a_run_without_its_driver_is_lost(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID, "running")
    (sweep,) = json.loads(ask("status", "--json").stdout)["sweeps"]
    assert sweep["states"] == {"lost": 1}


def test_stop_needs_somebody_to_stop(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID)
    said = ask("stop")
    assert said.exit_code == 2 and "no sweep is running in results" in said.stderr


def test_retry_wants_to_know_what(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID)
    said = ask("retry")
    assert said.exit_code == 2 and "--failed, --diverged or both" in said.stderr
    said = ask("retry", "--failed")
    assert said.exit_code == 0 and "nothing to try again" in said.stderr


def test_gc_leaves_a_store_alone_while_it_is_written(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID)
    with Ledger(tmp_path / "results").writer():
        said = ask("gc")
    assert said.exit_code == 2 and "a sweep is running in results" in said.stderr


def test_a_second_driver_is_refused_before_it_starts_anything(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GRID)
    with Ledger(tmp_path / "results").writer():
        said = ask("run", "a.yaml", "--yes")
    assert said.exit_code == 2 and "only one driver may write to a store" in said.stderr
    assert "starting Ray" not in said.stderr


def test_replay_needs_curves_to_compare(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID)
    said = ask("replay", "it")
    assert said.exit_code == 2 and "Traceback" not in said.stderr


def test_a_damaged_ledger_file_is_named_and_the_rest_is_shown(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID)
    (tmp_path / "results" / "runs" / "00000099.parquet").write_bytes(b"rubbish")
    said = ask("status")
    assert said.exit_code == 0
    assert "00000099.parquet" in said.stderr and "it" in said.stdout


def test_fetch_decodes_an_imagenet_if_the_disk_has_room(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_imagenet(tmp_path / "my data", monkeypatch)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 0))
        said = ask("fetch", "imagenet", "--root", "my data", "--decode")
    assert said.exit_code == 4
    assert "error: 12 decoded pictures need about 0.0 GB and 0.0 GB are free in" in said.stderr
    said = ask("fetch", "imagenet", "--root", "my data", "--decode")
    assert said.exit_code == 0 and said.stdout == ""
    assert "imagenet is ready for data.root=my data" in said.stderr
    assert (tmp_path / "my data" / "imagenet" / "val.pixels" / "00000.npz").exists()


def test_a_watcher_stays_while_a_far_store_is_away(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "results", GRID)
    real, times = look.status_of, iter(["there", "away", "there", "Ctrl-C"])

    def status_of(store: str, names: list[str] | None) -> dict[str, Any]:
        now = next(times)
        if now == "away":
            raise OSError("nobody answers")
        if now == "Ctrl-C":
            raise KeyboardInterrupt
        return real(store, names)

    monkeypatch.setattr(look, "status_of", status_of)
    monkeypatch.setattr(look, "LOOK_SECONDS", 0)
    monkeypatch.setattr(look, "data", Console(force_terminal=True, width=100))
    said = ask("status", "--watch")
    assert said.exit_code == 0, said.output
    assert said.stdout.count("results does not answer: nobody answers") == 1
    assert said.stdout.count("nobody is driving it") == 4, "what was seen last stays in sight"


def test_a_watcher_of_what_is_not_there_is_told_so(ask: Ask) -> None:
    said = ask("status", "--watch")
    assert said.exit_code == 2 and "there is no sweep in" in said.stderr
