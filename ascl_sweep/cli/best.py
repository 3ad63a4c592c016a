"""`ascl-sweep best`: show the best config of each sweep."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ascl_sweep.analysis.labels import system_arm
from ascl_sweep.cli.common import AsJson, Names, StoreOption, data, select_sweeps, talk, warn
from ascl_sweep.errors import UsageError


def best(
    names: Names = None,
    store_address: StoreOption = "results",
    metric: Annotated[
        str | None,
        typer.Option(
            help="Rank by knn_top1 or probe_top1. Default: table.metric of the sweep; knn_top1 for "
            "a search."
        ),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the best config to this YAML file, for `train`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the best config of each sweep.

    A search is ranked by its score on the holdout, any other sweep by its mean over seeds. The best
    of several scores is optimistic: a warning appears if the arms were scored on the test set.
    """
    from ascl_sweep.analysis.arms import best_arms, export_yaml, metric_to_rank
    from ascl_sweep.report.tables import PERCENT, mean_sd
    from ascl_sweep.spec.summary import SweepSummary
    from ascl_sweep.store.store import Store

    store = Store(store_address)
    chosen = select_sweeps(store, names)
    rows = list(store.runs().values())
    found, metrics = {}, {}
    for name, sweep in chosen.items():
        digest = SweepSummary.of_json(sweep.digest)
        metrics[name] = metric or metric_to_rank(digest)
        found[name] = best_arms(rows, name, metrics[name], sweep.scale, digest.axes, digest.looks)
    winners = {name: arms[0] for name, arms in found.items() if arms}
    if not winners:
        raise UsageError(f"no run in {store_address} has finished yet; see `ascl-sweep status`")
    for name, winner in winners.items():
        if winner.scored == "test" and len(found[name]) > 1:
            warn(
                f"{name}: the best arm was selected by its score on the test set, so this score is "
                "too high. Select with a search or set data.holdout."
            )
    if export is not None:
        if len(winners) > 1:
            raise UsageError(f"--export takes one sweep, got {', '.join(winners)}; choose one")
        (winner,) = winners.values()
        export_yaml(winner, export)
        path = escape(str(export))
        talk.print(f"wrote {path}; train it with `ascl-sweep train {path}`")
    if as_json:
        facts = {name: {"metric": metrics[name], **asdict(w)} for name, w in winners.items()}
        typer.echo(json.dumps(facts, default=dict))
        return
    for name, winner in winners.items():
        label = system_arm(winner.config, list(winner.differs))
        score = mean_sd(100 * winner.mean, None if winner.sd is None else 100 * winner.sd, PERCENT)
        data.print(
            f"[bold]{escape(name)}[/]: {escape(label)}: {metrics[name]} "
            f"{score}% on {winner.scored} (n = {winner.n})"
        )
