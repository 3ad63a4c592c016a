"""The tables of a report as rows of plain values, for CSV and pandas: one per arm, or per run."""

from collections.abc import Iterator
from dataclasses import asdict

from ascl_sweep.analysis.arms import seed_of
from ascl_sweep.analysis.comparison import DATASET, Arm
from ascl_sweep.analysis.table import AblationTable
from ascl_sweep.contracts import UNSCORED_STATES, RunState
from ascl_sweep.report.formats.json import comparison_data
from ascl_sweep.report.report import PlainData, Report

ARM_COLUMNS = (
    *("sweep", "scale", "metric", "epoch", "arm", "seeds", "n", "planned"),
    *("mean", "sd", "mean_low", "mean_high"),
    *("baseline", "pairs", "delta", "se", "df", "low", "high"),
    *("wins", "p", "corrected_p", "family", "alpha", "verdict", "seeds_needed"),
    *("device_hours", "epochs", "stopped", "diverged", "failed", "lost"),
    *("paper", "difference", "paper_inside", "notes"),
)
COST_COLUMNS = ("backprops", "ema", "step_ms", "memory_gb")
RUN_COLUMNS = (
    *("sweep", "scale", "phase", "arm", "seed", "run_id", "state"),
    *("metric", "epoch", "scored_on", "score"),
)
MORE_RUN_COLUMNS = (
    *("epochs_done", "device_hours", "train_seconds", "eval_seconds", "images_per_second"),
    *("peak_memory_gb", "workers", "device", "backprops", "ema"),
    *("audit", "stopped_because", "commit", "dirty", "ascl_sweep", "torch", "ray"),
)


def arm_columns(report: Report) -> tuple[str, ...]:
    """Return the columns of `arm_rows`; step costs only if a table compares methods."""
    costs = any(sweep.table and sweep.table.has_costs for sweep in report.sweeps)
    return (*ARM_COLUMNS, *COST_COLUMNS) if costs else ARM_COLUMNS


def arm_rows(report: Report) -> Iterator[PlainData]:
    """Yield one row per arm; missing values are None."""
    columns = arm_columns(report)
    for sweep in report.sweeps:
        for arm in sweep.table.arms if sweep.table else ():
            assert sweep.table is not None
            row = dict.fromkeys(columns) | _arm_row(arm, sweep.table)
            assert len(row) == len(columns)
            yield row


def _arm_row(arm: Arm, table: AblationTable) -> PlainData:
    against = comparison_data(arm) or {}
    same = (
        *("delta", "se", "df", "low", "high", "wins"),
        *("p", "corrected_p", "family", "alpha", "verdict", "seeds_needed"),
    )
    return {
        "sweep": table.sweep,
        "scale": table.scale,
        "metric": table.metric.name,
        "epoch": table.epoch,
        "arm": arm.label,
        "seeds": " ".join(map(str, arm.scores)),
        "n": arm.n,
        "planned": arm.planned,
        "mean": arm.mean,
        "sd": arm.sd,
        "mean_low": arm.interval and arm.interval.low,
        "mean_high": arm.interval and arm.interval.high,
        "baseline": against.get("baseline", arm.label if arm.is_baseline else None),
        "pairs": against.get("n"),
        **{name: against.get(name) for name in same},
        "device_hours": arm.device_hours,
        "epochs": arm.epochs,
        **{str(state): arm.states.get(state, 0) for state in UNSCORED_STATES},
        "paper": arm.paper and arm.paper.value,
        "difference": arm.paper and arm.paper.difference,
        "paper_inside": arm.paper and arm.paper.inside,
        "notes": " | ".join(table.notes[mark] for mark in arm.marks),
        **({} if arm.cost is None else asdict(arm.cost)),
    }


# ---------------------------------------------------------------- runs


def run_columns(report: Report) -> tuple[str, ...]:
    """Return the columns of `run_rows`, with the dataset and the config keys that sweeps vary."""
    return (*RUN_COLUMNS, *_varied_keys(report), *MORE_RUN_COLUMNS)


def run_rows(report: Report) -> Iterator[PlainData]:
    """Yield one row per run, with the score that the table or the search uses, if it is complete.

    A run of several sweeps has a row in each. Scores of metrics in percent are in percent. A config
    key without effect on the run, such as τ' for MoCo, is None.
    """
    columns, keys = run_columns(report), _varied_keys(report)
    for sweep in report.sweeps:
        arms = {i: arm for arm in (sweep.table.arms if sweep.table else ()) for i in arm.run_ids}
        trials = {t.run_id: t for t in (sweep.search.trials if sweep.search else ())}
        for run in sweep.runs:
            row: PlainData = dict.fromkeys(columns)
            row |= {key: run.config.get(key) for key in keys if key not in run.idle}
            row |= {name: getattr(run, name) for name in MORE_RUN_COLUMNS if name != "epochs_done"}
            row |= {
                "sweep": sweep.sweep.name,
                "scale": run.scale,
                "phase": run.phase,
                "seed": seed_of(run),
                "run_id": run.run_id,
                "state": str(run.state),
                "scored_on": "holdout" if run.config.get("data.holdout") else "test",
                "epochs_done": run.epochs,
            }
            complete = run.state == RunState.DONE
            if run.run_id in arms:
                assert sweep.table is not None
                arm = arms[run.run_id]
                row |= {"arm": arm.label, "metric": sweep.table.metric.name}
                row |= {"epoch": sweep.table.epoch}
                row |= {"score": arm.scores.get(seed_of(run)) if complete else None}
            elif run.run_id in trials:
                trial = trials[run.run_id]
                row |= {"arm": trial.label, "metric": "knn_top1", "epoch": "last"}
                row |= {"score": trial.score if complete else None}
            assert len(row) == len(columns)
            yield row


def _varied_keys(report: Report) -> list[str]:
    """Return the dataset and the keys that differ between a sweep's runs, besides the seed."""
    keys = [DATASET]
    for sweep in report.sweeps:
        keys += [key for key in sweep.digest.axes if any(key in run.config for run in sweep.runs)]
        keys += [key for arm in (sweep.table.arms if sweep.table else ()) for key in arm.values]
    return list(dict.fromkeys(keys))
