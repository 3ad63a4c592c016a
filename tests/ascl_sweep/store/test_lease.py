"""One driver at a time, tested with real processes: the lock ends with its driver."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import pytest
from pyarrow import NativeFile
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from ascl_sweep import clock as clocks
from ascl_sweep.contracts import RunRow
from ascl_sweep.errors import StoreError
from ascl_sweep.store import lease
from ascl_sweep.store.arrow import Record
from ascl_sweep.store.filesystem import StoreFiles
from ascl_sweep.store.store import LeaseHolder, Store, StoreBusyError
from ascl_sweep.store.tables import ParquetTable
from tests.paths import ROOT

HOLD = """
import os, subprocess, sys, time
from ascl_sweep.store.store import Store
with Store(sys.argv[1]).writer() as writer:
    if sys.argv[2] == "exec":
        child = subprocess.Popen(["sleep", "60"], close_fds=False).pid
    elif sys.argv[2] == "fork":
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    else:
        child = 0
    print(child, flush=True)
    sys.stdin.readline()
"""


@dataclass
class Holder:
    """A process that holds the lock until it reads a line, and its child if it has one."""

    process: "subprocess.Popen[str]"
    child: int

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def holder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Holder]:
    command = [sys.executable, "-c", HOLD, str(tmp_path), getattr(request, "param", "none")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout
        holder = Holder(process, int(process.stdout.readline()))
        yield holder
        holder.kill()
        if holder.child:
            os.kill(holder.child, 9)


def test_the_second_driver_is_refused_in_a_sentence(tmp_path: Path, holder: Holder) -> None:
    store = Store(tmp_path)
    driver = store.driver()
    assert driver is not None
    assert (driver.host, driver.pid) == (os.uname().nodename, holder.process.pid)
    assert time.time() - 60 < driver.since < time.time()
    with pytest.raises(
        StoreBusyError, match=rf"process {driver.pid} on .* since 2.*; wait"
    ) as busy:
        store.writer().__enter__()
    assert busy.value.driver == driver
    assert store.runs() == {}, "reading needs no lock"
    holder.process.communicate("\n")
    assert store.driver() is None
    with store.writer():
        pass


@pytest.mark.parametrize("holder", ["none", "exec", "fork"], indirect=True)
def test_a_killed_drivers_lock_is_free_though_its_children_live(
    tmp_path: Path, holder: Holder
) -> None:
    assert Store(tmp_path).driver() is not None
    holder.kill()
    if holder.child:
        os.kill(holder.child, 0)  # the child is alive
    end = time.monotonic() + 10  # a forked child releases the lock as soon as it is scheduled
    while Store(tmp_path).driver() is not None and time.monotonic() < end:
        time.sleep(0.01)
    assert Store(tmp_path).driver() is None
    with Store(tmp_path).writer() as writer:
        writer.put_run(RunRow("a", (), {}, "final", "full"))
    assert Store(tmp_path).runs().keys() == {"a"}


@pytest.mark.parametrize("holder", ["fork"], indirect=True)
def test_a_forked_child_does_not_free_the_lock(tmp_path: Path, holder: Holder) -> None:
    os.kill(holder.child, 9)
    time.sleep(0.1)
    holder.child = 0
    assert Store(tmp_path).driver() is not None


def test_who_waits_is_told_once_and_gets_the_lock(tmp_path: Path, holder: Holder) -> None:
    told: list[LeaseHolder] = []

    def on_wait(driver: LeaseHolder) -> None:
        told.append(driver)
        assert holder.process.stdin
        time.sleep(0.2)
        holder.process.stdin.write("\n")
        holder.process.stdin.flush()

    with Store(tmp_path).writer(wait=True, on_wait=on_wait):
        pass
    assert [driver.pid for driver in told] == [holder.process.pid]


def test_a_process_is_not_its_own_second_driver(tmp_path: Path) -> None:
    with Store(tmp_path).writer():
        driver = Store(tmp_path).driver()
        assert driver and driver.pid == os.getpid()
        with pytest.raises(StoreBusyError):
            Store(tmp_path).writer().__enter__()
        assert Store(tmp_path).driver() == driver, "looking up the holder does not release the lock"


def test_looking_never_refuses_a_driver(tmp_path: Path) -> None:
    with Store(tmp_path).writer():
        pass
    code = "import sys; from ascl_sweep.store.store import Store; store = Store(sys.argv[1])\n"
    code += "print(flush=True)\nwhile True: store.driver()"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as looker:
        try:
            assert looker.stdout
            looker.stdout.readline()
            for _ in range(100):
                with Store(tmp_path).writer():
                    pass
        finally:
            looker.kill()


# --- a lock or a store that is deleted ----------------------------------------------------------

WRITE_UNTIL_REFUSED = """
import sys, time
from ascl_sweep.contracts import RunRow
from ascl_sweep.errors import StoreError
from ascl_sweep.store.store import Store
try:
    with Store(sys.argv[1]).writer() as writer:
        for i in range(10**9):
            writer.put_run(RunRow(f"first-{i}", (), {}, "final", "full"))
            writer.flush()
            print(i, flush=True)
            time.sleep(0.02)
