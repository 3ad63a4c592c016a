"""The clock of a driver's machine is set during a sweep, back or forward."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ascl_sweep.store.store import Store
from tests.faults import gate
from tests.faults.machines import Numbers, undisturbed
from tests.s3 import S3, serving
from tests.sweeps import (
    GRID,
    ascl_sweep,
    epochs_recorded,
    finish,
    numbers,
    start,
    states,
    wait_until,
    write,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

HOUR = 3600
SWEEP = GRID + "budget: {hours: 0.5}\n"


@pytest.fixture
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    yield from serving(tmp_path_factory.mktemp("s3"))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    return undisturbed(SWEEP, tmp_path_factory.mktemp("undisturbed") / "sweep", "local")


@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
def test_a_clock_that_is_set_lets_no_second_driver_in_and_ends_no_sweep(
    s3: S3, tmp_path: Path, expected: Numbers, ahead: int
) -> None:
    """The driver is on another machine: its process is not visible to the second driver."""
    store, log, path = s3.address("clock"), tmp_path / "log", write(tmp_path, SWEEP)
    driver_gate = tmp_path / "gate"  # also of the workers
    env = gate.node_environment(driver_gate, host="elsewhere", every=2)
    words = ("run", path, "--store", store)
    driver = start(*words, log=log, env=env)
    wait_until(lambda: epochs_recorded(store) == 4, log)
    gate.set_clock(driver_gate, ahead)
    gate.allow(driver_gate, "every", 3)
    wait_until(lambda: epochs_recorded(store) == 6, log)
    second = ascl_sweep(*words)
    assert second.returncode == 2, second.stderr
    assert "another driver is writing to the store" in second.stderr
    gate.set_clock(driver_gate, 0)
    gate.allow(driver_gate, "every", 99)
    assert finish(driver, log) == 0, log.read_text()
    assert states(store) == ["done"] * 4
    assert numbers(store) == expected
    for row in Store(store).runs().values():
        assert row.created <= row.started <= row.ended < row.started + HOUR / 2
