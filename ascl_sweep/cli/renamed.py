"""Old command names: they still work, are hidden from `--help` and print the new name."""

import functools
from typing import Annotated

import typer

from ascl_sweep.cli.common import (
    Address,
    Concurrency,
    Names,
    StoreOption,
    Wait,
    select_sweeps,
    talk,
)
from ascl_sweep.cli.run import Retry, run
from ascl_sweep.cli.simulate import simulate
from ascl_sweep.contracts import RunState
from ascl_sweep.errors import UsageError


def resume(
    names: Names = None,
    store_address: StoreOption = "results",
    address: Address = None,
    concurrency: Concurrency = None,
    wait: Wait = False,
) -> None:
    """Old name of `run --resume`."""
    _note("resume", "run --resume")
    run(
        names,
        resume=True,
        store_address=store_address,
        address=address,
        concurrency=concurrency,
        wait=wait,
        yes=True,
    )


def retry(
    names: Names = None,
    failed: Annotated[bool, typer.Option("--failed", help="Retry runs that failed.")] = False,
    diverged: Annotated[bool, typer.Option("--diverged", help="Retry runs that diverged.")] = False,
    store_address: StoreOption = "results",
    address: Address = None,
    concurrency: Concurrency = None,
) -> None:
    """Old name of `run --resume`, which retries failed runs."""
    from ascl_sweep.store.store import Store

    _note("retry", f"run --resume{' --retry diverged' if diverged else ''}")
    if not failed and not diverged:
        raise UsageError("choose the runs to retry: --failed, --diverged or both")
    chosen = {Retry.FAILED: failed, Retry.DIVERGED: diverged}
    states = [state for state, wanted in chosen.items() if wanted]
    store = Store(store_address)
    known = select_sweeps(store, names)
    runs = [row for row in store.runs().values() if row.state in map(RunState, states)]
    sweeps = known.keys() & {name for row in runs for name in row.sweeps}
    if not sweeps:
        talk.print("no runs to retry")
        return
    run(
        sorted(sweeps),
        resume=True,
        retry=states,
        store_address=store_address,
        address=address,
        concurrency=concurrency,
        yes=True,
    )


@functools.wraps(simulate)
def replay(*args: object, **options: object) -> None:
    _note("replay", "simulate")
    simulate(*args, **options)  # type: ignore[arg-type]


replay.__doc__ = "Old name of `simulate`."  # `wraps` has copied the one of `simulate`


def _note(old: str, new: str) -> None:
    talk.print(f"note: `ascl-sweep {old}` is now `ascl-sweep {new}`")
