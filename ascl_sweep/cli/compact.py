"""`ascl-sweep compact`: merge the small files of a store."""

from ascl_sweep.cli.common import StoreOption, note_wait, talk


def compact(store_address: StoreOption = "results") -> None:
    """Merge the many small files of a store, so that it loads faster."""
    from ascl_sweep.store.store import Store
    from ascl_sweep.store.store import compact as merge

    for table, (before, after) in merge(Store(store_address), on_wait=note_wait).items():
        talk.print(f"{table}: merged {before} files into {after}")
