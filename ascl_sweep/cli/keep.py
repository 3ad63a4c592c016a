"""`ascl-sweep compact`, `gc` and `export`: keeping a store in order."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ascl_sweep.cli.app import BAD_INPUT, StoreOption, app, fail, sentences, talk


@app.command()
def compact(store: StoreOption = "results") -> None:
    """Merge the store's many small files into few."""
    with sentences():
        from ascl_sweep.ledger import Ledger
        from ascl_sweep.ledger import compact as merge

        for table, (before, after) in merge(Ledger(store)).items():
            talk.print(f"{table}: {before} files are now {after}")


@app.command()
def gc(
    store: StoreOption = "results",
    done: Annotated[
        bool, typer.Option("--done", help="Also checkpoints of finished runs.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Delete files of runs that nobody will go on with: stopped, diverged, or unknown."""
    with sentences():
        from ascl_sweep.ledger import Ledger

        ledger = Ledger(store)
        if (driver := ledger.driver()) is not None:
            fail(f"a sweep is running in {store} ({driver}); stop it first", BAD_INPUT)
        states = {"stopped", "diverged"} | ({"done"} if done else set())
        with ledger.writer():  # so that no driver starts a run meanwhile
            rows = ledger.runs()
            gone = [i for i in ledger.work_ids() if i not in rows or rows[i].state in states]
            size = sum(ledger.work_bytes(run_id) for run_id in gone)
            for run_id in gone if not dry_run else ():
                ledger.delete_work(run_id)
        verb = "would free" if dry_run else "freed"
        talk.print(f"{verb} {size / 1e6:,.1f} MB of {len(gone)} runs")


@app.command()
def export(
    name: Annotated[str, typer.Argument(help="A search of the store.", metavar="SWEEP")],
    out: Annotated[Path, typer.Argument(help="A new sqlite file.", metavar="FILE.db")],
    store: StoreOption = "results",
) -> None:
    """Write a search as an Optuna study, for optuna-dashboard."""
    with sentences():
        from ascl_sweep.agenda import Agenda, curves_of
        from ascl_sweep.cli.app import sweeps_in
        from ascl_sweep.ledger import Ledger
        from ascl_sweep.proposals import export as write
        from ascl_sweep.spec import spec_of

        ledger = Ledger(store)
        row = sweeps_in(ledger, [name])[name]
        spec = spec_of(row.text, file=row.file, overrides=row.overrides, scale=row.scale)  # type: ignore[arg-type]
        if not spec.domains:
            fail(f"only a search with Optuna has a study, and {name!r} lists its cells", BAD_INPUT)
        if out.exists():
            fail(f"{out} is there already; name a new file, or delete it", BAD_INPUT)
        outcomes = Agenda(spec, ledger.runs(), curves_of(ledger)).outcomes()
        out.parent.mkdir(parents=True, exist_ok=True)
        write(spec, outcomes, out)
        talk.print(
            f"wrote {len(outcomes)} trials; look at them with "
            f"`optuna-dashboard sqlite:///{escape(str(out))}`"
        )
