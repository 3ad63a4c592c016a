"""`ascl-sweep status`, `best`, `replay`: how the sweeps of a store stand, and what they found."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ascl_sweep.cli.app import (
    BAD_INPUT,
    AsJson,
    Names,
    StoreOption,
    app,
    data,
    fail,
    sentences,
    sweeps_in,
    talk,
)
from ascl_sweep.labels import arm, one_line, percent

if TYPE_CHECKING:
    from ascl_sweep.ledger import Ledger, RunRow
    from ascl_sweep.replay import Interval

LOOK_SECONDS = 2.0


@app.command()
def status(
    names: Names = None,
    store: StoreOption = "results",
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds.")] = False,
    as_json: AsJson = False,
) -> None:
    """How the sweeps of a store stand."""
    with sentences():
        if as_json:
            typer.echo(json.dumps(status_of(store, names)))
            return
        if not watch:
            data.print(status_picture(status_of(store, names)))
            return
        shown = status_picture(status_of(store, names))  # what is wrong from the start ends it
        with Live(shown, console=data, auto_refresh=False, transient=False) as live:
            try:
                while True:
                    time.sleep(LOOK_SECONDS)
                    away = ""
                    try:
                        shown = status_picture(status_of(store, names))
                    except OSError as error:  # a far store may be away, and come back
                        away = f"[yellow]{escape(store)} does not answer: {one_line(error)}[/]"
                    live.update(Group(shown, *filter(None, [away])), refresh=True)
            except KeyboardInterrupt:
                pass


def status_of(store: str, names: list[str] | None) -> dict[str, Any]:
    """How sweeps stand, for programs."""
    from ascl_sweep.ledger import Ledger

    ledger = Ledger(store)
    chosen = sweeps_in(ledger, names)
    driver = ledger.driver()
    sweeps = []
    rows = list(ledger.runs().values())
    for name, sweep in chosen.items():
        own = [row for row in rows if name in row.sweeps]
        counts = Counter(_state(row, driver is not None) for row in own)
        sweeps.append(
            {
                "name": name,
                "scale": sweep.scale,
                "planned": sweep.planned,
                "states": dict(counts),
                "device_hours": sum(row.device_hours for row in own),
                "running": [_short(row) for row in own if row.state == "running" and driver],
                "failed": [_short(row) for row in own if row.state == "failed"],
            }
        )
    for problem in ledger.problems:
        talk.print(f"[yellow]warning:[/] {escape(problem)}")
    return {"store": ledger.address, "driver": str(driver) if driver else None, "sweeps": sweeps}


def _state(row: "RunRow", driven: bool) -> str:
    """A run's state; one that runs without a driver has lost it."""
    return "lost" if row.state == "running" and not driven else row.state


def _short(row: "RunRow") -> dict[str, Any]:
    return {
        "run_id": row.run_id,
        "phase": row.phase,
        "seed": row.config.get("seed"),
        "epochs_done": row.epochs,
        "epochs": row.config.get("epochs"),
        "knn_top1": row.knn_last_top1,
        "error": row.error,
        "log": row.log,
    }


def status_picture(found: Mapping[str, Any]) -> Group:
    """The same for people."""
    return Group(*_status_parts(found))


