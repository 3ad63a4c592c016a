"""Images that runs share through Ray: identical, not copied, with a fallback to loading."""

from pathlib import Path

import pytest
from ray.exceptions import GetTimeoutError, ObjectLostError, RayError, RayTaskError

from ascl.data.subset import load_data
from ascl_sweep.executors.ray.shared_data import DataKey, load_packed, pack, unpack
from ascl_sweep.executors.ray.trainable import load_shared
from ascl_sweep.executors.worker import LOG, run_task
from tests.ascl_sweep.executors.test_worker import losses, task


def test_packed_data_come_back_without_a_copy() -> None:
    data = load_data("shapes", "", train_size=100, holdout=0.2)
    packed = pack(data)
    again = unpack(packed)
    assert again.scored == "holdout" and again.reference is again.train
    assert again.train.images.equal(data.train.images)  # type: ignore[union-attr]
    assert again.train.images.data_ptr() == packed.parts["train"][0].ctypes.data  # type: ignore[union-attr]


def test_shared_data_give_the_same_run(tmp_path: Path) -> None:
    own = list(run_task(task(tmp_path / "a")))
    packed = load_packed(DataKey("shapes", "", 80, 0.2))
    shared = list(run_task(task(tmp_path / "b"), lambda: unpack(packed)))
    assert losses(shared) == losses(own)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ObjectLostError("00ff", None, ""), "ObjectLostError"),
        (RayTaskError("load_packed", "Traceback", ImportError("libbroken.so")), "libbroken.so"),
        (GetTimeoutError("Get timed out"), "GetTimeoutError"),
    ],
)
def test_images_that_cannot_be_shared_are_loaded_by_the_run(
    error: RayError, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(reference: object, timeout: float) -> None:
        assert timeout < 15 * 60, "a run that is silent for so long is killed"
        raise error

    monkeypatch.setattr("ray.get", fail)
    results = list(run_task(task(tmp_path / "a"), lambda: load_shared(None)))  # type: ignore[arg-type]
    assert losses(results) == losses(list(run_task(task(tmp_path / "b"))))
    log = (tmp_path / "a" / LOG).read_text()
    assert "could not be shared (" in log and reason in log
