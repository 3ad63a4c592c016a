"""Metrics that a table can show. To add a metric, add an entry to `METRICS`."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

from ascl.errors import unknown_name
from ascl_sweep.errors import UsageError


@dataclass(frozen=True)
class Metric:
    """A number of a run that a table can show."""

    name: str
    label: str
    last: str | None = None
    """Column of the runs table with the value after the last epoch. None: read the epochs table."""
    best: str | None = None
    """Column of the runs table with the value at the best epoch. None: there is no such value."""
    percent: bool = True
    higher_is_better: bool = True

    @property
    def unit(self) -> str:
        return "%" if self.percent else ""


METRICS = {
    metric.name: metric
    for metric in (
        Metric("knn_top1", "online kNN top-1", "knn_last_top1", "knn_best_top1"),
        Metric("probe_top1", "linear-probe top-1", "probe_top1", "probe_best_top1"),
        Metric("test_top1", "test top-1 of the supervised classifier"),
        Metric("purity", "label purity"),
        Metric("neighbour_top1", "nearest neighbors of the same class"),
        Metric("confidence", "confidence c", percent=False),
        Metric("effective_neighbours", "effective neighbors", percent=False),
        Metric("spread", "feature spread", percent=False),
        Metric("loss", "training loss", percent=False, higher_is_better=False),
        Metric("images_per_second", "images/s", "images_per_second", percent=False),
        Metric(
            "peak_memory_gb",
            "peak memory in GB",
            "peak_memory_gb",
            percent=False,
            higher_is_better=False,
        ),
    )
}


def find_metric(name: str, epoch: str = "last") -> Metric:
    """Return a metric by name; raise UsageError if the metric has no value at that epoch."""
    if name not in METRICS:
        raise UsageError(unknown_name("metric", name, METRICS))
    metric = METRICS[name]
    if epoch == "best" and metric.best is None:
        known = ", ".join(m.name for m in METRICS.values() if m.best)
        raise UsageError(f"--epoch best is available only for {known}, got the metric {name}")
    return metric


def _check_name(name: str) -> str:
    if name not in METRICS:
        raise ValueError(unknown_name("metric", name, METRICS))
    return name


MetricName = Annotated[
    str,
    AfterValidator(_check_name),
    WithJsonSchema({"enum": list(METRICS), "type": "string"}),
]
"""Name of a metric in a sweep file; `--metric` accepts the same names."""
