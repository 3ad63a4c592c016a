"""A report as plain data: what JSON holds, and the long table that CSV holds."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ascl_sweep.report.ablation import AblationTable, Arm
from ascl_sweep.report.judged import Finding
from ascl_sweep.report.report import Report, SweepReport
from ascl_sweep.report.searches import SearchSummary

Plain = dict[str, Any]


def plain(report: Report) -> Plain:
    """The whole report, scores by seed included; nothing that hangs on where or when it is made."""
    return {
        "options": {
            "metric": report.options.metric,
            "epoch": report.options.epoch,
            "baseline": None if report.options.baseline is None else dict(report.options.baseline),
            "region": report.options.region,
        },
        "unread_files": len(report.problems),
        "sweeps": [_sweep(sweep) for sweep in report.sweeps],
        "claims": [_claim(found, part.scale) for part in report.claims for found in part.findings],
    }


def _claim(found: Finding, scale: str) -> Plain:
    return {
        "name": f"{found.claim.text} ({scale})",
        "claim": found.claim.text,
        "scale": scale,
        "source": found.claim.source,
        "metric": found.claim.score,
        "outcome": found.outcome,
        "why": found.why,
        "comparisons": [
            {
                "what": duel.label,
                **asdict(duel.result),
                "corrected_p": duel.corrected_p,
                "verdict": duel.verdict,
            }
            for duel in found.duels
        ],
    }


def _sweep(found: SweepReport) -> Plain:
    return {
        "name": found.sweep.name,
        "scale": found.sweep.scale,
        "states": dict(found.states),
        "table": None if found.table is None else _table(found.table),
        "search": None if found.search is None else _search(found.search),
    }


def _table(table: AblationTable) -> Plain:
    grid = table.grid
    return {
        "metric": table.metric.name,
        "unit": table.metric.unit,
        "epoch": table.epoch,
        "region": table.region if table.metric.percent else None,
        "caption": list(table.caption),
        "arms": [_arm(arm) for arm in table.arms],
        "grid": {
            "corner": grid.corner,
            "rows": list(grid.rows),
            "columns": list(grid.columns),
            "places": [
                {"row": grid.rows[i], "column": grid.columns[j], "arm": table.arms[arm].label}
                for (i, j), arm in sorted(grid.places.items())
            ],
        },
        "notes": dict(table.notes),
        "remarks": list(table.remarks),
        "paper": table.paper,
        "like_the_paper": table.like_the_paper,
        "orderings": [asdict(order) for order in table.orderings],
    }


def _arm(arm: Arm) -> Plain:
    return {
        "label": arm.label,
        "values": dict(arm.values),
        "scores": {str(seed): score for seed, score in arm.scores.items()},
        "n": arm.n,
        "planned": arm.planned,
        "mean": arm.mean,
        "sd": arm.sd,
        "interval": None if arm.interval is None else asdict(arm.interval),
        "is_baseline": arm.is_baseline,
        "comparison": _comparison(arm),
        "bold": arm.bold,
        "paper": None if arm.paper is None else {**asdict(arm.paper), "notes": [*arm.paper.notes]},
        "device_hours": arm.device_hours,
        "epochs": arm.epochs,
        "states": dict(arm.states),
        "marks": list(arm.marks),
        "run_ids": list(arm.run_ids),
        **({} if arm.cost is None else {"cost": asdict(arm.cost)}),
    }


def _comparison(arm: Arm) -> Plain | None:
    if arm.comparison is None:
        return None
    result = arm.comparison.result
    return {
        "baseline": arm.comparison.baseline,
        "n": result.n,
        "delta": result.mean,
        "low": result.low,
        "high": result.high,
        "bootstrap": arm.comparison.bootstrap and asdict(arm.comparison.bootstrap),
        "wins": result.wins,
        "p": result.p,
        "corrected_p": arm.comparison.corrected_p,
        "verdict": arm.comparison.verdict,
        "unpaired": list(arm.comparison.unpaired),
    }


def _search(found: SearchSummary) -> Plain:
    """Trials are named once, by their runs; the best ones are those."""
    return {
        "rule": found.rule,
        "scored_on": "holdout",
        "seeds": 1,
        "planned": found.planned,
        "trials": [{**asdict(trial), "values": dict(trial.values)} for trial in found.trials],
        "best": [trial.run_id for trial in found.best],
        "states": dict(found.states),
        "epochs_spent": found.epochs_spent,
        "epochs_full": found.epochs_full,
        "all_epochs": found.all_epochs,
        "grid_epochs": found.grid_epochs,
        "importances": dict(found.importances),
        "finalists": found.finalists,
        "per": found.per,
        "audits": found.audits,
        "false_stops": found.false_stops,
        "false_stop_rate": None if found.false_stop_rate is None else asdict(found.false_stop_rate),
    }


# ---------------------------------------------------------------- the long table


COLUMNS = (
    *("sweep", "scale", "metric", "epoch", "arm", "seeds", "n", "planned"),
    *("mean", "sd", "mean_low", "mean_high"),
    *("baseline", "pairs", "delta", "low", "high", "bootstrap_low", "bootstrap_high"),
    *("wins", "p", "corrected_p", "verdict"),
    *("device_hours", "epochs", "stopped", "diverged", "failed", "lost"),
    *("paper", "difference", "paper_inside", "notes"),
)
COST_COLUMNS = ("backprops", "ema", "step_ms", "memory_gb")


def columns_of(report: Report) -> tuple[str, ...]:
    """The columns of the long table; what steps cost only where a table compares methods."""
    costs = any(sweep.table and sweep.table.has_costs for sweep in report.sweeps)
    return (*COLUMNS, *COST_COLUMNS) if costs else COLUMNS


def long_rows(report: Report) -> Iterator[Plain]:
    """A row for each arm, in plain columns; what an arm does not have is None."""
    columns = columns_of(report)
    for sweep in report.sweeps:
        for arm in sweep.table.arms if sweep.table else ():
            assert sweep.table is not None
            row = dict.fromkeys(columns) | _long_row(arm, sweep.table)
            assert len(row) == len(columns)
            yield row


def _long_row(arm: Arm, table: AblationTable) -> Plain:
    against = _comparison(arm) or {}
    bootstrap = against.get("bootstrap") or {}
    states = ("stopped", "diverged", "failed", "lost")
    same = ("delta", "low", "high", "wins", "p", "corrected_p", "verdict")
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
        "bootstrap_low": bootstrap.get("low"),
        "bootstrap_high": bootstrap.get("high"),
        "device_hours": arm.device_hours,
        "epochs": arm.epochs,
        **{state: arm.states.get(state, 0) for state in states},
        "paper": arm.paper and arm.paper.value,
        "difference": arm.paper and arm.paper.difference,
        "paper_inside": arm.paper and arm.paper.inside,
        "notes": " | ".join(table.notes[mark] for mark in arm.marks),
        **({} if arm.cost is None else asdict(arm.cost)),
    }
