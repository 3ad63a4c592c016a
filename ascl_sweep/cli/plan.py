"""`ascl-sweep plan`: show the runs of sweeps and their cost."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ascl_sweep.cli.common import (
    AsJson,
    Files,
    Overrides,
    ScaleOption,
    StoreOption,
    UntilDecided,
    check_store,
    data,
    load_specs,
    talk,
)
from ascl_sweep.contracts import RunState
from ascl_sweep.errors import UsageError
from ascl_sweep.text import duration, plural

if TYPE_CHECKING:
    from ascl_sweep.runtime.sweeps import PreparedSweeps
    from ascl_sweep.search.plan import Plan, SweepPlan


CALIBRATE = "Measure a few training steps of each kind of run that has no timing yet."


def plan(
    files: Files,
    store_address: StoreOption = "results",
    overrides: Overrides = None,
    scale: ScaleOption = "full",
    until_decided: UntilDecided = False,
    calibrate: Annotated[bool, typer.Option("--calibrate", help=CALIBRATE)] = False,
    cluster: Annotated[
        Path | None, typer.Option(help="Cluster file with prices; adds the cost in dollars.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the runs that sweeps would start, their cost, and the smallest detectable difference."""
    from ascl_sweep.runtime.sweeps import prepare_sweeps
    from ascl_sweep.store.store import Store

    specs = load_specs(files, overrides or [], scale, until_decided=until_decided)
    store = Store(store_address)
    check_store(store, store_address, will_write=False)
    prepared = prepare_sweeps(specs, store)
    made = prepared.plan(_calibrate(prepared) if calibrate else {})
    note_replaced(prepared, store_address)
    price = _price(cluster, made) if cluster else None
    if as_json:
        typer.echo(json.dumps(asdict(made) | {"dollars": price}, default=dict))
        return
    data.print(_runs_table(made))
    for line in plan_lines(made):
        data.print(line, soft_wrap=True)
    if price is not None:
        data.print(f"about ${price:,.2f} at the prices of {escape(str(cluster))}")


def _calibrate(prepared: "PreparedSweeps") -> dict[tuple[object, ...], float]:
    """Time a few steps of each kind of run without known timings."""
    from ascl_sweep.search import plan as planning

    known = planning.seconds_per_epoch(prepared.history.rows.values())
    with talk.status("timing a few steps …"):
        return {
            key: planning.calibrate(config)
            for key, config in planning.kinds(prepared.specs).items()
            if key not in known
        }


def _runs_table(made: "Plan") -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("run", "sweeps", "phase", "arm", "seed", "epochs", "state"):
        table.add_column(title, overflow="fold")
    for run in made.runs:
        table.add_row(
            run.run_id,
            ", ".join(run.sweeps),
            run.phase,
            escape(run.arm),
            str(run.seed),
            str(run.epochs),
            run.state,
        )
    return table


def _count_runs(sweep: "SweepPlan") -> str:
    """Count the runs of a sweep; for a search, by phase."""
    if not sweep.trials:
        return f"{'up to ' if sweep.looks else ''}{plural(sweep.runs, 'run')}"
    most = "up to " if sweep.proposed else ""
    at_most = "up to " if sweep.proposed or sweep.base_may_win or sweep.looks else ""
    total = f"{at_most}{plural(sweep.runs, 'run')}"
    if not sweep.finalists:
        return f"{total} of a search"
    finals = sweep.runs - sweep.trials
    return (
        f"{total}: {most}{sweep.trials} in the search, then {at_most}{finals} of its finalists "
        f"({plural(sweep.finalists, 'config')} × {plural(sweep.seeds, 'seed')})"
    )


def _interim(looks: Sequence[int]) -> str:
    """Return the looks before the last one; empty if there are none."""
    *counts, last = map(str, looks[:-1]) if len(looks) > 1 else [""]
    if not last:
        return ""
    listed = f"{', '.join(counts)} and {last}" if counts else last
    return f"interim look{'s' if counts else ''} after {listed} seeds; "


