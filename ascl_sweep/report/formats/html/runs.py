"""Compact encoding of runs: a page with 10,000 runs × 200 epochs must open on a phone.

A column stores its distinct values and each run's index into them. Most config values are equal in
all runs of a sweep, so only differences cost space. A curve takes 16 bits per point.
"""

import base64
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ascl_sweep.analysis import labels
from ascl_sweep.contracts import RunRow, RunState, Scalar
from ascl_sweep.report.report import Report, SweepReport
from ascl_sweep.store.store import Store

TAIL = 12  # last lines of a run's log, as `run` shows for a failed run
TAIL_BYTES = 4096
LOGS_BYTES = 2_000_000  # limit of all log tails together; failed runs come first
POINTS, FEW_POINTS = 200, 20  # maximum and minimum points per curve
ALL_POINTS = 1_000_000  # limit of all curves together
FULL = 65_534  # encodes 100%; 65,535 encodes a missing point
ABSENT = -1
Column = dict[str, Sequence[object]]


def encode_runs(report: Report, store: Store) -> dict[str, object]:
    """Encode every run of a report once, by column, for the page's script."""
    rows = list({row.run_id: row for sweep in report.sweeps for row in sweep.runs}.values())
    named = name_arms(report.sweeps)
    keys = dict.fromkeys(key for row in rows for key in row.config)
    curves = _curves(store, {row.run_id for row in rows})
    tails = _tails(rows, store)

    def column(value: Callable[[RunRow], object]) -> Column:
        return _column(map(value, rows))

    return {
        "count": len(rows),
        "full": FULL,
        "columns": {
            "id": column(lambda r: r.run_id),
            "arm": column(lambda r: named[r.run_id]),
            "sweeps": column(lambda r: r.sweeps),
            "phase": column(lambda r: r.phase),
            "scale": column(lambda r: r.scale),
            "state": column(lambda r: r.state),
            "seed": column(lambda r: r.config.get("seed")),
            "epochs": column(lambda r: r.epochs),
            "planned": column(lambda r: r.config.get("epochs")),
            "knn": column(lambda r: _percent(r.knn_last_top1)),
            "knn_best": column(lambda r: _percent(r.knn_best_top1)),
            "probe": column(lambda r: _percent(r.probe_top1)),
            "hours": column(lambda r: _rounded(r.device_hours, 4)),
            "error": column(lambda r: r.error),
            "stopped": column(lambda r: r.stopped_because),
            "audit": column(lambda r: r.audit),
            "idle": column(lambda r: r.idle),
            "train": column(lambda r: _rounded(r.train_seconds, 0)),
            "eval": column(lambda r: _rounded(r.eval_seconds, 0)),
            "speed": column(lambda r: _rounded(r.images_per_second, 1)),
            "workers": column(lambda r: r.workers),
            "host": column(lambda r: r.host),
            "device": column(lambda r: r.device),
            "commit": column(_commit),
            "versions": column(_versions),
            "started": column(lambda r: _rounded(r.started, 0)),
            "ended": column(lambda r: _rounded(r.ended, 0)),
            # With `*` for the run id, all log paths share one value.
            "log": column(lambda r: r.log and r.log.replace(r.run_id, "*")),
            "tail": column(lambda r: tails.get(r.run_id)),
            "curve": column(lambda r: curves.get(r.run_id)),
        },
        "config": {
            key: column(lambda r, key=key: _shown(r.config[key]) if key in r.config else ABSENT)  # type: ignore[misc]
            for key in keys
        },
    }


def _column(values: Iterable[object]) -> Column:
    """Encode a column; the indices are omitted if all runs have the same value."""
    of: dict[object, int] = {}
    at = [ABSENT if value is ABSENT else of.setdefault(value, len(of)) for value in values]
    return {"of": list(of), "at": at} if len(of) > 1 or ABSENT in at else {"of": list(of)}


def name_arms(sweeps: Sequence[SweepReport]) -> dict[str, str]:
    """Name each run's arm as in tables and searches, or else by the sweep's axes."""
    named: dict[str, str] = {}
    for sweep in sweeps:
        arms = sweep.table.arms if sweep.table else ()
        trials = sweep.search.trials if sweep.search else ()
        for run_id, label in [
            *((run_id, arm.label) for arm in arms for run_id in arm.run_ids),
            *((trial.run_id, trial.label) for trial in trials),
        ]:
            named.setdefault(run_id, label)
        for row in sweep.runs:
            if row.run_id not in named:
                axes = [k for k in sweep.digest.axes if k in row.config and k not in row.idle]
                named[row.run_id] = labels.system_arm(row.config, axes)
    return named


# ---------------------------------------------------------------- values


def _shown(value: Scalar) -> str:
    """Format a config value with all digits, in YAML spelling."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value if isinstance(value, str) else repr(value)


def _rounded(value: float | None, digits: int) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return round(value, digits) if digits else round(value)


def _percent(share: float | None) -> float | None:
    return None if share is None else _rounded(100 * share, 3)


def _commit(row: RunRow) -> str | None:
    return row.commit and row.commit + (" with uncommitted changes" if row.dirty else "")


def _versions(row: RunRow) -> str:
    found = {"ascl-sweep": row.ascl_sweep, "Python": row.python, "torch": row.torch, "ray": row.ray}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


# ---------------------------------------------------------------- curves


def _curves(store: Store, run_ids: set[str]) -> dict[str, tuple[int, int, str]]:
    """Encode online kNN curves: first epoch, step between epochs, and points."""
    most = max(FEW_POINTS, min(POINTS, ALL_POINTS // max(1, len(run_ids))))
    return {
        run_id: _curve(curves["epoch"].astype(np.int64), curves["knn_top1"], most)
        for run_id, curves in store.curves(["knn_top1"])
        if run_id in run_ids
    }


def _curve(
    epochs: NDArray[np.int64], scores: NDArray[np.float64], most: int
) -> tuple[int, int, str]:
    first, last = int(epochs[0]), int(epochs[-1])
    step = -(-(last - first + 1) // most)
    first += (last - first) % step  # keeps the last epoch among the points
    kept = np.isfinite(scores) & (epochs >= first) & ((last - epochs) % step == 0)
    points = np.full((last - first) // step + 1, FULL + 1, np.dtype("<u2"))
    points[(epochs[kept] - first) // step] = np.rint(FULL * scores[kept].clip(0, 1))
    return first, step, base64.b64encode(points.tobytes()).decode()


# ---------------------------------------------------------------- logs


def _tails(rows: Iterable[RunRow], store: Store) -> dict[str, str]:
    """Read the last lines of local logs, failed runs first, up to the limit."""
    tails: dict[str, str] = {}
    remaining = LOGS_BYTES
    for row in sorted(
        rows, key=lambda row: row.state in (RunState.PLANNED, RunState.DONE, RunState.STOPPED)
    ):
        tail = _tail(row, store)
        if remaining <= 0:
            break
        if tail:
            tails[row.run_id] = tail
            remaining -= len(tail)
    return tails


def _tail(row: RunRow, store: Store) -> str | None:
    """Read the log in the store's work folder; the path in the row may be outdated."""
    if row.log is None:
        return None
    try:
        path = Path(store.work(row.run_id)) / Path(row.log).name
        if not path.is_file():
            return None
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except (OSError, ValueError):  # deleted, unreadable, or an invalid folder name
        return None
    # The first line is cut off unless the whole file was read.
    whole = lines if size <= TAIL_BYTES else lines[1:] or lines
    return "\n".join(whole[-TAIL:])
