"""`ascl-sweep export`: export a search as an Optuna study."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ascl_sweep.cli.common import StoreOption, recorded_specs, talk
from ascl_sweep.errors import UsageError
from ascl_sweep.text import plural


def export(
    name: Annotated[str, typer.Argument(help="Name of a search in the store.", metavar="SWEEP")],
    out: Annotated[Path, typer.Argument(help="SQLite file to create.", metavar="FILE.db")],
    store_address: StoreOption = "results",
) -> None:
    """Export a search as an Optuna study, e.g. for optuna-dashboard."""
    from ascl_sweep.search.searchers.optuna import export as write
    from ascl_sweep.search.study import Study
    from ascl_sweep.store.store import Store

    store = Store(store_address)
    (spec,) = recorded_specs(store, [name])
    if not spec.domains:
        raise UsageError(
            f"export needs a search with `space.optuna`, got {name!r}; read its runs with "
            f"`ascl-sweep report {name} --format csv`"
        )
    if out.exists():
        raise UsageError(f"{out} already exists; choose another file or delete it")
    outcomes = Study(spec, store.runs(), store.knn_curves()).outcomes()
    out.parent.mkdir(parents=True, exist_ok=True)
    write(spec, outcomes, out)
    talk.print(
        f"wrote {plural(len(outcomes), 'trial')}; view them with "
        f"`optuna-dashboard sqlite:///{escape(str(out))}`"
    )
