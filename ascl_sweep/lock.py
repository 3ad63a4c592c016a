"""One driver at a time may write to a store.

On this machine the kernel keeps the lock and drops it when the driver dies, however it dies. Far
away there is no kernel to ask: there it is a lease, which its holder renews while it lives. Of one
that died on this machine we know; of one elsewhere the lease has to go stale.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ascl_sweep.store import Store  # `doctor` comes here also where pyarrow is missing

LOCK = ".lock"
STALE_SECONDS = 90.0  # a lease that was not renewed for so long is of a dead driver
BEAT_SECONDS = 20.0
SETTLE_SECONDS = 2.0  # longer than one who found no lease may take to write one
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Driver:
    """Who writes to a store."""

    host: str
    pid: int
    since: float  # seconds since 1970

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host} since {since}"


class LedgerBusy(ValueError):
    """Another driver writes to the store."""

    def __init__(self, address: str, driver: Driver) -> None:
        self.driver = driver
        super().__init__(
            f"only one driver may write to a store, and {address} is written by {driver}; wait "
            "for it to end, end it with `ascl-sweep stop`, or use another --store"
        )


class Lock(Protocol):
    def beat(self) -> None:
        """Say that we live; raises LedgerBusy if the lock is no longer ours."""

    def release(self) -> None: ...


def holder(store: Store) -> Driver | None:
    """Who holds the lock, if anyone alive does."""
    return _flock_holder(store.folder / LOCK) if store.folder else _lease_holder(store)


@contextmanager
def locked(store: Store, *, wait: bool, on_wait: Callable[[Driver], None]) -> Iterator[Lock]:
    """Hold the lock; `on_wait` is told of each driver that is waited for."""
    told = None
    while True:
        try:
            lock = _taken(store) if told is None or store.folder else _taken_patiently(store)
            break
        except LedgerBusy as busy:
            if not wait:
                raise
            if busy.driver != told:
                on_wait(told := busy.driver)
        time.sleep(POLL_SECONDS)
    try:
        yield lock
    finally:
        lock.release()


def _taken(store: Store) -> Lock:
    return _Flock(store) if store.folder else _Lease(store)


def _taken_patiently(store: Store) -> Lock:
    """Who has waited is not sent away because a far store is away for a while."""
    from ascl.patience import patiently  # of the trainer, which readers do without

    return patiently(partial(_taken, store))


def _ourselves() -> Driver:
    return Driver(socket.gethostname(), os.getpid(), time.time())


# --- here -------------------------------------------------------------------------------------

_held: set[int] = set()


def _drop_in_child() -> None:
    """A forked child shares the lock, and would keep it after the driver's death."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_drop_in_child)  # what is exec'ed gets no handle at all


class _Flock:
    def __init__(self, store: Store) -> None:
        assert store.folder is not None
        store.folder.mkdir(parents=True, exist_ok=True)
        path = store.folder / LOCK
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Who only looks holds the lock for an instant: ask again before believing it taken.
            for pause in (0.01, 0.03, 0.1, None):
                try:
                    fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if pause is None:
                        raise LedgerBusy(store.address, _written(path)) from None
                    time.sleep(pause)
            os.ftruncate(self._handle, 0)
            os.write(self._handle, json.dumps(vars(_ourselves())).encode())
        except BaseException:
            os.close(self._handle)
            raise
        _held.add(self._handle)

    def beat(self) -> None:
        pass

    def release(self) -> None:
        if self._handle in _held:  # not so in a forked child
            _held.remove(self._handle)
            with suppress(OSError):
                os.ftruncate(self._handle, 0)
            os.close(self._handle)


def _flock_holder(path: Path) -> Driver | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _written(path)
    finally:
        os.close(handle)
    return None


def _written(path: Path) -> Driver:
    """What the lock's file says; its holder may be about to write it."""
    try:
        return Driver(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        return Driver("an unknown host", 0, path.stat().st_mtime)


# --- far away ---------------------------------------------------------------------------------


class _Lease:
    def __init__(self, store: Store) -> None:
        self._store, self._token, self._driver = store, secrets.token_hex(8), _ourselves()
        if other := _lease_holder(store):
            raise LedgerBusy(store.address, other)
        self._write()
        time.sleep(SETTLE_SECONDS)  # of two that found it free at once, the later write stands
        self._check()

    def _write(self) -> None:
        now = time.time()
        lease = vars(self._driver) | {"beat": now, "token": self._token}
        lease |= {"machine": _machine()}
        self._store.write(LOCK, json.dumps(lease).encode())
        self._beaten = now  # not if it could not be written: it is as old as it was

    def _check(self) -> None:
        lease = _lease(self._store)
        if lease is None or lease.token != self._token:
            driver = lease.driver if lease else Driver("an unknown host", 0, time.time())
            raise LedgerBusy(self._store.address, driver)

    def beat(self) -> None:
        # Younger than this, the lease cannot have been taken from us.
        if time.time() - self._beaten >= BEAT_SECONDS:
            self._check()
            self._write()

    def release(self) -> None:
        with suppress(LedgerBusy, OSError):  # if it cannot be deleted it will go stale
            self._check()
            self._store.delete(LOCK)


@dataclass(frozen=True)
class _Written:
    """What a lease says."""

    driver: Driver
    beat: float
    token: str
    machine: str | None


def _lease(store: Store) -> _Written | None:
    """What the lease says; None if there is none."""
    for _ in range(2):  # of one that is renewed meanwhile a part may be read
        if (text := store.text(LOCK)) is None:
            return None
        with suppress(ValueError, TypeError, KeyError):
            found = json.loads(text)
            driver = Driver(str(found["host"]), int(found["pid"]), float(found["since"]))
            machine = found.get("machine")
            return _Written(driver, float(found["beat"]), str(found["token"]), machine)
    return None


def _lease_holder(store: Store) -> Driver | None:
    lease = _lease(store)
    if lease is None or time.time() - lease.beat >= STALE_SECONDS or _died_here(lease):
        return None
    return lease.driver


def _died_here(lease: _Written) -> bool:
    """Whether its holder ran on this machine and does so no more."""
    if lease.machine is None or lease.machine != _machine():
        return False
    try:
        os.kill(lease.driver.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def _machine() -> str | None:
    """What tells this machine from others until it starts anew, and a container from others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None  # no such thing on this system
