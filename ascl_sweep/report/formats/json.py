"""JSON: the whole report as data, including the score of every seed."""

import json
from dataclasses import asdict

from ascl_sweep.analysis import labels
from ascl_sweep.analysis.comparison import DATASET, Arm
from ascl_sweep.analysis.inference import Inference
from ascl_sweep.analysis.search_summary import SearchSummary
from ascl_sweep.analysis.table import AblationTable
from ascl_sweep.report.findings import describe_findings
from ascl_sweep.report.formats.base import DEFAULT_TARGET, Format, Target
from ascl_sweep.report.provenance import NotAReport, StoredReport, build_command, seal
from ascl_sweep.report.report import PlainData, Report, SweepReport
from ascl_sweep.report.sweep_tables import consistent_mean

VERSION = 2
"""Version of the fields."""


class Json(Format):
    name = "json"
    suffixes = (".json",)

    def render(self, report: Report, target: Target = DEFAULT_TARGET) -> str:
        data = report_data(report)
        header = seal(build_command(report, self.name), _canonical(data))
        data = {"ascl_sweep_report": VERSION, "command": header, **data}
        return _indented(data) + "\n"

    def read(self, text: str) -> StoredReport | None:
        if not text.startswith("{"):
            return None
        try:
            data = json.loads(text)
        except ValueError as error:
            raise NotAReport(
                f"it is truncated or was edited and is not valid JSON: {error}"
            ) from error
        version, header = data.pop("ascl_sweep_report", None), str(data.pop("command", ""))
        if isinstance(version, int) and version > VERSION:
            raise NotAReport(
                f"it has report format {version}, this version reads {VERSION}; upgrade ascl-sweep"
            )
        return StoredReport(self.name, header, _canonical(data), _indented(data))


FORMAT = Json()


def _indented(data: PlainData) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)


def _canonical(data: PlainData) -> str:
    """Serialize the data for the checksum, independent of the file's layout."""
    return json.dumps(data, sort_keys=True)


def report_data(report: Report) -> PlainData:
    """Return the whole report as data, independent of place and time."""
    return {
        "options": asdict(report.options),
        "unread_files": len(report.problems),
        "sweeps": [_sweep(sweep) for sweep in report.sweeps],
        **{appendix.name: list(appendix.data) for appendix in report.appendices},
    }


def _sweep(found: SweepReport) -> PlainData:
    return {
        "name": found.sweep.name,
        "scale": found.sweep.scale,
        "states": {str(state): count for state, count in found.states.items()},
        "table": None if found.table is None else _table(found.table),
        "search": None if found.search is None else _search(found.search),
    }


def _table(table: AblationTable) -> PlainData:
    grid = table.grid
    return {
        "metric": table.metric.name,
        "unit": table.metric.unit,
        "epoch": table.epoch,
        "region": table.region if table.metric.percent else None,
        "findings": list(describe_findings(table)),
        "caption": list(table.caption),
        "provenance": table.provenance,
        "arms": [_arm(arm, table) for arm in table.arms],
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
        "correlations": {
            labels.value_label(DATASET, dataset): r for dataset, r in table.correlations.items()
        },
        "effects": [
            {
                "dataset": grid.dataset,
                "effect": effect.name,
                "kind": effect.kind,
                **(inference_data(effect.inference) if effect.inference else {}),
            }
            for grid in table.factorials
            for effect in grid.effects
        ],
        "ranks": None if table.ranks is None else json.loads(json.dumps(asdict(table.ranks))),
    }


def _arm(arm: Arm, table: AblationTable) -> PlainData:
    return {
        "label": arm.label,
        "values": dict(arm.values),
        "scores": {str(seed): score for seed, score in arm.scores.items()},
        "n": arm.n,
        "planned": arm.planned,
        "mean": arm.mean,
        "consistent_mean": consistent_mean(table, arm),
        "sd": arm.sd,
        "interval": None if arm.interval is None else asdict(arm.interval),
        "is_baseline": arm.is_baseline,
        "comparison": comparison_data(arm),
        "bold": arm.bold,
        "paper": None if arm.paper is None else {**asdict(arm.paper), "notes": [*arm.paper.notes]},
        "device_hours": arm.device_hours,
        "epochs": arm.epochs,
        "states": {str(state): count for state, count in arm.states.items()},
        "marks": list(arm.marks),
        "run_ids": list(arm.run_ids),
        **({} if arm.tried is None else {"tried": arm.tried}),
        **({} if arm.cost is None else {"cost": asdict(arm.cost)}),
    }


def comparison_data(arm: Arm) -> PlainData | None:
    if arm.comparison is None:
        return None
    return {
        "baseline": arm.comparison.baseline,
        **inference_data(arm.comparison.inference),
        "taken_from": arm.comparison.taken_from,
        "unpaired": list(arm.comparison.unpaired),
        "planned": arm.comparison.planned,
        "lost": list(arm.comparison.lost),
    }


def inference_data(inference: Inference) -> PlainData:
    estimate = inference.estimate
    return {
        "n": estimate.n,
        "delta": estimate.mean,
        "se": estimate.se,
        "df": estimate.df,
        "low": inference.interval and inference.interval.low,
        "high": inference.interval and inference.interval.high,
        "wins": estimate.wins,
        "p": estimate.p,
        "corrected_p": inference.p,
        "family": inference.family,
        "alpha": inference.alpha,
        "verdict": inference.verdict,
        "seeds_needed": inference.seeds_needed,
    }


def _search(found: SearchSummary) -> PlainData:
    """Return a search as data; `best` lists run ids of `trials`."""
    return {
        "rule": found.rule,
        "scored_on": "holdout",
        "seeds": 1,
        "planned": found.planned,
        "trials": [{**asdict(trial), "values": dict(trial.values)} for trial in found.trials],
        "best": [trial.run_id for trial in found.best],
        "states": {str(state): count for state, count in found.states.items()},
        "epochs_spent": found.epochs_spent,
        "epochs_full": found.epochs_full,
        "all_epochs": found.all_epochs,
        "grid_epochs": found.grid_epochs,
        "importances": dict(found.importances),
        "finalists": found.finalists,
        "per": found.per,
        "audits": found.audits,
        "false_stops": None if found.false_stops is None else asdict(found.false_stops),
        "expected_best": [
            {**asdict(best), "scores": {str(n): score for n, score in best.scores.items()}}
            for best in found.expected_best
        ],
    }
