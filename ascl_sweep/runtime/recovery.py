"""Rebuild the rows of runs from their epochs, after a crash or from a damaged store."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ascl.config import RunConfig
from ascl.errors import ConfigError
from ascl.metrics import EpochMetrics
from ascl.yaml_io import parse_yaml
from ascl_sweep.clock import unix_time
from ascl_sweep.contracts import RunRow, RunState
from ascl_sweep.runtime.records import claim_runs, summarize_epochs
from ascl_sweep.search.study import Study
from ascl_sweep.spec.sweep import SweepSpec
from ascl_sweep.store.store import Store

_CONFIG, _METRICS = "config.yaml", "metrics.jsonl"  # written by ascl.checkpoint beside a checkpoint


def lost_rows(rows: Mapping[str, RunRow], with_epochs: Iterable[str]) -> set[str]:
    """Return the ids of the runs that have epochs, but no row or the row of an unstarted run."""
    unstarted = {
        run_id
        for run_id, row in rows.items()
        if not row.epochs and not row.state.is_over and row.state is not RunState.FAILED
    }
    return {run_id for run_id in with_epochs if run_id not in rows or run_id in unstarted}


def rebuild_rows(
    store: Store,
    rows: Mapping[str, RunRow],
    epochs: Mapping[str, Sequence[EpochMetrics]],
    specs: Iterable[SweepSpec],
) -> dict[str, RunRow]:
    """Rebuild the rows of runs from their epochs. Returns the rows that could be rebuilt.

    The config of a run comes from its work folder, or from the sweep that includes the run. A run
    with all epochs is done. Another run is `lost` and resumes: why it ended is not known.

    Args:
        store: Store of the work folders.
        rows: All rows of the store.
        epochs: Epochs of the runs in `lost_rows`.
        specs: Sweeps that may include the runs.
    """
    specs = list(specs)
    searches = tuple(spec.name for spec in specs if spec.is_search)
    known = dict(rows)
    for run_id, run_epochs in epochs.items():
        if run_id in rows:
            known[run_id] = _recover(rows[run_id], run_epochs)
        elif (config := read_config(store, run_id)) is not None:
            search = config.data.holdout > 0
            row = RunRow(
                run_id,
                searches if search else (),  # the study of each removes its name if it is wrong
                config.flat_values(),
                phase="search" if search else "final",
                scale="full",
                idle=config.idle_keys(),
                created=unix_time(),
                log=store.log(run_id),
            )
            known[run_id] = _recover(row, run_epochs)
    curves = {i: {e.epoch: e.knn_top1 for e in own} for i, own in epochs.items()}
    for spec in specs:
        for row in claim_runs(Study(spec, known, dict(curves)), known):
            if row.run_id in epochs:
                scale = spec.scale if spec.name in row.sweeps else row.scale
                known[row.run_id] = _recover(replace(row, scale=scale), epochs[row.run_id])
    return {run_id: known[run_id] for run_id in epochs if run_id in known}


def _recover(row: RunRow, epochs: Sequence[EpochMetrics]) -> RunRow:
    done = len(epochs) == row.config["epochs"]
    row = replace(row, state=RunState.DONE if done else RunState.LOST)
    return summarize_epochs(row, epochs)


def read_config(store: Store, run_id: str) -> RunConfig | None:
    """Read the config in a run's work folder; None if there is none or it is of another run."""
    text = store.work_text(run_id, _CONFIG)
    try:
        config = RunConfig.of(parse_yaml(text)[0]) if text is not None else None
    except ConfigError:  # damaged, or of an incompatible version
        return None
    return config if config is not None and config.identity() == run_id else None


def read_metrics(store: Store, run_id: str) -> list[EpochMetrics]:
    """Read the epochs in a run's work folder, up to the first damaged line."""
    found = []
    for line in (store.work_text(run_id, _METRICS) or "").splitlines():
        try:
            found.append(EpochMetrics(**json.loads(line)))
        except (ValueError, TypeError):
            break
    return found
