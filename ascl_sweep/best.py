"""The best configuration of a sweep: by the holdout where runs were searched, else by the mean."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml

from ascl_sweep.ledger import RunRow, Scalar

COLUMNS = {"knn_top1": "knn_last_top1", "probe_top1": "probe_top1"}
# Runs of one configuration, those of a search and its final ones, differ in these only.
OF_NO_ARM = ("seed", "data.holdout", "data.root", "runtime.micro_batches")


@dataclass(frozen=True)
class Arm:
    """A configuration and what its complete runs came to."""

    config: Mapping[str, Scalar]
    differs: Mapping[str, Scalar]
    """Its values at the keys in which the sweep's arms differ."""
    mean: float
    sd: float | None
    n: int
    scored: str


def best_arms(rows: Iterable[RunRow], sweep: str, metric: str, scale: str = "full") -> list[Arm]:
    """A sweep's arms, best first; a search is judged by its search runs, never by test.

    Like is compared with like: runs of one scale, and of a search those of its present length.
    Arms that lack seeds come last.
    """
    if metric not in COLUMNS:
        raise ValueError(f"--metric must be one of {', '.join(COLUMNS)}, got {metric!r}")
    own = [row for row in rows if sweep in row.sweeps and row.scale == scale]
    done = [row for row in own if row.state == "done"]
    searched = [row for row in own if row.phase == "search"]
    if searched:
        newest = max(searched, key=lambda row: row.created or 0).config.get("epochs")
        searched = [r for r in searched if r.state == "done" and r.config.get("epochs") == newest]
    groups: dict[Any, list[RunRow]] = {}
    for row in searched or done:
        key = tuple(sorted((k, repr(v)) for k, v in row.config.items() if k not in OF_NO_ARM))
        groups.setdefault(key, []).append(row)
    keys = {k for group in groups.values() for k in group[0].config if k not in OF_NO_ARM}
    varied = sorted(
        k for k in keys if len({repr(group[0].config.get(k)) for group in groups.values()}) > 1
    )
    arms = []
    for group in groups.values():
        values = [v for row in group if (v := getattr(row, COLUMNS[metric])) is not None]
        if not values:
            continue
        config = group[0].config
        arms.append(
            Arm(
                config=config,
                differs={k: config[k] for k in varied if k in config},
                mean=fmean(values),
                sd=stdev(values) if len(values) > 1 else None,
                n=len(values),
                scored="holdout" if config.get("data.holdout") else "test",
            )
        )
    return sorted(arms, key=lambda a: (-a.n, -a.mean))


def export_yaml(arm: Arm, path: Path) -> None:
    """Write an arm as a config that `ascl-sweep train` reads, trained on all of train."""
    tree: dict[str, Any] = {}
    for key, value in arm.config.items():
        *parents, leaf = key.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        is_list = key.startswith("method.") and str(value).startswith("[")  # see `config_values`
        place[leaf] = json.loads(str(value)) if is_list else value
    tree.setdefault("data", {})["holdout"] = 0.0
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
