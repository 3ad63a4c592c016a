"""Use the recipes of docs/contributing.md, in a tree that has them; `test_docs.py` runs this.

    python tests/recipes.py TREE        prints {recipe: "" or a traceback} as JSON

TREE is a copy of the packages with all recipes in place, and first on the path.
"""

import json
import math
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

TREE = Path(sys.argv[1])
STORE = TREE / "store"
TINY: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 8,
    "data": {"name": "shapes", "train_size": 40},
    "encoder": {"width": 4, "stem": "large", "projector_hidden": 16, "projector_dim": 8},
    "eval": {"knn_k": 5, "probe": "none"},
    "runtime": {"device": "cpu"},
}
SWEEP = """
name: it
base: {data: {name: shapes, train_size: 40}, batch_size: 8, method: {queue_size: 16},
       encoder: {width: 4, bn_splits: 2}, eval: {probe: none}, epochs: 2}
seeds: [0, 1]
"""


def train_tiny(**changes: Any) -> tuple[str, float]:
    """The id and the loss of a run of one epoch."""
    from ascl.config import RunConfig, merge
    from ascl.train import build, train

    config = RunConfig.of(merge(TINY, changes))
    (metrics,) = train(build(config))
    assert math.isfinite(metrics.loss)
    return config.identity(), metrics.loss


def run_instantly(text: str, store: Path, **options: Any) -> None:
    """Run a sweep with the executor that trains nothing."""
    import ascl_sweep
    from ascl_sweep.runtime.controller import End

    file = TREE / "sweep.yaml"
    file.write_text(text)
    sweep = ascl_sweep.load_sweep(file)
    assert ascl_sweep.run([sweep], store, executor="instant", **options) is End.DONE


def method() -> None:
    from ascl.methods import method_label, method_paper

    assert method_label("alignment") == "Align+Uniform"
    assert method_paper("alignment") == "arXiv:2005.10242"
    weighted = train_tiny(method={"name": "alignment"})
    plain = train_tiny(method={"name": "alignment", "uniformity": 0.0})
    assert weighted[0] != plain[0] and weighted[1] < plain[1]  # log of numbers below 1
    assert plain[1] >= 0


def dataset() -> None:
    import numpy as np

    from ascl.data.base import dataset_label
    from ascl.data.subset import load_data
    from ascl.errors import DataError

    root = TREE / "data"
    try:
        load_data("npz", root)
    except DataError as error:
        assert "train.npz" in str(error)
    else:
        raise AssertionError("missing files must be reported")
    (root / "npz").mkdir(parents=True)
    for split, count in (("train", 40), ("test", 10)):
        images = np.random.default_rng(0).integers(0, 255, (count, 3, 32, 32), dtype=np.uint8)
        np.savez(root / "npz" / f"{split}.npz", images=images, labels=np.arange(count) % 2)
    assert dataset_label("npz") == "my images"
    train_tiny(
        data={"name": "npz", "root": str(root), "train_size": None},
        method={"queue_size": 16},
        encoder={"bn_splits": 2},
    )


def config_key() -> None:
    from ascl.config import RunConfig, merge
    from ascl_sweep.spec.schema import config_keys

    common = {"method": {"queue_size": 16}, "encoder": {"bn_splits": 2}}
    before = RunConfig.of(merge(TINY, common)).identity()
    off = train_tiny(**common, optim={"nesterov": False})
    on = train_tiny(**common, optim={"nesterov": True})
    assert off[0] == before and on[0] != before and on[1] != off[1]
    # The id of the released code: a key that is off must not change it.
    sys_path = [str(Path(__file__).parent.parent)]
    code = (
        f"import json, sys; sys.path[:0] = {sys_path!r}\n"
        "from ascl.config import RunConfig\n"
        "print(RunConfig.of(json.loads(sys.argv[1])).identity())"
    )
    words = [sys.executable, "-c", code, json.dumps(merge(TINY, common))]
    released = subprocess.run(words, capture_output=True, text=True, check=True, env={})
    assert released.stdout.strip() == before
    assert "optim.nesterov" in config_keys()