def plan_lines(made: "Plan") -> Iterator[str]:
    """Summarize a plan, one line per sweep and one for the total."""
    for sweep in made.sweeps:
        scale = " at laptop scale" if sweep.scale == "laptop" else ""
        yield f"[bold]{escape(sweep.name)}[/]{scale}: {_count_runs(sweep)}"
        if sweep.looks:
            yield (
                f"  {_interim(sweep.looks)}about {sweep.expected_runs:.0f} runs if each look "
                "decides half of the undecided comparisons"
            )
        if sweep.smallest_effect is not None:
            points = (
                f" = {sweep.smallest_points:.1f} points with the spread of the finished runs"
                if sweep.smallest_points is not None
                else ""
            )
            yield (
                f"  {plural(sweep.comparisons, 'comparison')}; smallest detectable difference "
                f"{sweep.smallest_effect:.1f} SD of the paired difference{points} (80% power)"
            )
        if sweep.correlation is not None:
            yield f"  runs with the same seed have a correlation of {sweep.correlation:.2f} so far"
        for warning in sweep.warnings:
            yield f"  [yellow]note:[/] {escape(warning)}"
    if not made.epochs:
        count = len(made.runs)
        yield f"nothing to train: {f'all {count} runs are' if count > 1 else 'the run is'} finished"
        return
    finished = sum(run.state.is_over for run in made.runs)
    shared = made.asked - len(made.runs) - sum(sweep.later for sweep in made.sweeps)
    looks = made.expected_epochs < made.epochs
    expected = f", about {made.expected_epochs:.0f} expected" if looks else ""
    parts = [f"{made.epochs} epochs to train at most{expected}"]
    if finished:
        parts.append(f"{plural(finished, 'run')} already finished")
    if shared:
        parts.append(f"{plural(shared, 'run')} shared between sweeps")
    if made.device_hours is not None:
        expected = (
            f", {duration(3600 * made.expected_hours)} expected"
            if looks and made.expected_hours is not None
            else ""
        )
        parts.append(f"about {duration(3600 * made.device_hours)} of device time{expected}")
    else:
        parts.append("time unknown: no similar run was timed (try `plan --calibrate`)")
    parts.append(f"{made.disk_bytes / 1e6:,.0f} MB of checkpoints")
    yield "; ".join(parts)


def note_replaced(prepared: "PreparedSweeps", store_address: str) -> None:
    """Report sweeps whose changed definition excludes runs that have finished."""
    recorded = prepared.store.sweeps()
    for study in prepared.studies:
        spec, old = study.spec, recorded.get(study.spec.name)
        if old is None or (old.text, old.overrides, old.scale) == (
            *(spec.text, spec.overrides, spec.scale),
        ):
            continue
        own, rows = study.own(), prepared.history.rows.values()
        dropped = sum(
            row.state == RunState.DONE and spec.name in row.sweeps and row.run_id not in own
            for row in rows
        )
        if dropped:
            runs = f"{dropped} finished runs are" if dropped > 1 else "1 finished run is"
            talk.print(
                f"[yellow]note:[/] replaces the definition of sweep {escape(repr(spec.name))} in "
                f"{escape(store_address)}; {runs} no longer part of it (results stay in the "
                "store). Rename the sweep to keep both."
            )


def _price(path: Path, made: "Plan") -> float | None:
    """Return the cost in dollars at the prices in a cluster file; None if the time is unknown."""
    from ascl.yaml_io import read_yaml

    tree, _ = read_yaml(path)
    try:
        prices = tree["provider"]["price_per_hour"]
        types = tree.get("available_node_types", {})  # absent in an on-premise cluster file
        per_gpu = min(
            float(price) / float(types.get(name, {}).get("resources", {}).get("GPU") or 1)
            for name, price in prices.items()
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UsageError(
            f"{path} has no prices; add provider.price_per_hour with dollars for each node type, "
            "e.g. {gpu_worker: 0.53}"
        ) from None
    return None if made.device_hours is None else made.device_hours * per_gpu
