"""`ascl-sweep validate`, `plan`, `schema`: what sweep files say, and what they would take."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ascl_sweep.cli.app import (
    AsJson,
    Files,
    Overrides,
    ScaleOption,
    StoreOption,
    app,
    data,
    sentences,
    talk,
)
from ascl_sweep.labels import arm, duration

if TYPE_CHECKING:
    from ascl_sweep.ledger import Ledger
    from ascl_sweep.plan import Plan
    from ascl_sweep.spec import SweepSpec


def load_specs(files: list[Path], overrides: list[str], scale: str) -> list["SweepSpec"]:
    """Read sweep files; the faults of all of them at once."""
    from ascl.faults import Fault, Faulty
    from ascl_sweep.spec import load_spec

    if scale not in ("full", "laptop"):
        raise ValueError(f"--scale must be full or laptop, got {scale!r}")
    specs: list[SweepSpec] = []
    faults: list[Fault] = []
    for file in files:
        try:
            specs.append(load_spec(file, overrides, scale))  # type: ignore[arg-type]
        except Faulty as faulty:
            faults += faulty.faults
    for name, count in Counter(spec.name for spec in specs).items():
        if count > 1:
            raise ValueError(f"each sweep needs a name of its own, got {name!r} in {count} files")
    if faults:
        raise Faulty(faults)
    return specs


@app.command()
def validate(files: Files, overrides: Overrides = None, scale: ScaleOption = "full") -> None:
    """Check sweep files: every fault at once, and both ends of every axis."""
    with sentences():
        from ascl_sweep.plan import planned_runs

        for spec in load_specs(files, overrides or [], scale):
            talk.print(f"{escape(spec.file)}: valid, {planned_runs(spec)} runs")


@app.command()
def schema() -> None:
    """Print the JSON Schema of a sweep file, for editors."""
    with sentences():
        from ascl_sweep.spec import json_schema

        typer.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


@app.command()
def plan(
    files: Files,
    store: StoreOption = "results",
    overrides: Overrides = None,
    scale: ScaleOption = "full",
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Time a few steps here for what was never run.")
    ] = False,
    cluster: Annotated[Path | None, typer.Option(help="A cluster file that states prices.")] = None,
    as_json: AsJson = False,
) -> None:
    """What sweeps would run: what is there already, cost, and what their seeds can show."""
    with sentences():
        from ascl_sweep.ledger import Ledger

        specs = load_specs(files, overrides or [], scale)
        made = plan_of(specs, Ledger(store), calibrate=calibrate)
        price = _price(cluster, made) if cluster else None
        if as_json:
            typer.echo(json.dumps(asdict(made) | {"dollars": price}, default=dict))
            return
        data.print(_runs_table(made))
        for line in plan_lines(made):
            data.print(line, soft_wrap=True)
        if price is not None:
            data.print(f"about ${price:,.2f} at the prices of {escape(str(cluster))}")


def plan_of(specs: list["SweepSpec"], ledger: "Ledger", *, calibrate: bool = False) -> "Plan":
    from ascl_sweep import plan as planning
    from ascl_sweep.agenda import curves_of

    rows, curves = ledger.runs(), curves_of(ledger)
    timings: dict[tuple[Any, ...], float] = {}
    if calibrate:
        known = planning.seconds_per_epoch(rows.values())
        for key, config in planning.kinds(specs).items():
            if key not in known:
                with talk.status("timing a few steps …"):
                    timings[key] = planning.calibrate(config)
    return planning.make_plan(specs, rows, curves, timings)


def _runs_table(made: "Plan") -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("run", "sweeps", "phase", "arm", "seed", "epochs", "state"):
        table.add_column(title, overflow="fold")
    for run in made.runs:
        table.add_row(
            run.run_id,
            ", ".join(run.sweeps),
            run.phase,
            arm(run.changes),
            str(run.seed),
            str(run.epochs),
            run.state,
        )
    return table


def plan_lines(made: "Plan") -> Iterator[str]:
    """A plan in a few sentences."""
    from ascl_sweep.agenda import OVER

    for sweep in made.sweeps:
        scale = " at laptop scale" if sweep.scale == "laptop" else ""
        later = f", {sweep.later} of them named by the search" if sweep.later else ""
        yield f"[bold]{escape(sweep.name)}[/]{scale}: {sweep.runs} runs{later}"
        if sweep.smallest_p is not None and sweep.smallest_effect is not None:
            yield (
                f"  its seeds can show p ≥ {sweep.smallest_p:.2g} (sign-flip), and differences "
                f"from {sweep.smallest_effect:.1f} standard deviations on (paired t, 80% power)"
            )
        for warning in sweep.warnings:
            yield f"  [yellow]note:[/] {escape(warning)}"
    there = sum(run.state in OVER for run in made.runs)
    shared = made.asked - len(made.runs) - sum(sweep.later for sweep in made.sweeps)
    parts = [f"{made.epochs} epochs to train at most"]
    if there:
        parts.append(f"{there} runs are there already")
    if shared:
        parts.append(f"{shared} are shared between sweeps")
    if made.device_hours is not None and made.epochs:
        parts.append(f"about {duration(3600 * made.device_hours)} of device time")
    elif made.epochs:
        parts.append("time unknown: no run like these was timed (try --calibrate)")
    parts.append(f"{made.disk_bytes / 1e6:,.0f} MB of checkpoints")
    yield "; ".join(parts)


def _price(path: Path, made: "Plan") -> float | None:
    """Dollars, if the cluster file says what an hour of its GPU nodes costs."""
    from ascl.faults import read_yaml

    tree, _ = read_yaml(path)
    try:
        prices = tree["provider"]["price_per_hour"]
        types = tree.get("available_node_types", {})  # one's own machines have none
        per_gpu = min(
            float(price) / float(types.get(name, {}).get("resources", {}).get("GPU") or 1)
            for name, price in prices.items()
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError(
            f"{path} states no price; add provider.price_per_hour with dollars for each node "
            "type, e.g. {gpu_worker: 0.53}"
        ) from None
    return None if made.device_hours is None else made.device_hours * per_gpu
