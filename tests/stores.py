"""Ledgers built in code, for tests of reports: no training, no clock, the same numbers each time.

`EXAMPLE` is what the golden reports are made of: a table of the paper at full scale, one at laptop
scale, a search with stopped and audited runs and its finalists, a sweep of one seed, and one in
which most went wrong.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ascl_sweep.analysis.comparison import Options
from ascl_sweep.contracts import RunRow, Scalar, SweepRow
from ascl_sweep.report.report import Report, build_report
from ascl_sweep.reproduction.section import PAPER
from ascl_sweep.spec.summary import SweepSummary
from ascl_sweep.store.store import Store

CONFIG: Mapping[str, Scalar] = {
    "preset": "paper",
    "seed": 0,
    "epochs": 200,
    "batch_size": 256,
    "data.name": "cifar10",
    "data.root": "data",
    "data.train_size": None,
    "data.holdout": 0.0,
    "method.name": "moco",
    "method.relabel": "ascl",
    "method.target_temperature": 0.05,
    "method.num_neighbours": 1,
    "encoder.width": 64,
    "optim.lr": 0.06,
    "eval.knn_k": 200,
    "eval.knn_temperature": 0.1,
    "eval.probe": "paper",
    "eval.probe_epochs": 100,
    "eval.probe_nesterov": False,
    "runtime.precision": "fp32",
    "runtime.device": "auto",
}
LAPTOP: Mapping[str, Scalar] = {
    **{"data.name": "shapes", "data.train_size": 4000, "encoder.width": 16, "epochs": 6},
    **{"batch_size": 32, "eval.knn_k": 50, "eval.probe": "cached", "eval.probe_epochs": 20},
}
MOCO: Mapping[str, Scalar] = {"method.relabel": "none"}
ASCL: Mapping[str, Scalar] = {"method.relabel": "ascl"}
IDLE_IN_MOCO = ("method.num_neighbours", "method.target_temperature")
SEEDS = (0, 1, 2)
SEARCH_SEED = 2**31 - 1  # as in `spec.sweep`, which loads PyTorch
TEMPERATURE, NEIGHBOURS, RELABEL = (
    f"method.{name}" for name in ("target_temperature", "num_neighbours", "relabel")
)


def run(
    sweep: str, changes: Mapping[str, Scalar], seed: int, score: float | None = None, **more: Any
) -> RunRow:
    """A run by what it changes, done if it has a score: a probe's in percent, kNN 5 points below.

    MoCo has no neighbours and no τ', so these are idle in it, as the driver notes it.
    """
    config = {**CONFIG, **changes, "seed": seed}
    epochs = int(config["epochs"] or 0)
    idle = IDLE_IN_MOCO if config[RELABEL] == "none" else ()
    words = [str(value) for key, value in changes.items() if LAPTOP.get(key) != value]
    row = RunRow(
        run_id="-".join([sweep, *words, str(seed)]),
        sweeps=(sweep,),
        config=config,
        phase="final",
        scale="full",
        state="planned" if score is None else "done",
        epochs=0 if score is None else epochs,
        knn_last_top1=None if score is None else round(score / 100 - 0.05, 6),
        knn_best_top1=None if score is None else round(score / 100 - 0.045, 6),
        probe_top1=None if score is None else round(score / 100, 6),
        probe_best_top1=None if score is None else round(score / 100 + 0.001, 6),
        device_hours=0.0 if score is None else epochs / 80,
        device="NVIDIA A100",
        commit="0123456789abcdef0123456789abcdef01234567",
        dirty=False,
        torch="2.14.0",
        ray="2.60.0",
        ascl_sweep="0.1.0",
        idle=idle,
    )
    return replace(row, **more)


def arm(
    sweep: str, changes: Mapping[str, Scalar], scores: Iterable[float | None], **more: Any
) -> list[RunRow]:
    """A run for each seed from 0 on."""
    return [run(sweep, changes, seed, score, **more) for seed, score in enumerate(scores)]


def sweep(
    name: str, axes: Sequence[str] = (), scale: str = "full", started: float = 0.0, **digest: Any
) -> SweepRow:
    digest = {"base": {key: CONFIG.get(key) for key in axes}, "seeds": SEEDS, **digest}
    made = SweepSummary(axes=tuple(axes), **digest)
    return SweepRow(name, f"name: {name}\n", f"{name}.yaml", (), scale, started, 0, made.to_json())


def table(rows: str, metric: str = "probe_top1", **more: Any) -> dict[str, Any]:
    """The table section of a sweep file."""
    return {
        "rows": rows,
        "columns": None,
        "metric": metric,
        "paper": None,
        "baseline": None,
        **more,
    }


def in_order(rows: Iterable[RunRow]) -> list[RunRow]:
    """Rows with the times at which they would have been planned."""
    return [replace(row, created=float(second)) for second, row in enumerate(rows, 1)]


def write(store: str | Path, sweeps: Iterable[SweepRow], rows: Iterable[RunRow]) -> Store:
    """Put sweeps and runs into a store."""
    store = Store(store)
    with store.writer() as writer:
        for sweep_row in sweeps:
            writer.put_sweep(sweep_row)
        for row in rows:
            writer.put_run(row)
    return store


# ---------------------------------------------------------------- the example


def _neighbours() -> list[RunRow]:
    """The paper's table of K, on CIFAR-10: a better arm, an equivalent, one short of a seed."""

    def ours(relabel: str, k: int) -> dict[str, Scalar]:
        return {RELABEL: relabel, NEIGHBOURS: k}

    name = "neighbours"
    other = {"commit": "fedcba9876543210fedcba9876543210fedcba98"}
    return [
        *arm(name, MOCO, [88.41, 88.62, 88.50]),
        *arm(name, ours("hard", 1), [88.50, 88.70, 88.60]),
        *arm(name, ours("hard", 5), [89.0, 90.9, 88.2]),
        *arm(name, ours("ascl", 1), [89.90, 90.10, 90.02]),
        *arm(name, ours("ascl", 5), [90.41, 90.60], **other),
        run(name, ours("ascl", 5), 2, state="failed", error="out of memory", epochs=40, **other),
    ]


