"""Commands that read files and stores; commands that start Ray are tested in test_tune.py."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from rich.console import Console

from ascl_sweep.cli import status
from ascl_sweep.contracts import RunRow, SweepRow
from ascl_sweep.spec.summary import summarize_sweep
from ascl_sweep.spec.sweep import parse_sweep
from ascl_sweep.store import lease
from ascl_sweep.store.store import Store
from tests.ascl.data.test_pixel_cache import Usage, small_imagenet
from tests.ascl_sweep.conftest import Ask
from tests.ascl_sweep.search.test_study import GRID, OPTUNA, SEARCH
from tests.ascl_sweep.search.test_until_decided import CLEAR, UNTIL, World, seeded
from tests.paths import ROOT


def record(store: Path, text: str, state: str = "done", **changes: object) -> RunRow:
    """Put a sweep and one of its runs into a store."""
    spec = parse_sweep(text, file="it.yaml")
    config = spec.config({}, seed=0, phase="search" if spec.is_search else "final")
    row = RunRow(
        config.identity(), ("it",), config.flat_values(), "search" if spec.is_search else "final",
        "full", state, epochs=9, knn_last_top1=0.5, created=1.0, train_seconds=90.0,
    )  # fmt: skip
    row = replace(row, **changes)  # type: ignore[arg-type]
    with Store(store).writer() as writer:
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
    for place in ("a.yaml:2", "a.yaml:3", "b.yaml:2", "b.yaml:3", "missing.yaml: no such file"):
        assert place in said.stderr
    assert "did you mean 'stop'?" in said.stderr
    assert said.stdout == ""


def test_two_files_may_not_share_a_name(ask: Ask, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(GRID)
    said = ask("validate", "a.yaml", "b.yaml")
    assert said.exit_code == 2
    assert "sweep names must be unique, got 'it' in 2 files; rename one" in said.stderr


@pytest.mark.parametrize(
    ("words", "choices"),
    [
        (["plan", "a.yaml", "--scale", "x"], "full, laptop"),
        (["embed", "run", "--split", "x"], "test, train"),
        (["report", "--epoch", "x"], "last, best"),
        (["run", "a.yaml", "--retry", "x"], "failed, diverged"),
    ],
)
def test_an_unknown_choice_is_refused_and_the_known_ones_are_listed(
    ask: Ask, words: list[str], choices: str
) -> None:
    said = ask(*words)
    assert said.exit_code == 2 and words[-2] in said.stderr
    assert f"'x' is not one of {choices}" in said.stderr


def test_a_file_of_the_wrong_kind_is_named_with_the_right_command(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(GRID)
    (tmp_path / "config.yaml").write_text("epochs: 2\nmethod: {name: moco}\n")
    (tmp_path / "empty.yaml").write_text("\n")
    for words, sentence in [
        (["train", "sweep.yaml"], "sweep.yaml is a sweep file; use `ascl-sweep run sweep.yaml`"),
        (["run", "config.yaml"], "config.yaml is the config of one run; use `ascl-sweep train "),
        (["validate", "empty.yaml"], "empty.yaml: the file is empty"),
    ]:
        said = ask(*words)
        assert said.exit_code == 2 and said.stderr.startswith(f"error: {sentence}")
        assert len(said.stderr.splitlines()) == 1


def test_a_plan_refuses_a_store_that_is_a_file(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GRID)
    said = ask("plan", "a.yaml", "--store", "a.yaml")
    assert said.exit_code == 2 and said.stdout == ""
    assert said.stderr == "error: --store a.yaml is a file; give a folder or URL\n"


def test_a_changed_definition_that_loses_finished_runs_is_noted(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID)
    (tmp_path / "a.yaml").write_text(GRID)
    words = [("plan", "a.yaml"), ("run", "a.yaml", "--dry-run")]
    assert not any("replaces" in ask(*w, *more).stderr for w in words for more in [(), ("--yes",)])
    for w in words:
        said = ask(*w, "--set", "method.momentum=0.9")
        assert said.exit_code == 0
        assert (
            "note: replaces the definition of sweep 'it' in results; 1 finished run is no longer "
            "part of it (results stay in the store). Rename the sweep to keep both."
        ) in said.stderr


def test_the_plan_of_a_search_counts_its_phases(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(GRID)
    (tmp_path / "search.yaml").write_text(SEARCH)
    (tmp_path / "optuna.yaml").write_text(OPTUNA)
    for file, counted in [
        ("grid.yaml", "it: 4 runs"),
        (
            "search.yaml",
            "it: up to 10 runs: 4 in the search, then up to 6 of its finalists "
            "(3 configs × 2 seeds)",
        ),
        (
            "optuna.yaml",
            "it: up to 9 runs: up to 5 in the search, then up to 4 of its finalists "
            "(2 configs × 2 seeds)",
        ),
    ]:
        assert counted in ask("plan", file).stdout.splitlines()
        runs = counted.removeprefix("it: ").partition(":")[0]
        assert ask("validate", file).stderr.startswith(f"{file}: valid, {runs}\n")


def test_until_decided_replaces_listed_seeds(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(GRID + "seeds: [0, 1, 2]\n")
    (tmp_path / "many.yaml").write_text(GRID + f"seeds: {list(range(12))}\n")
    (tmp_path / "own.yaml").write_text(GRID + "seeds: {until: decided, at_most: 4}\n")
    for file, counted, looks in [
        ("grid.yaml", "it: up to 40 runs", "s after 3, 5 and 8"),
        ("many.yaml", "it: up to 48 runs", "s after 3, 5 and 8"),
        ("own.yaml", "it: up to 16 runs", " after 3"),
    ]:
        lines = ask("plan", file, "--until-decided").stdout.splitlines()
        place = lines.index(counted)
        assert lines[place + 1].startswith(f"  interim look{looks} seeds; about ")
        assert "if each look decides half of the undecided comparisons" in lines[place + 1]
        assert " epochs to train at most, about " in lines[-1]
        listed = ask("plan", file).stdout.splitlines()
        assert (counted in listed) == (file == "own.yaml")
    (made,) = json.loads(ask("plan", "grid.yaml", "--until-decided", "--json").stdout)["sweeps"]
    assert made["looks"] == [3, 5, 8, 10] and 20 < made["expected_runs"] < made["runs"] == 40


def test_validate_checks_the_seeds_of_a_sweep_that_runs_until_decided(
    ask: Ask, tmp_path: Path
) -> None:
    (tmp_path / "grid.yaml").write_text(GRID + "seeds: [0, 1, 2]\n")
    assert "valid, 12 runs" in ask("validate", "grid.yaml").stderr
    assert "valid, up to 40 runs" in ask("validate", "grid.yaml", "--until-decided").stderr


def test_until_decided_needs_a_metric_of_the_runs_table(ask: Ask, tmp_path: Path) -> None:
    table = "table: {rows: method.target_temperature, metric: loss}\n"
    (tmp_path / "a.yaml").write_text(GRID + table)
    assert ask("plan", "a.yaml").exit_code == 0
    said = ask("plan", "a.yaml", "--until-decided")
    assert said.exit_code == 2 and len(said.stderr.splitlines()) == 1
    assert "until: decided needs a metric that is known when a run ends (got 'loss')" in said.stderr


def test_status_counts_decided_comparisons_and_names_the_next_look(
    ask: Ask, tmp_path: Path
) -> None:
    world = World(seeded({**CLEAR, 0.01: 0.45}))
    study = world.study()
    for runs, line in [
        (3, "it: 0 of 3 comparisons decided before the first look; next look at 3 seeds"),
        (
            9,
            "it: 2 of 3 comparisons decided at 3 seeds; next look at 5 seeds; no look would decide",
        ),
        (99, "it: 3 of 3 comparisons decided at "),
    ]:
        while runs and (run := study.next_run()) is not None:
            world.finish(study, run)
            runs -= 1
        with Store(tmp_path / "results").writer() as writer:
            digest = study.digest.to_json()
            writer.put_sweep(SweepRow("it", UNTIL, "it.yaml", (), "full", 1.0, 40, digest))
            for row in world.rows.values():
                writer.put_run(row)
        shown = " ".join(ask("status").stdout.split())  # long lines are wrapped
        assert line in shown and "≤40" in shown
    (sweep,) = json.loads(ask("status", "--json").stdout)["sweeps"]
    assert (sweep["looks"]["decided"], sweep["looks"]["next_look"]) == (3, None)


def test_a_plan_without_work_says_so(ask: Ask, tmp_path: Path) -> None:
    text = GRID.replace("[0.01, 0.02, 0.05, 0.1]", "[0.05]")
    (tmp_path / "a.yaml").write_text(text)
    spec = parse_sweep(text, file="a.yaml")
    (cell,) = spec.cells()
    record(tmp_path / "results", text, run_id=spec.config(cell.changes, seed=0).identity())
    assert ask("plan", "a.yaml").stdout.endswith("nothing to train: the run is finished\n")


def test_an_unknown_run_id_counts_the_ids_that_are_not_listed(ask: Ask, tmp_path: Path) -> None:
    row = record(tmp_path / "results", GRID)
    with Store(tmp_path / "results").writer() as writer:
        for number in range(7):
            writer.put_run(replace(row, run_id=f"a{number}"))
    said = ask("embed", "zzzz")
    assert said.exit_code == 2 and "known ids: " in said.stderr
    assert said.stderr.endswith(", 3 more\n")


def test_simulate_explains_its_columns(ask: Ask, tmp_path: Path) -> None:
    row = record(tmp_path / "results", GRID)
    with Store(tmp_path / "results").writer() as writer:
        for number in range(4):
            writer.put_run(replace(row, run_id=f"a{number}"))
            for epoch in range(1, 10):
                writer.put_epoch(f"a{number}", {"epoch": epoch, "knn_top1": epoch * number / 30})
    said = ask("simulate", "--repeats", "2")
    assert said.exit_code == 0
    for column in ("epochs spent", "regret", "best survives"):
        assert f"{column}: " in said.stderr and column in said.stdout


@pytest.mark.parametrize("search", [False, True])
def test_simulate_replays_one_run_per_arm_as_a_search_would_see_them(
    ask: Ask, tmp_path: Path, search: bool
) -> None:
    """Neither the luckiest of several seeds nor a finalist, which a search has already selected."""
    text = SEARCH if search else GRID
    row = record(tmp_path / "results", text)
    digest = summarize_sweep(parse_sweep(text, file="it.yaml")).to_json()
    with Store(tmp_path / "results").writer() as writer:
        writer.put_sweep(SweepRow("it", text, "it.yaml", (), "full", 1.0, 4, digest))
        for number in range(4):
            taus = {**row.config, "method.target_temperature": 0.01 * number}
            for seed in (0, 1, 2):
                phase = "search" if search and seed == 0 else "final"
                config = {**taus, "seed": seed}
                name = f"a{number}-{seed}"
                writer.put_run(replace(row, run_id=name, config=config, phase=phase))
                for epoch in range(1, 10):
                    writer.put_epoch(name, {"epoch": epoch, "knn_top1": epoch * number / 30})
    said = json.loads(ask("simulate", "--repeats", "2", "--json").stdout)
    assert said[0]["runs"] == 5, "these four and the recorded one"
    warned = "warning: it stopped runs early" in ask("simulate", "--repeats", "2").stderr
    assert warned == search


def test_best_warns_if_it_selects_on_the_test_set(ask: Ask, tmp_path: Path) -> None:
    row = record(tmp_path / "results", GRID)
    with Store(tmp_path / "results").writer() as writer:
        for number in range(3):
            config = {**row.config, "method.target_temperature": 0.01 * number}
            own = replace(row, run_id=f"a{number}", config=config, knn_last_top1=0.1 * number)
            writer.put_run(own)
    said = ask("best")
    assert said.exit_code == 0
    assert "selected by its score on the test set" in " ".join(said.stderr.split())
    with Store(tmp_path / "results").writer() as writer:
        for number in range(3):
            config = {**row.config, "method.target_temperature": 0.01 * number}
            own = replace(row, run_id=f"a{number}", config={**config, "data.holdout": 0.1})
            writer.put_run(replace(own, phase="search", knn_last_top1=0.1 * number))
    assert "warning" not in ask("best").stderr


RELABELS = "{method.relabel: [ascl, none]}"


@pytest.mark.parametrize("search", [False, True])
def test_best_ranks_by_the_metric_of_the_table_and_a_search_by_knn(
    ask: Ask, tmp_path: Path, search: bool
) -> None:
    text = (SEARCH if search else GRID) + "table: {rows: method.relabel, metric: probe_top1}\n"
    text = text.replace("{method.target_temperature: [0.01, 0.02, 0.05, 0.1]}", RELABELS)
    text = text.replace("probe: none", "probe: cached")
    row = record(tmp_path / "results", text, probe_top1=0.9)
    digest = summarize_sweep(parse_sweep(text, file="it.yaml")).to_json()
    with Store(tmp_path / "results").writer() as writer:
        writer.put_sweep(SweepRow("it", text, "it.yaml", (), "full", 1.0, 4, digest))
        config = {**row.config, "method.relabel": "none"}
        writer.put_run(replace(row, run_id="a1", config=config, knn_last_top1=0.6, probe_top1=0.8))
    by_table, by_knn = ("ASCL: probe_top1 90.00%", "MoCo: knn_top1 60.00%")
    assert f"it: {by_knn if search else by_table}" in ask("best").stdout
    assert f"it: {by_knn}" in ask("best", "--metric", "knn_top1").stdout
    (found,) = json.loads(ask("best", "--json").stdout).values()
    assert found["metric"] == ("knn_top1" if search else "probe_top1")


def test_a_planned_run_has_one_name(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID, "planned")
    assert "planned" in ask("status").stdout and "waiting" not in ask("status").stdout
    report = ask("report", "--format", "md").stdout
    assert "1 run: 1 planned." in report and "waiting" not in report


def test_the_schema_is_what_the_search_spaces_name(ask: Ask) -> None:
    kept = ROOT / "search_spaces" / "sweep.schema.json"
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
    assert own["dollars"] == pytest.approx(4.0 * own["device_hours"]), "an on-premise cluster"
    (tmp_path / "cluster.yaml").write_text("provider: {type: aws}\n")
    said = ask("plan", "a.yaml", "--cluster", "cluster.yaml")
    assert said.exit_code == 2 and "has no prices; add provider.price_per_hour" in said.stderr


def test_export_writes_a_study_once(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", OPTUNA)
    assert ask("export", "it", "study.db").exit_code == 0
    (trial,) = optuna.load_study(study_name="it", storage="sqlite:///study.db").trials
    assert trial.value == 0.5
    again = ask("export", "it", "study.db")
    assert again.exit_code == 2 and "already exists" in again.stderr


def test_only_a_search_with_optuna_can_be_exported(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID)
    said = ask("export", "it", "study.db")
    assert (
        said.exit_code == 2 and "export needs a search with `space.optuna`, got 'it'" in said.stderr
    )


@pytest.mark.parametrize("words", ["status", "status --watch", "best", "run --resume", "simulate"])
def test_an_empty_store_is_refused(ask: Ask, tmp_path: Path, words: str) -> None:
    said = ask(*words.split())
    assert said.exit_code == 2
    assert "error: no sweep in results; start one with `ascl-sweep run FILE`" in said.stderr
    assert list(tmp_path.iterdir()) == [], "reading creates nothing"


def test_a_run_without_its_driver_is_lost(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID, "running")
    (sweep,) = json.loads(ask("status", "--json").stdout)["sweeps"]
    assert sweep["states"] == {"lost": 1}


def test_what_a_store_holds_cannot_control_the_terminal(ask: Ask, tmp_path: Path) -> None:
    title = "\x1b]0;owned\x1b\\\x1b[2J\r"
    record(tmp_path / "results", GRID, "failed", error=f"no{title} disk", log=f"/x{title}/log.txt")
    said = ask("status")
    assert "no disk (/x/log.txt)" in said.stdout
    assert not {"\x1b", "\x07", "\r"} & set(said.stdout) and "owned" not in said.stdout


def test_stop_needs_somebody_to_stop(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID)
    said = ask("stop")
    assert said.exit_code == 2 and "no sweep is running in results" in said.stderr


def test_stop_reaches_a_driver_on_a_machine_with_another_clock(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "results", GRID, "running")
    monkeypatch.setattr(lease, "is_network_folder", lambda folder: True)
    driver = {"host": "head", "pid": 7, "since": 0.0, "beat": 0.0, "token": "x", "machine": "other"}
    (tmp_path / "results" / ".lease").write_text(json.dumps(driver))
    said = ask("stop")
    assert said.exit_code == 0 and "process 7 on head exits once" in said.stderr
    assert "the clock of its machine differs" in " ".join(said.stderr.split())
    assert Store(tmp_path / "results").stop_requested()


def test_gc_leaves_a_store_alone_while_it_is_written(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID)
    with Store(tmp_path / "results").writer():
        said = ask("gc")
    assert said.exit_code == 2 and "a sweep is running in results" in said.stderr


def test_simulate_needs_curves_to_compare(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID)
    said = ask("simulate", "it")
    assert said.exit_code == 2 and "Traceback" not in said.stderr


def test_a_damaged_store_file_is_named_and_the_rest_is_shown(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID)
    (tmp_path / "results" / "runs" / "00000099.parquet").write_bytes(b"rubbish")
    said = ask("status")
    assert said.exit_code == 0
    assert "00000099.parquet" in said.stderr and "it" in said.stdout


def test_fetch_decodes_imagenet_if_the_disk_has_space(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_imagenet(tmp_path / "my data", monkeypatch)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 0))
        said = ask("fetch", "imagenet", "--root", "my data", "--decode")
    assert said.exit_code == 4
    assert "error: 12 decoded images need about 0.0 GB, but only 0.0 GB are free in" in said.stderr
    said = ask("fetch", "imagenet", "--root", "my data", "--decode")
    assert said.exit_code == 0 and said.stdout == ""
    assert "imagenet is ready for data.root=my data" in said.stderr
    assert (tmp_path / "my data" / "imagenet" / "val.pixels" / "00000.npz").exists()


def test_status_watch_continues_while_a_remote_store_is_unreachable(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "results", GRID)
    real, times = status.status_of, iter(["reachable", "unreachable", "reachable", "Ctrl-C"])

    def status_of(store: str, names: list[str] | None) -> status.StoreStatus:
        now = next(times)
        if now == "unreachable":
            raise OSError("no route to host")
        if now == "Ctrl-C":
            raise KeyboardInterrupt
        return real(store, names)

    monkeypatch.setattr(status, "status_of", status_of)
    monkeypatch.setattr(status, "LOOK_SECONDS", 0)
    monkeypatch.setattr(status, "data", Console(force_terminal=True, width=100))
    said = ask("status", "--watch")
    assert said.exit_code == 0, said.output
    assert said.stdout.count("results is unreachable: no route to host") == 1
    assert said.stdout.count("no driver is running") == 4, "the last status stays visible"
