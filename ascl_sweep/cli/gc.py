"""`ascl-sweep gc`: delete working files that no run needs."""

from typing import Annotated

import typer

from ascl_sweep.cli.common import StoreOption, note_wait, talk
from ascl_sweep.contracts import RunState
from ascl_sweep.errors import UsageError
from ascl_sweep.text import plural

UNKNOWN = "Also delete work folders of runs that the store does not list."


def gc(
    store_address: StoreOption = "results",
    done: Annotated[
        bool, typer.Option("--done", help="Also delete the checkpoints of finished runs.")
    ] = False,
    unknown: Annotated[bool, typer.Option("--unknown", help=UNKNOWN)] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print how much space would be freed.")
    ] = False,
) -> None:
    """Delete the working files of stopped and diverged runs.

    Stopped and diverged runs never resume, so their checkpoints and logs are not needed. Results
    stay in the store.
    """
    from ascl_sweep.store.store import Store

    store = Store(store_address)
    if (driver := store.driver()) is not None:
        raise UsageError(f"a sweep is running in {store_address} ({driver}); stop it first")
    states = {RunState.STOPPED, RunState.DIVERGED} | ({RunState.DONE} if done else set())
    with store.writer(on_wait=note_wait):  # no driver may start a run meanwhile
        store.read_all()
        store.check_readable()
        rows = store.runs()
        found = store.work_ids()
        without_row = [run_id for run_id in found if run_id not in rows]
        unused = [run_id for run_id in found if run_id in rows and rows[run_id].state in states]
        unused += without_row if unknown else []
        size = sum(store.work_bytes(run_id) for run_id in unused)
        for run_id in unused if not dry_run else ():
            store.delete_work(run_id)
    verb = "would free" if dry_run else "freed"
    talk.print(f"{verb} {size / 1e6:,.1f} MB of {plural(len(unused), 'run')}")
    if without_row and not unknown:
        talk.print(
            f"kept {plural(len(without_row), 'work folder')} of runs that the store does not list; "
            "recover the runs with `ascl-sweep repair`, or delete the folders with "
            "`ascl-sweep gc --unknown`"
        )
