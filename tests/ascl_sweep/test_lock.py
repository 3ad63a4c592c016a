"""One driver at a time, with real processes: the lock dies with its driver, children or not."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from pyarrow import NativeFile
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from ascl_sweep import lock
from ascl_sweep.ledger import Driver, Ledger, LedgerBusy, RunRow
from ascl_sweep.store import Store

ROOT = Path(__file__).parent.parent.parent

HOLD = """
import os, subprocess, sys, time
from ascl_sweep.ledger import Ledger
with Ledger(sys.argv[1]).writer() as writer:
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


class Holder:
    """A process that holds the lock until told, and the child it may have."""

    def __init__(self, store: Path, child: str = "none") -> None:
        command = [sys.executable, "-c", HOLD, str(store), child]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout
        self.child = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.process.communicate("\n")

    def close(self) -> None:
        self.kill()
        if self.child:
            os.kill(self.child, 9)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


@pytest.fixture
def holder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Holder]:
    holder = Holder(tmp_path, getattr(request, "param", "none"))
    yield holder
    holder.close()


def test_the_second_driver_is_refused_in_a_sentence(tmp_path: Path, holder: Holder) -> None:
    ledger = Ledger(tmp_path)
    driver = ledger.driver()
    assert driver is not None
    assert (driver.host, driver.pid) == (os.uname().nodename, holder.process.pid)
    assert time.time() - 60 < driver.since < time.time()
    with pytest.raises(LedgerBusy, match=rf"process {driver.pid} on .* since 2.*; wait") as busy:
        ledger.writer().__enter__()
    assert busy.value.driver == driver
    assert ledger.runs() == {}, "anyone may read"
    holder.end()
    assert ledger.driver() is None
    with ledger.writer():
        pass


@pytest.mark.parametrize("holder", ["none", "exec", "fork"], indirect=True)
def test_a_killed_drivers_lock_is_free_though_its_children_live(
    tmp_path: Path, holder: Holder
) -> None:
    assert Ledger(tmp_path).driver() is not None
    holder.kill()
    if holder.child:
        os.kill(holder.child, 0)  # it lives
    end = time.monotonic() + 10  # a forked child lets go as soon as it gets to run
    while Ledger(tmp_path).driver() is not None and time.monotonic() < end:
        time.sleep(0.01)
    assert Ledger(tmp_path).driver() is None
    with Ledger(tmp_path).writer() as writer:
        writer.put_run(RunRow("a", (), {}, "final", "full"))
    assert Ledger(tmp_path).runs().keys() == {"a"}


@pytest.mark.parametrize("holder", ["fork"], indirect=True)
def test_a_forked_child_does_not_free_the_lock(tmp_path: Path, holder: Holder) -> None:
    os.kill(holder.child, 9)
    time.sleep(0.1)
    holder.child = 0
    assert Ledger(tmp_path).driver() is not None


def test_who_waits_is_told_once_and_gets_the_lock(tmp_path: Path, holder: Holder) -> None:
    told: list[Driver] = []

    def on_wait(driver: Driver) -> None:
        told.append(driver)
        assert holder.process.stdin
        time.sleep(0.2)
        holder.process.stdin.write("\n")
        holder.process.stdin.flush()

    with Ledger(tmp_path).writer(wait=True, on_wait=on_wait):
        pass
    assert [driver.pid for driver in told] == [holder.process.pid]


def test_a_process_is_not_its_own_second_driver(tmp_path: Path) -> None:
    with Ledger(tmp_path).writer():
        driver = Ledger(tmp_path).driver()
        assert driver and driver.pid == os.getpid()
        with pytest.raises(LedgerBusy):
            Ledger(tmp_path).writer().__enter__()
        assert Ledger(tmp_path).driver() == driver, "looking does not free it"


def test_looking_never_refuses_a_driver(tmp_path: Path) -> None:
    with Ledger(tmp_path).writer():
        pass
    code = "import sys; from ascl_sweep.ledger import Ledger; ledger = Ledger(sys.argv[1])\n"
    code += "print(flush=True)\nwhile True: ledger.driver()"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as looker:
        assert looker.stdout
        looker.stdout.readline()
        for _ in range(100):
            with Ledger(tmp_path).writer():
                pass
        looker.kill()


# --- far away -----------------------------------------------------------------------------------


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setattr(lock, "SETTLE_SECONDS", 0.0)
    return Ledger(SubTreeFileSystem(str(tmp_path), LocalFileSystem()))


def age(path: Path, seconds: float) -> None:
    lease = json.loads(path.read_text())
    path.write_text(json.dumps(lease | {"beat": lease["beat"] - seconds}))


