"""Lock of a store: only one driver at a time may write.

In a local store the lock is a file lock, which the kernel releases when the driver dies. In a
remote store the lock is a lease: a file that its holder renews. In a folder on a network file
system, where file locks may be local to a machine, the lock is both.

A lease expires when its content has not changed for STALE_SECONDS. The process that takes it over
must have observed this on its own clock, because the clocks of two machines may differ and a clock
may be set. A lease also expires if its holder was a process of this machine and died.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ascl_sweep.clock import elapsed
from ascl_sweep.errors import StoreError
from ascl_sweep.store.network import is_network_folder
from ascl_sweep.store.retry import retry

if TYPE_CHECKING:  # `doctor` imports this module even if pyarrow is missing
    from filelock import BaseFileLock

    from ascl_sweep.store.filesystem import StoreFiles

LOCK = ".lock"
LEASE_IN_FOLDER = ".lease"  # in a folder, LOCK is the file lock
STALE_SECONDS = 90.0  # the driver of a lease that was not renewed for so long is considered dead
BEAT_SECONDS = 20.0  # a lease is renewed when it is so old
THREAD_SECONDS = 5.0  # interval at which a thread checks the age of the lease
SETTLE_SECONDS = 2.0  # longer than a driver takes between finding no lease and writing one
POLL_SECONDS = 0.5
LOOK_SECONDS = 0.5  # longer than `find_holder` holds a local lock, even on a busy machine


@dataclass(frozen=True)
class LeaseHolder:
    """Process that holds the lock of a store."""

    host: str
    pid: int
    since: float  # Unix time

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host} since {since}"


class StoreBusyError(StoreError):
    """Another driver is writing to the store."""

    def __init__(self, address: str, driver: LeaseHolder, *, may_be_dead: bool = False) -> None:
        self.driver = driver
        self.may_be_dead = may_be_dead
        """Whether the driver has not renewed its lease for long, if the clocks agree."""
        super().__init__(
            f"another driver is writing to the store {address} ({driver}); wait until that driver "
            "ends, stop it with `ascl-sweep stop`, or use another --store"
        )


class Lock(Protocol):
    """Lock held by this process."""

    def beat(self) -> None:
        """Renew the lock if it is due.

        Raises:
            StoreBusyError: Another driver has taken the lock.
            StoreError: The lock or the store was deleted.
        """

    def release(self) -> None: ...


def find_holder(store: StoreFiles, *, or_stale: bool = False) -> LeaseHolder | None:
    """Return the process that holds the lock; None if there is probably none.

    Args:
        store: The store's files.
        or_stale: Whether to return also the holder of a lease that looks stale. For a process of
            another machine, this compares the clocks of the machines, as it must be fast.
    """
    if store.folder is not None:
        holder = _find_local_holder(store.folder / LOCK)
        if holder is not None or not is_network_folder(store.folder):
            return holder
    lease = _parse(store.read_text(_lease_name(store)))
    if lease is None or lease.is_dead_here or (lease.looks_stale and not or_stale):
        return None
    return lease.driver


@contextmanager
def hold_lock(
    store: StoreFiles, *, wait: bool, on_wait: Callable[[LeaseHolder], None]
) -> Iterator[Lock]:
    """Hold the lock of a store.

    A driver that seems to be dead is waited for until this process has observed it for
    STALE_SECONDS.

    Args:
        store: The store's files.
        wait: Whether to wait for another driver instead of raising StoreBusyError.
        on_wait: Called once for each driver that this process waits for.
    """
    observer = _Observer(store)
    waited_for = None
    while True:
        try:
            lock = retry(
                lambda: _acquire(store, observer),
                # While waiting for another driver, also wait for an unreachable store.
                seconds=0 if waited_for is None else None,
                may_recover=store.may_recover,
            )
            break
        except StoreBusyError as busy:
            if not wait and (not busy.may_be_dead or observer.has_changed):
                raise
            if busy.driver != waited_for:
                on_wait(waited_for := busy.driver)
        time.sleep(POLL_SECONDS)
    try:
        yield lock
    finally:
        lock.release()


def _acquire(store: StoreFiles, observer: _Observer) -> Lock:
    if store.folder is None:
        return _Lease(store, observer)
    local = _LocalLock(store)
    if not is_network_folder(store.folder):
        return local
    try:
        return _BothLocks(local, _Lease(store, observer))
    except BaseException:
        local.release()
        raise


def _this_process() -> LeaseHolder:
    return LeaseHolder(socket.gethostname(), os.getpid(), time.time())


# --- local stores -----------------------------------------------------------------------------


class _LocalLock:
    """File lock of the kernel; the file names the holder. Forked children do not hold the lock."""

    def __init__(self, store: StoreFiles) -> None:
        from filelock import FileLock, Timeout

        assert store.folder is not None
        store.folder.mkdir(parents=True, exist_ok=True)
        self._address, self._path, self._handle = store.address, store.folder / LOCK, -1
        self._lock: BaseFileLock = FileLock(
            self._path, thread_local=False, preserve_lock_file=True, on_acquired=self._on_acquired
        )
        try:
            self._lock.acquire(timeout=LOOK_SECONDS, poll_interval=0.01)
        except Timeout:
            raise StoreBusyError(store.address, _read_holder(self._path)) from None
        try:
            self.beat()  # the file may have been replaced before it was locked
        except StoreError:
            self.release()
            raise

    def _on_acquired(self, handle: int) -> None:
        self._handle = handle
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(vars(_this_process())).encode())

    def beat(self) -> None:
        """Check that the locked file is still the lock file of the store."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            what = self._path if self._path.parent.exists() else self._path.parent
            raise _deleted(str(what), self._address) from None
        if not os.path.samestat(found, os.fstat(self._handle)):
            if (driver := _find_local_holder(self._path)) is not None:
                raise StoreBusyError(self._address, driver)
            raise StoreError(
                f"{self._path} was replaced while this driver was writing to the store; nothing "
                "more is written; repeat the command"
            )

    def release(self) -> None:
        self._lock.release()