except StoreError as error:
    print(f"refused: {error}", flush=True)
"""


@pytest.fixture
def writing(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that writes runs first-0, first-1, … and prints each number once it is flushed."""
    command = [sys.executable, "-c", WRITE_UNTIL_REFUSED, str(tmp_path / "store")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "0\n"
        yield process
        process.kill()


def until_refused(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Return the number of acknowledged rows and the sentence."""
    assert process.stdout
    lines = process.stdout.read().splitlines()
    return len(lines), lines[-1]


def test_a_driver_whose_lock_file_was_deleted_writes_nothing_more(
    tmp_path: Path, writing: "subprocess.Popen[str]"
) -> None:
    store = Store(tmp_path / "store")
    (tmp_path / "store" / ".lock").unlink()
    acknowledged, sentence = until_refused(writing)
    assert ".lock was deleted while this driver was writing" in sentence
    found = len(store.runs())
    assert found in (acknowledged, acknowledged + 1), "the last row may be written, but not flushed"
    with store.writer() as writer:
        writer.put_run(RunRow("second", (), {}, "final", "full"))
    assert len(store.runs()) == found + 1


def test_two_drivers_never_replace_each_others_rows_even_without_a_lock(
    tmp_path: Path, writing: "subprocess.Popen[str]"
) -> None:
    store = Store(tmp_path / "store")
    (tmp_path / "store" / ".lock").unlink()
    with store.writer() as writer:
        for i in range(10):
            writer.put_run(RunRow(f"second-{i}", (), {}, "final", "full"))
            writer.flush()
        acknowledged, sentence = until_refused(writing)
    assert f"another driver is writing to the store {tmp_path}" in sentence or "deleted" in sentence
    assert len(store.runs()) - acknowledged in (10, 11)


def test_a_driver_does_not_recreate_a_store_that_was_deleted(
    tmp_path: Path, writing: "subprocess.Popen[str]"
) -> None:
    (tmp_path / "store").rename(tmp_path / "elsewhere")  # atomic, unlike rmtree
    _, sentence = until_refused(writing)
    assert f"{tmp_path}/store was deleted while this driver was writing" in sentence
    assert not (tmp_path / "store").exists()


# --- in a remote store --------------------------------------------------------------------------


class Clock:
    """The `time` module with a wall clock and a boot clock that only tests and sleeping advance."""

    CLOCK_BOOTTIME = 7
    localtime, strftime = staticmethod(time.localtime), staticmethod(time.strftime)

    def __init__(self) -> None:
        self.wall, self.boot = time.time(), 1000.0
        self.on_sleep: Callable[[], None] = lambda: None

    def time(self) -> float:
        return self.wall

    def clock_gettime(self, number: int) -> float:
        return self.boot

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        self.on_sleep()

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.boot += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (lease, clocks):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(lease, "THREAD_SECONDS", 1000.0)  # except where the thread is tested
    return Store(SubTreeFileSystem(str(tmp_path), LocalFileSystem()))


def change(path: Path, **fields: object) -> None:
    """Change fields of a lease file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def age(path: Path, seconds: float) -> None:
    found = json.loads(path.read_text())
    change(path, beat=found["beat"] - seconds, clock=found["clock"] - seconds)


def test_a_lease_keeps_others_out_until_it_is_given_back(remote: Store) -> None:
    with remote.writer():
        driver = remote.driver()
        assert driver and driver.pid == os.getpid()
        with pytest.raises(
            StoreBusyError, match=r"another driver is writing to the store .* \(process"
        ):
            remote.writer().__enter__()
    assert remote.driver() is None
    with remote.writer():
        pass


def test_a_lease_is_taken_over_after_it_was_seen_unchanged_for_long_and_not_before(
    remote: Store, tmp_path: Path, clock: Clock
) -> None:
    dead = remote.writer()  # a reference is kept, otherwise the lease would be released
    dead.__enter__()
    age(tmp_path / ".lock", 80)
    assert remote.driver() is not None
    with pytest.raises(StoreBusyError):
        remote.writer().__enter__()
    age(tmp_path / ".lock", 11)
    assert remote.driver() is None
    before, waited = clock.boot, []
    with remote.writer(on_wait=waited.append):
        assert lease.STALE_SECONDS <= clock.boot - before < lease.STALE_SECONDS + 1
        assert remote.driver() is not None and len(waited) == 1


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_driver_with_a_wrong_clock_keeps_its_lease_as_long_as_it_renews_it(
    remote: Store, tmp_path: Path, clock: Clock, hours: int
) -> None:
    with remote.writer():
        path = tmp_path / ".lock"
        renewals = iter(range(2, 1000))

        def renew() -> None:
            if clock.boot - renewed[-1] >= lease.BEAT_SECONDS:
                renewed.append(clock.boot)
                change(path, beat=clock.wall + hours * 3600, renewals=next(renewals))

        renewed = [clock.boot]
        change(path, beat=clock.wall + hours * 3600, machine="another")
        assert remote.driver() is None and remote.driver(or_stale=True) is not None
        clock.on_sleep = renew
        with pytest.raises(StoreBusyError):
            remote.writer().__enter__()
        assert len(renewed) == 2, "refused as soon as the lease was renewed"


@pytest.mark.parametrize("hours", [-1, 1])
def test_on_one_machine_a_clock_that_is_set_makes_no_lease_look_stale_or_alive(
    remote: Store, clock: Clock, hours: int
) -> None:
    with remote.writer():
        clock.wall += hours * 3600
        assert remote.driver() is not None
        clock.boot += lease.STALE_SECONDS
        clock.wall -= hours * 3600
        assert remote.driver() is None


@pytest.mark.parametrize(("wall", "boot"), [(-3600.0, 30.0), (30.0, 0.0)])
def test_a_lease_is_renewed_when_either_clock_says_so(
    remote: Store, tmp_path: Path, clock: Clock, wall: float, boot: float
) -> None:
    with remote.writer() as writer:
        before = (tmp_path / ".lock").read_text()
        clock.wall += wall  # set back; or a virtual machine was saved and restored
        clock.boot += boot
        writer.beat()
        assert (tmp_path / ".lock").read_text() != before


def test_a_thread_renews_the_lease(
    remote: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "THREAD_SECONDS", 0.01)
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.0)
    with remote.writer():
        contents, end = set[str](), time.monotonic() + 20
        while len(contents) < 4:
            assert time.monotonic() < end, "the lease is not renewed"
            contents.add((tmp_path / ".lock").read_text())
            time.sleep(0.01)


def test_a_lease_that_the_thread_found_lost_stops_the_next_write(
    remote: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "THREAD_SECONDS", 0.01)
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.0)
    sleeper = remote.writer()
    writer = sleeper.__enter__()
    change(tmp_path / ".lock", token="another")
    time.sleep(0.3)
    monkeypatch.setattr(lease, "BEAT_SECONDS", 1000.0)  # `flush` itself does not look
    writer.put_run(RunRow("a", (), {}, "final", "full"))
    with pytest.raises(StoreBusyError):
        writer.flush()
    with pytest.raises(StoreBusyError):
        sleeper.__exit__(None, None, None)
    assert remote.runs() == {}
    assert json.loads((tmp_path / ".lock").read_text())["token"] == "another"


