"""`ascl-sweep stop`: stop the driver of a store."""

from rich.markup import escape

from ascl_sweep.cli.common import StoreOption, talk, warn
from ascl_sweep.errors import UsageError


def stop(store_address: StoreOption = "results") -> None:
    """Stop the sweeps that are running in a store, once each run has finished its epoch.

    Results and checkpoints are kept; `ascl-sweep run --resume` continues.
    """
    from ascl_sweep.store.store import Store

    store = Store(store_address)
    driver = store.driver(or_stale=True)
    if driver is None:
        raise UsageError(f"no sweep is running in {store_address}; see `ascl-sweep status`")
    store.request_stop()
    talk.print(
        f"stop requested: process {driver.pid} on {escape(driver.host)} exits once each run has "
        "finished its epoch"
    )
    if store.driver() is None:
        warn(
            "this driver has not renewed its lease for long: it is dead, or the clock of its "
            "machine differs from the clock of this machine"
        )