def _deleted(name: str, address: str) -> StoreError:
    return StoreError(
        f"{name} was deleted while this driver was writing to the store {address}; "
        "nothing more is written; restore the store, or repeat the command"
    )


def _read_holder(path: Path) -> LeaseHolder:
    """Read the holder from the lock file; the holder may not have written it yet."""
    try:
        return LeaseHolder(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        return LeaseHolder("an unknown host", 0, path.stat().st_mtime)


def _find_local_holder(path: Path) -> LeaseHolder | None:
    """Find the holder with a shared lock: filelock needs write access and locks exclusively."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_holder(path)
    finally:
        os.close(handle)
    return None


# --- remote stores ----------------------------------------------------------------------------


def _lease_name(store: StoreFiles) -> str:
    return LOCK if store.folder is None else LEASE_IN_FOLDER


class _Observer:
    """Remembers for how long the content of a lease file has not changed."""

    def __init__(self, store: StoreFiles) -> None:
        self._store, self._text, self._since = store, "", elapsed()
        self.has_changed = False
        """Whether another driver has written the lease since the first observation."""

    def check_free(self) -> None:
        """Raise StoreBusyError unless the lease is free, has expired or its holder is dead."""
        try:
            text = self._store.read_text(_lease_name(self._store))
        except OSError:
            self._text = ""  # observe it anew: its holder could not renew it either
            raise
        if text is None:
            return
        if text != self._text:
            self.has_changed = self._text != ""
            self._text, self._since = text, elapsed()
        lease = _parse(text)
        expired = elapsed() - self._since >= STALE_SECONDS
        if expired or (lease is not None and lease.is_dead_here):
            return
        driver = lease.driver if lease is not None else _unknown_holder()
        stale = lease is None or lease.looks_stale
        raise StoreBusyError(self._store.address, driver, may_be_dead=stale)


class _Lease:
    """Lease file that this process renews, from a thread and before it writes."""

    def __init__(self, store: StoreFiles, observer: _Observer) -> None:
        self._store, self._name = store, _lease_name(store)
        self._token, self._driver = secrets.token_hex(8), _this_process()
        self._renewals = 0
        self._lost: StoreError | None = None
        self._mutex, self._released = threading.Lock(), threading.Event()
        observer.check_free()
        self._write()
        time.sleep(SETTLE_SECONDS)  # if two drivers acquire at the same time, the later write wins
        self._check()
        self._thread = threading.Thread(target=self._keep_renewed, name="lease", daemon=True)
        self._thread.start()

    def _write(self) -> None:
        started = time.time(), elapsed()
        self._renewals += 1  # the content changes even if the clock was set back
        lease = vars(self._driver) | {
            "beat": started[0],
            "clock": started[1],
            "renewals": self._renewals,
            "token": self._token,
            "machine": _machine(),
        }
        self._store.write(self._name, json.dumps(lease).encode())
        self._renewed = started  # only if the write succeeded

    @property
    def _age(self) -> float:
        """Seconds since the last renewal, by the clock that has advanced more.

        The wall clock may be set back. The other clock stands still while a virtual machine is
        saved.
        """
        wall, clock = self._renewed
        return max(time.time() - wall, elapsed() - clock)

    def _check(self) -> None:
        text = self._store.read_text(self._name)
        lease = _parse(text)
        if lease is not None and lease.token == self._token:
            return
        if text is None:
            self._lost = _deleted(self._name, self._store.address)
        else:
            driver = lease.driver if lease is not None else _unknown_holder()
            self._lost = StoreBusyError(self._store.address, driver)
        raise self._lost

    def beat(self) -> None:
        with self._mutex:
            if self._lost is not None:
                raise self._lost
            # A younger lease cannot have been taken by another driver.
            if self._age >= BEAT_SECONDS:
                self._check()
                self._write()

    def _keep_renewed(self) -> None:
        while not self._released.wait(THREAD_SECONDS):
            with suppress(OSError, StoreError):  # the next `beat` retries or raises it again
                self.beat()

    def release(self) -> None:
        self._released.set()
        # The thread may wait for an unreachable store. Its lease is left to expire.
        if not self._mutex.acquire(timeout=STALE_SECONDS / 2):
            return
        # An older lease may be taken by another driver at any moment, so it must not be deleted.
        if self._lost is None and self._age < STALE_SECONDS / 2:
            with suppress(OSError, StoreError):
                self._check()  # both clocks stand still while a virtual machine is moved
                self._store.delete(self._name)
        self._mutex.release()


class _BothLocks:
    """File lock and lease, for a folder on a network file system."""

    def __init__(self, local: _LocalLock, lease: _Lease) -> None:
        self._local, self._lease = local, lease

    def beat(self) -> None:
        self._local.beat()  # first: renewing the lease would recreate a deleted store
        self._lease.beat()

    def release(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._local.release)
            self._lease.release()


@dataclass(frozen=True)
class _LeaseFile:
    """Content of a lease file."""

    driver: LeaseHolder
    beat: float  # Unix time of the renewal
    clock: float | None  # `elapsed()` at the renewal; None if an earlier version wrote the file
    token: str
    machine: str | None

    @property
    def is_here(self) -> bool:
        """Whether the holder is, or was, a process of this machine."""
        return self.machine is not None and self.machine == _machine()

    @property
    def looks_stale(self) -> bool:
        """Whether the lease was not renewed for long, if the clocks of two machines agree."""
        if self.is_here and self.clock is not None:
            return elapsed() - self.clock >= STALE_SECONDS
        return abs(time.time() - self.beat) >= STALE_SECONDS

    @property
    def is_dead_here(self) -> bool:
        """Whether the holder was a process of this machine and died."""
        if not self.is_here:
            return False
        try:
            os.kill(self.driver.pid, 0)
        except OSError as error:
            return isinstance(error, ProcessLookupError)
        return False


def _parse(text: str | None) -> _LeaseFile | None:
    with suppress(ValueError, TypeError, KeyError):
        found = json.loads(text or "")
        driver = LeaseHolder(str(found["host"]), int(found["pid"]), float(found["since"]))
        return _LeaseFile(
            driver=driver,
            beat=float(found["beat"]),
            clock=found.get("clock"),
            token=str(found["token"]),
            machine=found.get("machine"),
        )
    return None


def _unknown_holder() -> LeaseHolder:
    return LeaseHolder("an unknown host", 0, time.time())


def _machine() -> str | None:
    """Return an id of this machine's boot and container; None if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None
