"""The runs behind a page, small: a page of 10,000 runs × 200 epochs must open on a phone.

A column is its distinct values and, for each run, which of them; nearly all of a sweep's configs is
the same, so a key costs what its differences cost. A curve is sixteen bits a point.
"""

import base64
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ascl_sweep import labels
from ascl_sweep.ledger import Ledger, RunRow, Scalar
from ascl_sweep.report.report import Report, SweepReport

TAIL = 12  # lines of a run's log, as `run` shows them of a failed one
TAIL_BYTES = 4096
LOGS_BYTES = 2_000_000  # of all tails together; failures come first
POINTS, FEW_POINTS = 200, 20  # of a curve, at most and at least
ALL_POINTS = 1_000_000  # of all curves together
FULL = 65_534  # a curve's 100%; 65,535 is a missing point
ABSENT = -1
Column = dict[str, Any]


def runs_of(report: Report, ledger: Ledger) -> dict[str, Any]:
    """Every run of a report once, by column, as the page's script wants it."""
    rows = list({row.run_id: row for sweep in report.sweeps for row in sweep.runs}.values())
    named = _labels(report.sweeps)
    keys = dict.fromkeys(key for row in rows for key in row.config)
    curves = _curves(ledger, {row.run_id for row in rows})
    tails = _tails(rows, ledger)

    def column(value: Callable[[RunRow], Any]) -> Column:
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
            # All runs' logs lie in folders of their ids: one value for all of them.
            "log": column(lambda r: r.log and r.log.replace(r.run_id, "*")),
            "tail": column(lambda r: tails.get(r.run_id)),
            "curve": column(lambda r: curves.get(r.run_id)),
        },
        "config": {
            key: column(lambda r, key=key: _shown(r.config[key]) if key in r.config else ABSENT)  # type: ignore[misc]
            for key in keys
        },
    }


def _column(values: Iterable[Any]) -> Column:
    """A column's distinct values and which each run has; without the latter if all have one."""
    of: dict[Any, int] = {}
    at = [ABSENT if value is ABSENT else of.setdefault(value, len(of)) for value in values]
    return {"of": list(of), "at": at} if len(of) > 1 or ABSENT in at else {"of": list(of)}


def _labels(sweeps: Sequence[SweepReport]) -> dict[str, str]:
    """What tables and searches call each run's arm; by the sweep's axes if none shows it."""
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
    """A config's value to the last digit, as YAML would have it."""
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


def _curves(ledger: Ledger, run_ids: set[str]) -> dict[str, tuple[int, int, str]]:
    """Online kNN by epoch: the first epoch, the step between epochs, and the points."""
    most = max(FEW_POINTS, min(POINTS, ALL_POINTS // max(1, len(run_ids))))
    return {
        run_id: _curve(curves["epoch"].astype(np.int64), curves["knn_top1"], most)
        for run_id, curves in ledger.curves(["knn_top1"])
        if run_id in run_ids
    }


def _curve(
    epochs: NDArray[np.int64], scores: NDArray[np.float64], most: int
) -> tuple[int, int, str]:
    first, last = int(epochs[0]), int(epochs[-1])
    step = -(-(last - first + 1) // most)
    first += (last - first) % step  # so that the last epoch is among the points
    kept = np.isfinite(scores) & (epochs >= first) & ((last - epochs) % step == 0)
    points = np.full((last - first) // step + 1, FULL + 1, np.dtype("<u2"))
    points[(epochs[kept] - first) // step] = np.rint(FULL * scores[kept].clip(0, 1))
    return first, step, base64.b64encode(points.tobytes()).decode()


# ---------------------------------------------------------------- logs


def _tails(rows: Iterable[RunRow], ledger: Ledger) -> dict[str, str]:
    """The ends of the logs that lie on this machine, of failures first, as far as there is room."""
    tails: dict[str, str] = {}
    room = LOGS_BYTES
    for row in sorted(rows, key=lambda row: row.state in ("planned", "done", "stopped")):
        tail = _tail(row, ledger)
        if room <= 0:
            break
        if tail:
            tails[row.run_id] = tail
            room -= len(tail)
    return tails


def _tail(row: RunRow, ledger: Ledger) -> str | None:
    """Of the store's own file, wherever the row says it was: a store may have moved."""
    if row.log is None:
        return None
    try:
        path = Path(ledger.work(row.run_id)) / Path(row.log).name
        if not path.is_file():
            return None
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except (OSError, ValueError):  # gone meanwhile, not ours to read, an id that names no folder
        return None
    # Of a line that began before what was read only the end is known.
    whole = lines if size <= TAIL_BYTES else lines[1:] or lines
    return "\n".join(whole[-TAIL:])