def scheduler() -> None:
    from ascl_sweep.contracts import RunState
    from ascl_sweep.store.store import Store

    stop = (
        "space: {grid: {optim.lr: [0.1, 0.2]}}\nstop: {threshold: {grace: 1, least: 0.9}, audit: 0}"
    )
    run_instantly(SWEEP + stop, TREE / "stopped")
    rows = Store(TREE / "stopped").runs().values()
    assert {row.state for row in rows} == {RunState.STOPPED}
    assert {row.stopped_because for row in rows} == {
        "threshold at epoch 1: kNN 0.0% is below 90.0%"
    }


def searcher() -> None:
    from ascl_sweep.store.store import Store

    space = "space: {corners: {highest_first: true, domains: {optim.lr: {uniform: [0.1, 0.3]}}}}"
    run_instantly(f"{SWEEP}{space}\nbudget: {{trials: 3}}", TREE / "searched")
    rows = sorted(Store(TREE / "searched").runs().values(), key=lambda row: row.created or 0)
    assert sorted(row.config["optim.lr"] for row in rows[1:]) == [0.1, 0.3], "after the base"


def executor() -> None:
    from ascl_sweep.contracts import RunState
    from ascl_sweep.store.store import Store

    run_instantly(SWEEP, TREE / "instant")
    rows = Store(TREE / "instant").runs().values()
    assert {(row.state, row.knn_last_top1) for row in rows} == {
        (RunState.DONE, 1 / 2),
        (RunState.DONE, 1 / 3),
    }


def logger() -> None:
    run_instantly(SWEEP, TREE / "logged", loggers=["jsonl"])
    lines = (TREE / "logged" / "epochs.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 1, 2]


def callback() -> None:
    (TREE / "sweep.yaml").write_text(SWEEP)
    words = [sys.executable, TREE / "count_states.py", "sweep.yaml", "counted", "instant"]
    done = subprocess.run(words, cwd=TREE, capture_output=True, text=True)
    assert done.stdout == "{'done': 2}\n", done.stderr


def metric() -> None:
    import ascl_sweep

    run_instantly(SWEEP + "table: {rows: optim.lr, metric: hours}", TREE / "hours")
    (sweep,) = ascl_sweep.build_report(TREE / "hours").sweeps
    assert sweep.table is not None and sweep.table.metric.label == "training hours"
    assert [arm.n for arm in sweep.table.arms] == [2]


def report_format() -> None:
    import ascl_sweep
    from ascl_sweep.report.formats.base import load_formats

    run_instantly(SWEEP, TREE / "formatted")
    format = load_formats()["org"]
    text = format.render(ascl_sweep.build_report(TREE / "formatted"))
    assert "\n* it\n" in text and "42 ± 12" in text  # of 50.00 and 33.33
    stored = format.read(text)
    assert stored is not None and stored.body in text


def search_space() -> None:
    import ascl_sweep

    file = TREE / "search_spaces" / "strength.yaml"
    assert len(ascl_sweep.plan([ascl_sweep.load_sweep(file)], STORE).runs) == 12
    small = ascl_sweep.load_sweep(file, scale="laptop")
    assert small.base_values["data.name"] == "shapes" and small.full_epochs == 6


RECIPES: dict[str, Callable[[], None]] = {
    "Method": method,
    "Dataset": dataset,
    "Config key": config_key,
    "Scheduler": scheduler,
    "Searcher": searcher,
    "Executor": executor,
    "Logger": logger,
    "Callback": callback,
    "Metric": metric,
    "Report format": report_format,
    "Search space": search_space,
}


def main() -> dict[str, str]:
    import torch

    import ascl
    import ascl_sweep

    torch.set_num_threads(1)
    for package in (ascl, ascl_sweep):
        assert Path(str(package.__file__)).is_relative_to(TREE), package.__file__
    results = {}
    for name, use in RECIPES.items():
        try:
            use()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
    return results


if __name__ == "__main__":
    print(json.dumps(main()))
