"""`ascl-sweep repair`: recover the rows of a store with damaged files."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.markup import escape

from ascl_sweep.cli.common import StoreOption, note_wait, recorded_specs, talk, warn
from ascl_sweep.errors import StoreError
from ascl_sweep.text import plural

if TYPE_CHECKING:
    from ascl.metrics import EpochMetrics
    from ascl_sweep.contracts import RunRow
    from ascl_sweep.store.store import Store, Writer

SHOWN = 10  # run ids in a message
NO_TABLE = "not a readable table"


def repair(store_address: StoreOption = "results") -> None:
    """Recover runs and epochs from damaged table files and list what could not be recovered.

    Damaged files are moved to the folder `damaged` of the store. Readable rows in them are kept;
    the other rows are rebuilt from the epochs and the working files of the runs.
    """
    from ascl_sweep.store.store import Store

    store = Store(store_address)
    with store.writer(on_wait=note_wait) as writer:
        store.read_all()
        if store.newer:
            raise StoreError(f"nothing was changed: {store.newer[0]}")
        for file in writer.salvage():
            lost = f", {plural(file.lost, 'row')} lost" if file.lost else ""
            lost += f"; values lost in {', '.join(file.columns)}" if file.columns else ""
            what = f"recovered {plural(file.rows, 'row')}{lost}" if file.is_table else NO_TABLE
            talk.print(f"{escape(file.name)}: {escape(what)}; moved to {escape(file.moved_to)}")
        epochs = _restore_epochs(store, writer)
        _rebuild_rows(store, writer, epochs)
        writer.flush()
    talk.print(f"{escape(store_address)} is readable; continue with `ascl-sweep run`")


def _restore_epochs(store: "Store", writer: "Writer") -> "dict[str, list[EpochMetrics]]":
    """Restore missing epochs from the work folders; return the epochs of all runs."""
    from ascl_sweep.runtime.recovery import read_config, read_metrics

    rows, epochs = store.runs(), store.epochs()
    restored = Counter[str]()
    for run_id in store.work_ids():
        known = {e.epoch: e for e in epochs.get(run_id, [])}
        row = rows.get(run_id)
        last = row.epochs if row is not None and row.state.is_over else None
        missing = [
            e
            for e in read_metrics(store, run_id)
            if e.epoch not in known and (last is None or e.epoch <= last)
        ]
        if not missing or read_config(store, run_id) is None:
            continue
        for metrics in missing:
            writer.put_epoch(run_id, metrics)
        known |= {e.epoch: e for e in missing}
        epochs[run_id] = [known[epoch] for epoch in sorted(known)]
        restored[run_id] = len(missing)
    if restored:
        epochs_of = f"{plural(restored.total(), 'epoch')} of {plural(len(restored), 'run')}"
        talk.print(f"restored {epochs_of} from work/")
    over = {run_id: row.epochs for run_id, row in rows.items() if row.state.is_over}
    if shorter := [run_id for run_id, last in over.items() if len(epochs.get(run_id, [])) < last]:
        warn(
            f"epochs of {plural(len(shorter), 'finished run')} are lost, but no results: "
            f"{_ids(shorter)}"
        )
    return epochs


def _rebuild_rows(
    store: "Store", writer: "Writer", epochs: "dict[str, list[EpochMetrics]]"
) -> None:
    from ascl.errors import AsclError
    from ascl_sweep.runtime.recovery import lost_rows, rebuild_rows

    rows = store.runs()
    lost = lost_rows(rows, epochs)
    if not lost:
        return
    specs = []
    for name in store.sweeps():
        try:
            specs += recorded_specs(store, [name])
        except AsclError as error:  # recorded by an incompatible version
            warn(f"runs of the sweep {name} are not rebuilt: {error}")
    rebuilt = rebuild_rows(store, rows, {run_id: epochs[run_id] for run_id in sorted(lost)}, specs)
    for row in rebuilt.values():
        writer.put_run(row)
    if rebuilt:
        talk.print(
            f"rebuilt the rows of {plural(len(rebuilt), 'run')}: {_states(rebuilt.values())} (runs "
            "without all epochs are `lost` and resume)"
        )
    if unclaimed := [run_id for run_id, row in rebuilt.items() if not row.sweeps]:
        talk.print(
            f"no sweep in the store contains {plural(len(unclaimed), 'rebuilt run')}: "
            f"{_ids(unclaimed)}; run their sweep file to add them to a sweep"
        )
    if unknown := sorted(lost - rebuilt.keys()):
        warn(
            f"the rows of {plural(len(unknown), 'run')} are lost, because neither a sweep nor "
            f"work/ has the config: {_ids(unknown)}; run the sweep file, then repair again"
        )


def _states(rows: "Iterable[RunRow]") -> str:
    return ", ".join(f"{n} {state}" for state, n in sorted(Counter(r.state for r in rows).items()))


def _ids(run_ids: Iterable[str]) -> str:
    found = list(run_ids)
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more
