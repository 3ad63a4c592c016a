"""`ascl-sweep simulate`: compare stopping rules on recorded learning curves."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ascl_sweep.cli.common import AsJson, StoreOption, data, select_sweeps, talk, warn
from ascl_sweep.contracts import SweepRow
from ascl_sweep.text import plural

if TYPE_CHECKING:
    from ascl_sweep.search.simulate import Interval
    from ascl_sweep.store.store import Store


def simulate(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of a sweep in the store. Default: all.", metavar="SWEEP"),
    ] = None,
    store_address: StoreOption = "results",
    rules: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            help="Stopping rule, e.g. asha:grace=1,factor=4. Repeatable. Default: a standard set.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of simulated workers.")] = 4,
    repeats: Annotated[int, typer.Option(min=2, help="Number of random run orders.")] = 300,
    as_json: AsJson = False,
) -> None:
    """Estimate the cost and regret of stopping rules from recorded learning curves."""
    from ascl_sweep.search.simulate import parse_rule, replay, standard_rules
    from ascl_sweep.spec.summary import SweepSummary
    from ascl_sweep.store.store import Store

    store = Store(store_address)
    chosen = select_sweeps(store, [name] if name else None)
    curves = _complete_curves(store, chosen)
    epochs = len(next(iter(curves.values()), ()))
    wanted = (
        {"no stopping": None, **{text: parse_rule(text, epochs) for text in rules}}
        if rules
        else standard_rules(epochs)
    )
    outcomes = replay(curves, wanted, workers=workers, repeats=repeats)
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
        f"{len(curves)} kNN curves of finished runs with {plural(epochs, 'epoch')}, one per arm; "
        f"{repeats} random orders on {plural(workers, 'simulated worker')}; 95% intervals over the "
        "orders\n"
        "epochs spent: share of the epochs without stopping; regret: kNN accuracy of the best run "
        "minus that of the run that the rule selects; best survives: share of the orders in which "
        "the rule selects the best run"
    )
    if stopping := [n for n, s in chosen.items() if SweepSummary.of_json(s.digest).stop]:
        warn(
            f"{', '.join(stopping)} stopped runs early; their curves are missing, so every rule "
            "looks safer than it is"
        )


def _interval(found: "Interval", show: Callable[[float], str]) -> str:
    return rf"{show(found.mean)} \[{show(found.low)}, {show(found.high)}]"


def _complete_curves(store: "Store", sweeps: Mapping[str, SweepRow]) -> dict[str, list[float]]:
    """Return kNN accuracy by epoch of one complete run per arm, of the most common length."""
    from ascl_sweep.analysis.arms import runs_to_select_from

    rows = {row.run_id: row for row in runs_to_select_from(store.runs().values(), sweeps.values())}
    phases = Counter(row.phase for row in rows.values())  # holdout and test are not comparable
    common_phase = max(phases, key=lambda p: phases[p], default="")
    rows = {run_id: row for run_id, row in rows.items() if row.phase == common_phase}
    lengths = Counter(row.epochs for row in rows.values())
    common = max(lengths, key=lambda n: lengths[n], default=0)
    epochs = store.epochs([run_id for run_id, row in rows.items() if row.epochs == common])
    return {
        run_id: [float("nan") if e.knn_top1 is None else e.knn_top1 for e in found]
        for run_id, found in epochs.items()
    }
