"""Notices of clouds, read from a fake metadata server, drain the node of this machine."""

from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from ascl_sweep.executors.ray import compat, preemption
from ascl_sweep.executors.ray.compat import Raylet
from tests.metadata import Metadata

HERE = Raylet(7, "n", "h:1")


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    with Metadata() as server:
        monkeypatch.setattr(preemption, "AWS", f"{server.url}/latest")
        monkeypatch.setattr(preemption, "GCP", f"{server.url}/computeMetadata/v1")
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        monkeypatch.setattr(preemption, "LOOK_SECONDS", 0.01)
        yield server


@pytest.fixture
def drained(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Replace the request to Ray, which is first refused."""
    request = Mock(side_effect=[False, True])
    monkeypatch.setattr(compat, "drain_node", request)
    return request


def alive(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """Let the raylet of this machine be alive for a number of looks."""
    found = iter([HERE] * looks)
    monkeypatch.setattr(compat, "find_own_raylets", lambda prefix: [HERE])
    monkeypatch.setattr(compat, "read_raylet", lambda pid: next(found, None))


@pytest.mark.parametrize(("cloud", "seconds"), [("aws", 120), ("gcp", 30)])
def test_a_notice_drains_the_node_until_ray_accepts(
    metadata: Metadata, drained: Mock, monkeypatch: pytest.MonkeyPatch, cloud: str, seconds: int
) -> None:
    alive(monkeypatch, 100)
    looks = []

    def look() -> float | None:
        looks.append(drained.call_count)
        if len(looks) == 3:
            metadata.announce(120)
        return preemption.CLOUDS[cloud]()

    preemption.watch([HERE], look)
    assert looks == [0, 0, 0, 1]
    assert drained.call_count == 2
    raylet, left, _ = drained.call_args.args
    assert raylet == HERE and seconds - 5 < left <= seconds


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_without_a_notice_the_watcher_ends_with_ray(
    metadata: Metadata, drained: Mock, monkeypatch: pytest.MonkeyPatch, cloud: str
) -> None:
    alive(monkeypatch, 5)
    preemption.main(cloud)
    assert drained.call_count == 0 and metadata.answers >= 5


@pytest.mark.parametrize("answer", ["", "{}", "not JSON", TimeoutError()])
def test_an_answer_that_is_no_notice_is_ignored(
    drained: Mock, monkeypatch: pytest.MonkeyPatch, answer: str | OSError
) -> None:
    monkeypatch.setattr(preemption, "_ask", Mock(side_effect=[answer] * 100))
    monkeypatch.setattr(preemption, "LOOK_SECONDS", 0.0)
    for cloud in preemption.CLOUDS:
        alive(monkeypatch, 3)
        preemption.main(cloud)
    assert drained.call_count == 0


def test_a_pod_that_ends_drains_and_ends_once_ray_has_ended(
    drained: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive(monkeypatch, 3)
    monkeypatch.setattr(preemption.time, "sleep", slept := Mock())
    preemption.main("100")
    drained.assert_called_once_with(HERE, 100, "the cloud ends this machine")
    assert slept.call_count == 3