def _status_parts(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    from ascl_sweep.ledger import STATES

    driver = f"driven by {found['driver']}" if found["driver"] else "nobody is driving it"
    yield f"{escape(found['store'])}: {escape(driver)}"
    table = Table(box=None, pad_edge=False, header_style="bold")
    seen = {state for sweep in found["sweeps"] for state in sweep["states"]} | {"done"}
    states = [state for state in STATES if state in seen]
    titles = ["waiting" if state == "planned" else state for state in states]
    for title in ("sweep", "runs", *titles, "device hours"):
        table.add_column(title, justify="left" if title == "sweep" else "right", no_wrap=True)
    for sweep in found["sweeps"]:
        counts = sweep["states"]
        name = sweep["name"] + (" (laptop)" if sweep["scale"] == "laptop" else "")
        cells = [str(counts.get(state, 0)) for state in states]
        table.add_row(name, str(sweep["planned"]), *cells, f"{sweep['device_hours']:.2f}")
    yield table
    for sweep in found["sweeps"]:
        for run in sweep["running"]:
            yield (
                f"running {run['run_id']} epoch {run['epochs_done']}/{run['epochs']} "
                f"kNN {percent(run['knn_top1'])}"
            )
        for run in sweep["failed"]:
            error, log = escape(run["error"] or ""), escape(run["log"] or "")
            yield f"failed  {run['run_id']} {error} ({log})"


@app.command()
def best(
    names: Names = None,
    store: StoreOption = "results",
    metric: Annotated[str, typer.Option(help="knn_top1 or probe_top1.")] = "knn_top1",
    export: Annotated[
        Path | None, typer.Option(help="Write the winner as a file for `ascl-sweep train`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The best configuration of each sweep: of a search by its holdout, else by its mean."""
    with sentences():
        from ascl_sweep.best import best_arms, export_yaml
        from ascl_sweep.ledger import Ledger

        ledger = Ledger(store)
        chosen = sweeps_in(ledger, names)
        rows = list(ledger.runs().values())
        found = {n: best_arms(rows, n, metric, sweep.scale)[:1] for n, sweep in chosen.items()}
        winners = {name: arms[0] for name, arms in found.items() if arms}
        if not winners:
            fail(f"no run is done yet in {store}; see `ascl-sweep status`", BAD_INPUT)
        if export is not None:
            if len(winners) > 1:
                fail(f"--export takes one sweep, got {', '.join(winners)}; name one", BAD_INPUT)
            (winner,) = winners.values()
            export_yaml(winner, export)
            path = escape(str(export))
            talk.print(f"wrote {path}; train it with `ascl-sweep train {path}`")
        if as_json:
            typer.echo(json.dumps({name: asdict(w) for name, w in winners.items()}, default=dict))
            return
        for name, winner in winners.items():
            spread = "" if winner.sd is None else f" ± {100 * winner.sd:.2f}"
            data.print(
                f"[bold]{escape(name)}[/]: {escape(arm(winner.differs))}: {metric} "
                f"{100 * winner.mean:.2f}{spread}% on {winner.scored} (n = {winner.n})"
            )


@app.command()
def replay(
    name: Annotated[
        str | None, typer.Argument(help="A sweep of the store.", metavar="SWEEP")
    ] = None,
    store: StoreOption = "results",
    rules: Annotated[
        list[str] | None,
        typer.Option("--rule", help="E.g. asha:grace=1,factor=4; a standard set if absent."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Simulated runs at once.")] = 4,
    repeats: Annotated[int, typer.Option(min=2, help="Orders of arrival.")] = 300,
    as_json: AsJson = False,
) -> None:
    """What other stopping rules would have cost and found, on the store's complete curves."""
    with sentences():
        from ascl_sweep.ledger import Ledger
        from ascl_sweep.replay import parse_rule, standard_rules
        from ascl_sweep.replay import replay as push

        ledger = Ledger(store)
        chosen = sweeps_in(ledger, [name] if name else None)
        curves = _complete_curves(ledger, chosen)
        epochs = len(next(iter(curves.values()), ()))
        wanted = (
            {"no stopping": None, **{text: parse_rule(text, epochs) for text in rules}}
            if rules
            else standard_rules(epochs)
        )
        outcomes = push(curves, wanted, workers=workers, repeats=repeats)
        if as_json:
            typer.echo(json.dumps([asdict(outcome) for outcome in outcomes]))
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("rule", "epochs spent", "regret (points)", "best survives"):
            first = title == "rule"
            table.add_column(title, justify="left" if first else "right", no_wrap=not first)
        for o in outcomes:
            table.add_row(
                o.label,
                _interval(o.epochs_share, lambda share: f"{100 * share:.0f}%"),
                _interval(o.regret, "{:.1f}".format),
                _interval(o.best_survives, lambda share: f"{100 * share:.0f}%"),
            )
        data.print(table)
        talk.print(
            f"{len(curves)} complete curves of {epochs} epochs, {repeats} orders of arrival, "
            f"{workers} simulated workers; 95% intervals over the orders"
        )


def _interval(found: "Interval", show: Callable[[float], str]) -> str:
    return rf"{show(found.mean)} \[{show(found.low)}, {show(found.high)}]"


def _complete_curves(ledger: "Ledger", names: Mapping[str, Any]) -> dict[str, list[float]]:
    """kNN by epoch of the sweeps' complete runs, all of the commonest length."""
    rows = [r for r in ledger.runs().values() if r.state == "done" and set(r.sweeps) & names.keys()]
    phases = Counter(row.phase for row in rows)  # the holdout's numbers are not those of test
    rows = [row for row in rows if row.phase == max(phases, key=lambda p: phases[p])]
    lengths = Counter(row.epochs for row in rows)
    common = max(lengths, key=lambda n: lengths[n], default=0)
    epochs = ledger.epochs([row.run_id for row in rows if row.epochs == common])
    return {
        run_id: [float("nan") if e["knn_top1"] is None else e["knn_top1"] for e in found]
        for run_id, found in epochs.items()
    }
