"""A report on 10,000 runs × 200 epochs, and one on 500 runs against Ray's ExperimentAnalysis.

Ray's side reads the files that Tune writes: a `result.json` per trial. The times exclude imports
on both sides. Ray does not read an experiment state file: it receives the trials as objects.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ascl_sweep.store.store import Store, compact
from benchmarks.store import EPOCHS, RUNS, make_store
from benchmarks.timing import Ratio, alternate, timed

SMALL = 500  # runs


def report_command(store: Path, *options: str) -> float:
    """Return the wall-clock seconds of an `ascl-sweep report` command."""
    line = [sys.executable, "-m", "ascl_sweep", "report", "--store", str(store), *options]
    return timed(lambda: subprocess.run(line, check=True, stdout=subprocess.DEVNULL))()


def run() -> Iterator[Ratio]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = folder / "large"
        make_store(store, RUNS, EPOCHS)
        compact(Store(store))
        page = folder / "page.html"
        start_python = [sys.executable, "-c", "import pyarrow"]
        python_start = timed(lambda: subprocess.run(start_python, check=True))
        for options, goal in (
            (("--format", "md"), "under 3 s"),
            (("--out", str(page)), "under 10 s, 20 MB"),
        ):
            ours, start = alternate(
                lambda options=options: report_command(store, *options), python_start, rounds=3
            )
            size = f"{page.stat().st_size / 1e6:.1f} MB" if page.exists() else ""
            kind = options[-1].rpartition("/")[2]
            what = f"report of {RUNS:,} × {EPOCHS}, {kind}, over starting Python with pyarrow"
            yield Ratio(what, ours, start, goal, speedup=False, note=size)
        yield _against_ray(folder)


def _against_ray(folder: Path) -> Ratio:
    from ascl_sweep.report.report import build_report

    store = folder / "small"
    make_store(store, SMALL, EPOCHS)
    experiment = folder / "tune" / "bench"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.tune import ExperimentAnalysis

    trials = list(_write_tune_results(store, experiment))
    a, b = alternate(
        timed(lambda: build_report(Store(store)).to_markdown()),
        timed(lambda: ExperimentAnalysis(experiment / "state.json", trials=trials).dataframe()),
        rounds=3,
    )
    what = f"report of {SMALL} × {EPOCHS} as Markdown, ray.tune.ExperimentAnalysis"
    return Ratio(what, a, b, "≥ 20")


def _write_tune_results(store: Path, experiment: Path) -> Iterator[object]:
    """Write the store's runs as Tune's result files, one JSON line per epoch; yield the trials."""
    from ray.train._internal.storage import StorageContext
    from ray.tune.experiment import Trial

    store = Store(store)
    epochs = store.epochs()
    for run_id, row in store.runs().items():
        storage = StorageContext(
            storage_path=str(experiment.parent),
            experiment_dir_name=experiment.name,
            trial_dir_name=run_id,
        )
        trial = Trial("bench", stub=True, config=dict(row.config), trial_id=run_id, storage=storage)
        lines = [
            {**vars(epoch), "training_iteration": epoch.epoch, "trial_id": run_id, "done": False}
            for epoch in epochs[run_id]
        ]
        trial.run_metadata.last_result = lines[-1]
        trial_path = experiment / run_id
        trial_path.mkdir(parents=True)
        (trial_path / "result.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (trial_path / "params.json").write_text(json.dumps(dict(row.config)))
        yield trial