def test_a_flush_renews_the_lease_before_each_table(
    remote: Store, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = ParquetTable.append

    def slow(table: ParquetTable, records: list[Record]) -> None:
        clock.advance(60)
        assert clock.wall - json.loads((tmp_path / ".lock").read_text())["beat"] < 90
        append(table, records)

    monkeypatch.setattr(ParquetTable, "append", slow)
    with remote.writer() as writer:
        writer.put_epoch("a", {"epoch": 1})
        writer.put_run(RunRow("a", (), {}, "final", "full"))
        writer.flush()


def test_a_driver_that_ends_does_not_delete_the_lease_of_its_successor(
    remote: Store, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_text = StoreFiles.read_text

    def then_taken(store: StoreFiles, name: str) -> str | None:
        text = read_text(store, name)
        if name == ".lock":
            change(tmp_path / ".lock", token="successor")
        return text

    with remote.writer():
        clock.advance(lease.STALE_SECONDS)
        monkeypatch.setattr(StoreFiles, "read_text", then_taken)
    assert (tmp_path / ".lock").exists()


def test_the_lease_of_a_driver_that_died_on_this_machine_is_free_at_once(
    remote: Store, tmp_path: Path
) -> None:
    path = tmp_path / ".lock"
    with subprocess.Popen(["true"]) as gone:
        pass
    dead = remote.writer()  # a reference is kept, otherwise the lease would be released
    dead.__enter__()
    found = json.loads(path.read_text()) | {"pid": gone.pid}
    for elsewhere in (found | {"machine": "another"}, found | {"machine": None}):
        path.write_text(json.dumps(elsewhere))
        assert remote.driver() is not None, "processes of another machine are not visible"
    path.write_text(json.dumps(found))
    assert remote.driver() is None
    with remote.writer():
        pass


def test_a_lease_that_cannot_be_parsed_is_held(remote: Store, tmp_path: Path, clock: Clock) -> None:
    (tmp_path / ".lock").write_text("{")
    before = clock.boot
    with remote.writer():
        assert clock.boot - before >= lease.STALE_SECONDS


def test_a_driver_that_slept_does_not_write_over_its_successor(
    remote: Store, tmp_path: Path, clock: Clock
) -> None:
    sleeper = remote.writer()
    writer = sleeper.__enter__()
    writer.put_run(RunRow("a", (), {}, "final", "full"))
    with remote.writer(wait=True) as successor:
        with pytest.raises(StoreBusyError):
            writer.flush()
        with pytest.raises(StoreBusyError):
            sleeper.__exit__(None, None, None)
        successor.beat()
        assert remote.driver() is not None, "the first driver did not delete its successor's lease"
    assert remote.runs() == {}


def test_a_lease_that_could_not_be_renewed_is_as_old_as_it_was(
    remote: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = remote.writer()
    writer = sleeper.__enter__()
    clock.advance(lease.STALE_SECONDS)
    with monkeypatch.context() as full:
        full.setattr(StoreFiles, "write", Mock(side_effect=OSError("unreachable")))
        with pytest.raises(OSError, match="unreachable"):
            writer.beat()
    with remote.writer(wait=True), pytest.raises(StoreBusyError):
        writer.beat()


def test_a_store_that_was_away_for_long_finds_its_driver_still_there(
    remote: Store, clock: Clock
) -> None:
    with remote.writer() as writer:
        clock.advance(500)
        assert remote.driver() is None
        writer.flush()
        assert remote.driver() is not None


def test_who_has_nothing_to_write_can_end_while_the_store_is_away(
    remote: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.0)
    with monkeypatch.context() as away:
        with remote.writer():
            away.setattr(StoreFiles, "open", Mock(side_effect=OSError("unreachable")))
        with pytest.raises(OSError, match="unreachable"), remote.writer():
            pass


def test_who_waits_for_a_lease_also_waits_for_a_store_that_is_away(
    remote: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, away = StoreFiles.open, iter([OSError("unreachable")] * 3)
    first = remote.writer()
    first.__enter__()

    def open_later(store: StoreFiles, name: str) -> NativeFile:
        for error in away:
            raise error
        return opened(store, name)

    def on_wait(driver: LeaseHolder) -> None:
        first.__exit__(None, None, None)
        monkeypatch.setattr(StoreFiles, "open", open_later)

    monkeypatch.setattr("ascl_sweep.store.retry.time.sleep", lambda seconds: None)
    with remote.writer(wait=True, on_wait=on_wait):
        pass
    assert next(away, None) is None


def test_flushing_renews_the_lease(
    remote: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with remote.writer() as writer:
        age(tmp_path / ".lock", 80)
        writer.flush()
        age(tmp_path / ".lock", 11)
        assert remote.driver() is None, "renewed at most every BEAT_SECONDS"
        monkeypatch.setattr(lease, "BEAT_SECONDS", 0.0)
        writer.flush()
        assert remote.driver() is not None


CLOCK_SET_BACK = """
import sys, time
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from ascl_sweep.contracts import RunRow
from ascl_sweep.errors import StoreError
from ascl_sweep.store import lease
from ascl_sweep.store.store import Store
lease.STALE_SECONDS, lease.BEAT_SECONDS, lease.SETTLE_SECONDS = 4.0, 0.5, 0.1
lease.THREAD_SECONDS = 0.2
wall = time.time
with Store(SubTreeFileSystem(sys.argv[1], LocalFileSystem())).writer() as writer:
    time.time = lambda: wall() - 3600
    print("set back", flush=True)
    for i in range(10**9):
        writer.put_run(RunRow(f"first-{i}", (), {}, "final", "full"))
        writer.flush()
        print(i, flush=True)
        time.sleep(0.05)
"""


@pytest.mark.slow  # 6 seconds
def test_a_driver_whose_clock_is_set_back_keeps_the_others_out(
    remote: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "STALE_SECONDS", 4.0)
    command = [sys.executable, "-c", CLOCK_SET_BACK, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout and holder.stdout.readline() == "set back\n"
            change(tmp_path / ".lock", machine="another")  # its process is not visible from here
            end = time.monotonic() + 5.5
            while time.monotonic() < end:
                with pytest.raises(StoreBusyError), remote.writer() as writer:
                    writer.put_run(RunRow("second", (), {}, "final", "full"))
        finally:
            holder.kill()
        acknowledged = len(holder.stdout.read().split())
    assert acknowledged > 0 and len(remote.runs()) in (acknowledged, acknowledged + 1)


# --- in a folder on a network file system -------------------------------------------------------


def test_a_folder_on_a_network_file_system_has_a_lease_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(lease, "is_network_folder", lambda folder: True)
    store = Store(tmp_path / "store")
    with store.writer() as writer:
        with monkeypatch.context() as elsewhere:  # where the file lock is not visible
            elsewhere.setattr(lease._LocalLock, "__init__", lambda lock, store: None)
            elsewhere.setattr(lease._LocalLock, "release", lambda lock: None)
            with pytest.raises(StoreBusyError):
                store.writer().__enter__()
        (tmp_path / "store").rename(tmp_path / "elsewhere")
        clock.advance(50)
        with pytest.raises(StoreError, match="was deleted"):
            writer.beat()
    assert not (tmp_path / "store").exists()
