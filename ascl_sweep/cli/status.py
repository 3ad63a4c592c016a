"""`ascl-sweep status`: show the progress of the sweeps in a store."""

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ascl_sweep.cli.common import AsJson, Names, StoreOption, data, select_sweeps, warn
from ascl_sweep.contracts import RunState, Scalar
from ascl_sweep.text import one_line, percent

if TYPE_CHECKING:
    from ascl_sweep.contracts import RunRow, SweepRow

LOOK_SECONDS = 2.0


def status(
    names: Names = None,
    store_address: StoreOption = "results",
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every 2 seconds until Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the progress of the sweeps in a store."""
    found = status_of(store_address, names)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    shown = draw_status(found)
    if not watch:
        data.print(shown)
        return
    with Live(shown, console=data, auto_refresh=False, transient=False) as live:
        try:
            while True:
                time.sleep(LOOK_SECONDS)
                note = ""
                try:
                    shown = draw_status(status_of(store_address, names))
                except OSError as error:  # a remote store may be unreachable for a while
                    note = f"[yellow]{escape(store_address)} is unreachable: {one_line(error)}[/]"
                live.update(Group(shown, *filter(None, [note])), refresh=True)
        except KeyboardInterrupt:
            pass


@dataclass(frozen=True)
class RunStatus:
    """A run that is running or has failed."""

    run_id: str
    phase: str
    seed: Scalar
    epochs_done: int
    epochs: Scalar
    knn_top1: float | None
    error: str | None
    log: str | None


@dataclass(frozen=True)
class SweepStatus:
    name: str
    scale: str
    planned: int
    states: dict[str, int]
    """Number of runs by state."""
    device_hours: float
    running: list[RunStatus]
    failed: list[RunStatus]
    looks: dict[str, object] | None = None
    """See `LookStatus.to_dict`; None if the sweep lists its seeds, or has no final runs yet."""


@dataclass(frozen=True)
class StoreStatus:
    """The output of `--json`."""

    store: str
    driver: str | None
    sweeps: list[SweepStatus]


def status_of(store_address: str, names: list[str] | None) -> StoreStatus:
    from ascl_sweep.store.store import Store

    store = Store(store_address)
    chosen = select_sweeps(store, names)
    driver = store.driver()
    rows = list(store.runs().values())
    sweeps = []
    for name, sweep in chosen.items():
        own = [row for row in rows if name in row.sweeps]
        running = [row for row in own if row.state == RunState.RUNNING]
        states = Counter(str(row.state) for row in own)
        if driver is None and running:
            states[RunState.LOST] += states.pop(RunState.RUNNING)
        sweeps.append(
            SweepStatus(
                name=name,
                scale=sweep.scale,
                planned=sweep.planned,
                states=dict(states),
                device_hours=sum(row.device_hours for row in own),
                running=[_run_status(row) for row in running if driver is not None],
                failed=[_run_status(row) for row in own if row.state == RunState.FAILED],
                looks=_look_status(sweep, own),
            )
        )
    for problem in store.problems:
        warn(problem)
    return StoreStatus(store.address, str(driver) if driver else None, sweeps)


def _look_status(sweep: "SweepRow", rows: "list[RunRow]") -> dict[str, object] | None:
    from ascl_sweep.spec.summary import SweepSummary

    digest = SweepSummary.of_json(sweep.digest)
    finals = [row for row in rows if row.phase == "final" and row.scale == sweep.scale]
    if not digest.looks or not finals:
        return None
    from ascl_sweep.analysis.looks import looks_of  # scipy takes a moment to load

    return looks_of(digest, finals).to_dict()


def _run_status(row: "RunRow") -> RunStatus:
    return RunStatus(
        run_id=row.run_id,
        phase=row.phase,
        seed=row.config.get("seed"),
        epochs_done=row.epochs,
        epochs=row.config.get("epochs"),
        knn_top1=row.knn_last_top1,
        error=row.error,
        log=row.log,
    )


def draw_status(found: StoreStatus) -> Group:
    """Render the status as text and a table."""
    driver = f"driver: {found.driver}" if found.driver else "no driver is running"
    parts: list[RenderableType] = [f"{escape(found.store)}: {escape(driver)}"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    seen = {state for sweep in found.sweeps for state in sweep.states} | {"done"}
    states = [state for state in RunState if state in seen]
    for title in ("sweep", "runs", *states, "device hours"):
        table.add_column(title, justify="left" if title == "sweep" else "right", no_wrap=True)
    for sweep in found.sweeps:
        name = sweep.name + (" (laptop)" if sweep.scale == "laptop" else "")
        cells = [str(sweep.states.get(state, 0)) for state in states]
        planned = f"{'≤' if sweep.looks else ''}{sweep.planned}"
        table.add_row(name, planned, *cells, f"{sweep.device_hours:.2f}")
    parts.append(table)
    parts += [
        f"{escape(sweep.name)}: {escape(str(sweep.looks['summary']))}"
        for sweep in found.sweeps
        if sweep.looks
    ]
    for sweep in found.sweeps:
        for run in sweep.running:
            progress = f"epoch {run.epochs_done}/{run.epochs} kNN {percent(run.knn_top1)}"
            parts.append(f"running {run.run_id} {progress}")
        for run in sweep.failed:
            parts.append(
                f"failed  {run.run_id} {escape(run.error or '')} ({escape(run.log or '')})"
            )
    return Group(*parts)