def test_a_lease_keeps_others_out_until_it_is_given_back(far: Ledger) -> None:
    with far.writer():
        driver = far.driver()
        assert driver and driver.pid == os.getpid()
        with pytest.raises(LedgerBusy, match="is written by process"):
            far.writer().__enter__()
    assert far.driver() is None
    with far.writer():
        pass


def test_a_lease_that_is_not_renewed_goes_stale(far: Ledger, tmp_path: Path) -> None:
    dead = far.writer()  # kept, or it would give the lease back
    dead.__enter__()
    age(tmp_path / ".lock", 80)
    assert far.driver() is not None
    age(tmp_path / ".lock", 11)
    assert far.driver() is None
    with far.writer():
        assert far.driver() is not None


def test_the_lease_of_a_driver_that_died_on_this_machine_is_free_at_once(
    far: Ledger, tmp_path: Path
) -> None:
    path = tmp_path / ".lock"
    with subprocess.Popen(["true"]) as gone:
        pass
    dead = far.writer()  # kept, or it would give the lease back
    dead.__enter__()
    lease = json.loads(path.read_text()) | {"pid": gone.pid}
    for elsewhere in (lease | {"machine": "another"}, lease | {"machine": None}):
        path.write_text(json.dumps(elsewhere))
        assert far.driver() is not None, "its processes are not ours to see"
    path.write_text(json.dumps(lease))
    assert far.driver() is None
    with far.writer():
        pass


def test_a_lease_that_is_renewed_while_it_is_read_is_still_held(
    far: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with far.writer():
        whole, reads = Store.text, []

        def cut_at_first(store: Store, name: str) -> str | None:
            text = whole(store, name)
            reads.append(text)
            return text[:-1] if text and len(reads) == 1 else text

        monkeypatch.setattr(Store, "text", cut_at_first)
        assert far.driver() is not None


def test_a_driver_that_slept_does_not_write_over_its_successor(
    far: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.0)
    sleeper = far.writer()
    writer = sleeper.__enter__()
    writer.put_run(RunRow("a", (), {}, "final", "full"))
    age(tmp_path / ".lock", 91)
    with far.writer() as successor:
        with pytest.raises(LedgerBusy):
            writer.flush()
        with pytest.raises(LedgerBusy):
            sleeper.__exit__(None, None, None)
        successor.beat()
        assert far.driver() is not None, "the sleeper did not delete its successor's lease"
    assert far.runs() == {}


def test_a_lease_that_could_not_be_renewed_is_as_old_as_it_was(
    far: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.time()]
    monkeypatch.setattr(lock, "time", Mock(wraps=time, time=lambda: now[0]))
    sleeper = far.writer()
    writer = sleeper.__enter__()
    now[0] += lock.STALE_SECONDS
    with monkeypatch.context() as full:
        full.setattr(Store, "write", Mock(side_effect=OSError("away")))
        with pytest.raises(OSError, match="away"):
            writer.beat()
    with far.writer(), pytest.raises(LedgerBusy):
        writer.beat()


def test_a_store_that_was_away_for_long_finds_its_driver_still_there(
    far: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.time()]
    monkeypatch.setattr(lock, "time", Mock(wraps=time, time=lambda: now[0]))
    with far.writer() as writer:
        now[0] += 500
        assert far.driver() is None
        writer.flush()
        assert far.driver() is not None


def test_who_has_nothing_to_write_can_end_while_the_store_is_away(
    far: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.0)
    with monkeypatch.context() as away:
        with far.writer():
            away.setattr(Store, "open", Mock(side_effect=OSError("away")))
        with pytest.raises(OSError, match="away"), far.writer():
            pass


def test_who_waits_for_a_lease_also_waits_for_a_store_that_is_away(
    far: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, away = Store.open, iter([OSError("away")] * 3)
    first = far.writer()
    first.__enter__()

    def open_later(store: Store, name: str) -> NativeFile:
        for error in away:
            raise error
        return opened(store, name)

    def on_wait(driver: Driver) -> None:
        first.__exit__(None, None, None)
        monkeypatch.setattr(Store, "open", open_later)

    monkeypatch.setattr("ascl.patience.time.sleep", lambda seconds: None)
    with far.writer(wait=True, on_wait=on_wait):
        pass
    assert next(away, None) is None


def test_flushing_renews_the_lease(
    far: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with far.writer() as writer:
        age(tmp_path / ".lock", 80)
        writer.flush()
        age(tmp_path / ".lock", 11)
        assert far.driver() is None, "renewed at most every BEAT_SECONDS"
        monkeypatch.setattr(lock, "BEAT_SECONDS", 0.0)
        writer.flush()
        assert far.driver() is not None