def _tau_prime() -> list[RunRow]:
    """The paper's table of τ' at laptop scale."""
    scores = {0.01: 41.2, 0.02: 41.9, 0.05: 42.6, 0.08: 40.1, 0.1: 39.8}
    return [
        row
        for tau, score in scores.items()
        for row in arm(
            "tau_prime",
            {**LAPTOP, TEMPERATURE: tau},
            [score, score + 0.9, score - 0.4 + 10 * tau],
            scale="laptop",
            device="cpu",
        )
    ]


def _search() -> list[RunRow]:
    """Nine configurations, of which five are stopped, two let through as audits; two finalists."""
    name, because = "search", "ASHA at epoch 20: kNN is below the cut"
    rows = []
    for i, tau in enumerate((0.01, 0.02, 0.05, 0.08, 0.1, 0.12, 0.15, 0.18)):
        audit, stopped = i in (1, 5), i in (0, 4, 6, 7)
        changes: dict[str, Scalar] = {TEMPERATURE: tau, "data.holdout": 0.1}
        row = run(name, changes, SEARCH_SEED, 88 - 100 * abs(tau - 0.04))
        row = replace(row, phase="search", audit=audit, probe_top1=None, run_id=f"s-{tau}")
        if stopped:
            row = replace(row, state="stopped", epochs=20, device_hours=0.25)
        if stopped or audit:
            row = replace(row, stopped_because=because)
        rows.append(row)
    changes = {TEMPERATURE: 0.2, "data.holdout": 0.1}
    wild = run(name, changes, SEARCH_SEED, state="diverged", epochs=3)
    rows.append(replace(wild, phase="search", error="loss is nan", run_id="s-0.2"))
    return [
        *rows,
        *arm(name, {TEMPERATURE: 0.05}, [90.00, 90.20, 90.10]),
        *arm(name, {TEMPERATURE: 0.02}, [89.60, 89.70, 89.90]),
    ]


def _once() -> list[RunRow]:
    """Two datasets, one seed."""
    return [
        run("once", {**values, "data.name": data}, 0, score)
        for data, scores in (("cifar10", (88.5, 90.1)), ("cifar100", (64.1, 65.2)))
        for values, score in zip((MOCO, {RELABEL: "ascl"}), scores, strict=True)
    ]


def _broken() -> list[RunRow]:
    """Arms of which no run came to its end, beside one that did."""
    name = "broken"
    high = {"optim.lr": 6.0}
    return [
        *arm(name, {"optim.lr": 0.06}, [88.0, 88.4, 88.1]),
        *(run(name, {"optim.lr": 0.6}, s, state="failed", error="no GPU") for s in SEEDS),
        *(run(name, high, s, state="diverged", epochs=2 + s, device_hours=0.1) for s in SEEDS),
    ]


EXAMPLE_SWEEPS = (
    sweep(
        "neighbours",
        (RELABEL, NEIGHBOURS),
        started=1.0,
        table=table(RELABEL, columns=NEIGHBOURS, paper="neighbours", baseline={RELABEL: "none"}),
    ),
    sweep(
        "tau_prime",
        (TEMPERATURE,),
        "laptop",
        started=2.0,
        table=table("data.name", columns=TEMPERATURE, paper="tau_prime"),
    ),
    sweep(
        "search",
        (TEMPERATURE,),
        started=3.0,
        search=True,
        trials=9,
        finalists=2,
        stop={"rule": "asha", "grace": 20, "factor": 3.0, "audit": 0.05},
    ),
    sweep(
        "once",
        ("data.name", RELABEL),
        started=4.0,
        seeds=(0,),
        table=table(RELABEL, columns="data.name", baseline={RELABEL: "none"}),
    ),
    sweep("broken", ("optim.lr",), started=5.0),
)
EXAMPLE_ROWS = tuple(in_order([*_neighbours(), *_tau_prime(), *_search(), *_once(), *_broken()]))


def example(store: str | Path) -> Store:
    """The example, written."""
    return write(store, EXAMPLE_SWEEPS, EXAMPLE_ROWS)


def paper_report(
    store: Store, sweeps: Sequence[str] = (), options: Options | None = None
) -> Report:
    """The report as the command line makes it, with the paper beside it."""
    return build_report(store, sweeps, options, [PAPER])
