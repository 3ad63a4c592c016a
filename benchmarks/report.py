"""A report on 10,000 runs × 200 epochs, and on 500 runs against Ray's ExperimentAnalysis.

Ray's side reads what Tune itself would have left: a `result.json` per trial. It is spared its state
file (its trials are handed over ready-made) and both sides their imports.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ascl_sweep.ledger import Ledger, compact
from benchmarks.ledger import EPOCHS, RUNS, make_store
from benchmarks.timing import Ratio, in_turns, timed

FEW = 500


def command(store: Path, *words: str) -> float:
    """Seconds of a whole call of `ascl-sweep report`, from the shell's point of view."""
    line = [sys.executable, "-m", "ascl_sweep", "report", "--store", str(store), *words]
    return timed(lambda: subprocess.run(line, check=True, stdout=subprocess.DEVNULL))()


def run() -> Iterator[Ratio]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = folder / "large"
        make_store(store, RUNS, EPOCHS)
        compact(Ledger(store))
        page = folder / "page.html"
        opened = timed(lambda: subprocess.run([sys.executable, "-c", "import pyarrow"], check=True))
        for words, goal in (
            (("--format", "md"), "under 3 s"),
            (("--out", str(page)), "under 10 s, 20 MB"),
        ):
            ours, start = in_turns(lambda words=words: command(store, *words), opened, rounds=3)
            size = f"{page.stat().st_size / 1e6:.1f} MB" if page.exists() else ""
            kind = words[-1].rpartition("/")[2]
            what = f"report of {RUNS:,} × {EPOCHS}, {kind}, over Python's start"
            yield Ratio(what, ours, start, goal, speedup=False, note=size)
        yield _against_ray(folder)


def _against_ray(folder: Path) -> Ratio:
    from ascl_sweep.report.render import markdown
    from ascl_sweep.report.report import report_of

    store = folder / "small"
    make_store(store, FEW, EPOCHS)
    experiment = folder / "tune" / "bench"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.tune import ExperimentAnalysis

    trials = list(_as_tune_would(store, experiment))
    a, b = in_turns(
        timed(lambda: markdown(report_of(Ledger(store)))),
        timed(lambda: ExperimentAnalysis(experiment / "state.json", trials=trials).dataframe()),
        rounds=3,
    )
    what = f"report of {FEW} × {EPOCHS} as Markdown against ray.tune.ExperimentAnalysis"
    return Ratio(what, a, b, "≥ 20")


def _as_tune_would(store: Path, experiment: Path) -> Iterator[object]:
    """Write the store's runs as Tune's results, a line of JSON per epoch, and its trials."""
    from ray.train._internal.storage import StorageContext
    from ray.tune.experiment import Trial

    ledger = Ledger(store)
    epochs = ledger.epochs()
    for run_id, row in ledger.runs().items():
        storage = StorageContext(
            storage_path=str(experiment.parent),
            experiment_dir_name=experiment.name,
            trial_dir_name=run_id,
        )
        trial = Trial("bench", stub=True, config=dict(row.config), trial_id=run_id, storage=storage)
        lines = [
            {**epoch, "training_iteration": epoch["epoch"], "trial_id": run_id, "done": False}
            for epoch in epochs[run_id]
        ]
        trial.run_metadata.last_result = lines[-1]
        place = experiment / run_id
        place.mkdir(parents=True)
        (place / "result.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (place / "params.json").write_text(json.dumps(dict(row.config)))
        yield trial
