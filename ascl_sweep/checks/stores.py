"""Whether a store can be written, and whether two machines mean the same place by it."""

import os
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ascl_sweep.checks import Check
from ascl_sweep.labels import one_line

if TYPE_CHECKING:
    from ascl_sweep.store import Store


def existing(store: str | None) -> Path:
    """The folder of a store, or as much of it as is there; of one far away, where Ray writes."""
    if store is None or "://" in store:
        return Path(tempfile.gettempdir())
    place = Path(store).absolute()
    while not os.path.exists(place):  # nor does a folder that is closed to us raise here
        place = place.parent
    return place


def store_fault(store: str, seen: str | None = None) -> str | None:
    """Why a store cannot be used from this machine, if so; `seen` is a file that must be there.

    Writes a small file and deletes it; a folder is not made.
    """
    try:
        if seen is not None and _place(store).text(seen) is None:
            return "what the head writes there is not seen here: it is another folder"
        name = leave_in(store)
        found = _place(store).text(name)
        take_away(store, name)
    except (ValueError, OSError) as error:
        return getattr(error, "strerror", None) or one_line(error)
    return None if found else "what was written could not be read back"


def leave_in(store: str) -> str:
    """Put a small file into a store, for others to find; its name."""
    name = f".doctor-{secrets.token_hex(4)}"
    _place(store).write(name, b"written by `ascl-sweep doctor`")
    return name


def take_away(store: str, name: str) -> None:
    _place(store).delete(name)


def _place(store: str) -> "Store":
    from ascl_sweep.store import Store

    return Store(store) if "://" in store else Store(existing(store))


def of_store(store: str, fault: str | None, at: str = "") -> Check:
    """What to make of a store's fault, if it has one."""
    found = "can be written" if fault is None else fault
    way_out = "see its address, and who you are to it (AWS_PROFILE or the nodes' role for s3://)"
    return Check(f"{at}store {store}", found, fault is None, way_out)
