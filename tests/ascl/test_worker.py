"""A run as Ray executes it, without Ray: messages, logs, and going on where a worker was killed."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from ray.exceptions import ActorDiedError, ObjectLostError, RayError, RayTaskError
from ray.train.v2._internal.exceptions import (
    UserExceptionWithTraceback,
    WorkerHealthCheckFailedError,
)

from ascl import patience, worker
from ascl.checkpoint import CHECKPOINT
from ascl.data import load_data
from ascl.worker import (
    BEST,
    LOG,
    Folder,
    OneWorker,
    messages,
    pack,
    sentence,
    unpack,
    went_away,
)
from tests.ascl.test_patience import Clock
from tests.conftest import tiny
from tests.s3 import let_in


def task(folder: Path, /, **changes: Any) -> dict[str, Any]:
    config = tiny("ascl", epochs=3).model_dump(mode="json")
    return {
        "run_id": "x",
        "config": config,
        "folder": str(folder),
        "recorded": 0,
        "workers": 1,
        "cpus_per_worker": 1,
        "gpus_per_worker": 0,
        "keep_best": False,
        "data": None,
        **changes,
    }


def losses(told: list[dict[str, Any]]) -> list[float]:
    return [m["metrics"]["loss"] for m in told]


def test_every_epoch_is_a_message_and_the_last_says_so(tmp_path: Path) -> None:
    told = list(messages(task(tmp_path)))
    assert [m["metrics"]["epoch"] for m in told] == [1, 2, 3]
    assert [m["state"] for m in told] == ["running", "running", "done"]
    assert [m["done"] for m in told] == [False, False, True]
    assert told[0]["host"] and told[0]["device"] == "cpu" and told[0]["scored"] == "holdout"


def test_a_worker_that_is_started_again_tells_what_the_ledger_lacks(tmp_path: Path) -> None:
    whole = list(messages(task(tmp_path / "a")))
    first = messages(task(tmp_path / "b"))
    next(first), next(first)
    first.close()
    again = list(messages(task(tmp_path / "b", recorded=1)))  # the driver died with epoch 2
    assert [m["metrics"]["epoch"] for m in again] == [2, 3]
    assert losses(again) == losses(whole)[1:]


def test_a_damaged_checkpoint_is_put_away_and_said_so(tmp_path: Path) -> None:
    whole = list(messages(task(tmp_path)))
    (tmp_path / CHECKPOINT).write_bytes(b"rubbish")
    again = list(messages(task(tmp_path)))
    assert losses(again) == losses(whole)
    assert "starts over: " in again[0]["note"] and "is damaged" in again[0]["note"]


def test_a_failure_is_a_message_of_one_sentence_and_its_traceback_is_in_the_log(
    tmp_path: Path,
) -> None:
    wrong = task(tmp_path)
    wrong["config"]["data"] |= {"name": "cifar10", "root": str(tmp_path / "nowhere")}
    (message,) = messages(wrong)
    assert message["state"] == "failed" and message["done"]
    assert message["error"].startswith("cifar10 is not in") and "\n" not in message["error"]
    assert "Traceback" in (tmp_path / LOG).read_text()


def test_a_divergence_is_a_message(tmp_path: Path) -> None:
    wild = task(tmp_path)
    wild["config"]["optim"]["lr"] = 1e30
    (message,) = messages(wild)
    assert message["state"] == "diverged" and "the loss became nan" in message["error"]


def test_output_goes_to_the_log_while_a_run_trains_and_back_afterwards(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = messages(task(tmp_path))
    next(run)
    os.write(1, b"from a library in C\n")
    run.close()
    os.write(1, b"after\n")
    assert capfd.readouterr().out == "after\n"
    assert "from a library in C" in (tmp_path / LOG).read_text()


def test_the_best_epoch_of_a_finalist_is_kept(tmp_path: Path) -> None:
    told = list(messages(task(tmp_path, keep_best=True)))
    scores = [m["metrics"]["knn_top1"] for m in told]
    kept = torch.load(tmp_path / BEST, weights_only=True)
    best = max(i for i, s in enumerate(scores) if s == max(scores)) + 1
    assert kept["epoch"] == best


def test_the_best_epoch_is_kept_by_the_next_worker_if_the_first_could_not(tmp_path: Path) -> None:
    """It was killed between an epoch's checkpoint and what is kept of it."""
    cut = task(tmp_path / "cut", keep_best=True)
    first = messages(cut)
    next(first)
    first.close()
    (tmp_path / "cut" / BEST).unlink()
    again = messages(cut)
    next(again)  # the same epoch, told again: its score is the best so far
    again.close()
    assert torch.load(tmp_path / "cut" / BEST, weights_only=True)["epoch"] == 1


def test_a_folder_that_was_half_deleted_is_started_over(tmp_path: Path) -> None:
    whole = list(messages(task(tmp_path)))
    (tmp_path / CHECKPOINT).unlink()
    assert losses(list(messages(task(tmp_path)))) == losses(whole)


def test_what_ray_itself_loses_is_no_failure_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: object, **options: object) -> object:
        raise ObjectLostError("00ff", None, "")

    monkeypatch.setattr("ascl.worker.build", away)
    with pytest.raises(RayError):
        list(messages(task(tmp_path)))


def test_images_that_ray_has_lost_are_loaded_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(reference: object) -> object:
        raise ObjectLostError("00ff", None, "")

    whole = list(messages(task(tmp_path / "whole")))
    monkeypatch.setattr("ray.get", away)
    again = list(messages(task(tmp_path / "again", data={"ref": None})))
    assert losses(again) == losses(whole)


def test_packed_data_come_back_without_a_copy() -> None:
    data = load_data("shapes", "", train_size=100, holdout=0.2)
    packed = pack(data)
    again = unpack(packed)
    assert again.scored == "holdout" and again.reference is again.train
    assert again.train.images.equal(data.train.images)  # type: ignore[union-attr]
    assert again.train.images.data_ptr() == packed["train"][0].ctypes.data  # type: ignore[union-attr]


def test_shared_data_give_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = list(messages(task(tmp_path / "a")))
    packed = pack(load_data("shapes", "", train_size=80, holdout=0.2))
    monkeypatch.setattr("ray.get", lambda ref: ref)
    shared = list(messages(task(tmp_path / "b", data={"ref": packed})))
    assert losses(shared) == losses(own)


def test_a_worker_takes_one_run_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ascl.worker.node_id", lambda: "here")
    worker = OneWorker.__new__(OneWorker)
    worker.setup(task(tmp_path / "a"))
    begun = worker.step()
    assert begun["state"] == "begun" and begun["nodes"] == ["here"]
    first = worker.step()
    assert worker.reset_config(task(tmp_path / "b"))
    assert worker.step()["state"] == "begun"
    assert worker.step()["metrics"]["loss"] == first["metrics"]["loss"]
    worker.cleanup()


def test_a_message_is_small_however_large_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ascl.worker.node_id", lambda: "here")
    told = OneWorker(task(tmp_path)).train()
    assert told["state"] == "begun" and told["training_iteration"] == 1
    assert "config" not in told


@pytest.mark.parametrize(
    "error",
    [
        ActorDiedError(),
        WorkerHealthCheckFailedError("A worker health check failed.", failure=ActorDiedError()),
        torch.distributed.DistBackendError("NCCL communicator was aborted"),
        RuntimeError("[/x/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]"),
        ConnectionResetError(104, "Connection reset by peer"),
    ],
)
def test_a_rank_whose_peer_is_gone_did_not_fail_by_itself(error: Exception) -> None:
    assert went_away(error)
    assert went_away(UserExceptionWithTraceback(error, "Traceback"))


@pytest.mark.parametrize(
    "error",
    [ValueError("a bad value"), RuntimeError("CUDA out of memory"), OSError(28, "No space left")],
)
def test_a_rank_that_fails_by_itself_is_not_taken_for_gone(error: Exception) -> None:
    assert not went_away(UserExceptionWithTraceback(error, "Traceback"))
    assert "Traceback" not in sentence(UserExceptionWithTraceback(error, "Traceback"))


def test_images_that_another_machine_could_not_load_are_loaded_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(reference: object) -> None:
        raise RayTaskError("load_packed", "Traceback", ImportError("libbroken.so"))

    monkeypatch.setattr("ascl.worker.ray.get", broken)
    told = list(messages(task(tmp_path / "a", data={"ref": None})))
    assert losses(told) == losses(list(messages(task(tmp_path / "b"))))
    assert "could not be shared (ImportError: libbroken.so)" in (tmp_path / "a" / LOG).read_text()


def test_a_remote_store_gets_the_checkpoint_and_gives_it_back(tmp_path: Path) -> None:
    address = f"file://{tmp_path}/store/x"
    first = messages(task(tmp_path, folder=address))
    next(first)
    first.close()
    assert (tmp_path / "store" / "x" / CHECKPOINT).exists()
    again = list(messages(task(tmp_path, folder=address, recorded=1)))
    assert [m["metrics"]["epoch"] for m in again] == [2, 3]


def test_what_is_pushed_begins_with_the_checkpoint_and_is_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[str] = []
    upload = Folder._upload

    def watch(folder: Folder, path: Path, store: Any, place: str) -> None:
        pushed.append(path.name)
        upload(folder, path, store, place)

    monkeypatch.setattr(Folder, "_upload", watch)
    here = tmp_path / "here"
    here.mkdir()
    folder = Folder(here, f"file://{tmp_path}/store/x")
    for name in (BEST, CHECKPOINT, "config.yaml"):
        (here / name).write_text("1")
    folder.push()
    assert pushed[0] == CHECKPOINT and sorted(pushed) == [BEST, CHECKPOINT, "config.yaml"]
    os.utime(here / CHECKPOINT, (1, 1))
    folder.push()
    assert pushed[3:] == [CHECKPOINT]


# --- a far store that is away -------------------------------------------------------------------


class Refusing(BaseHTTPRequestHandler):
    """An S3 that agrees to every upload, and then does not take what is uploaded."""

    protocol_version = "HTTP/1.1"

    def answer(self, code: int = 200, text: str = "") -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_HEAD(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        id_of = "<InitiateMultipartUploadResult><UploadId>1</UploadId>"
        self.answer(text=f"{id_of}</InitiateMultipartUploadResult>")

    def do_PUT(self) -> None:
        is_part = "partNumber" in self.path
        self.close_connection = is_part  # its body is not read: it may come in chunks
        self.answer(403 if is_part else 200)

    def log_message(self, *words: object) -> None:
        pass


def test_what_a_store_did_not_take_is_not_taken_for_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_in(monkeypatch)
    (tmp_path / CHECKPOINT).write_text("1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        where = f"endpoint_override=127.0.0.1:{server.server_port}&scheme=http"
        folder = Folder(tmp_path, f"s3://bucket/x?{where}")
        with pytest.raises(OSError, match="uploading part"):
            folder._push(folder.address or "")
        server.shutdown()
    assert folder._pushed == {}


class Away:
    """A store that is away at first; time passes only while somebody waits for it."""

    def __init__(self, patch: pytest.MonkeyPatch, until: float) -> None:
        self.clock, self.until, self.pushes = Clock(), until, 0
        patch.setattr(patience, "time", self.clock)
        patch.setattr(worker, "time", self.clock)
        push = Folder._push

        def pushed(folder: Folder, address: str) -> None:
            self.clock.away_until(self.until)
            self.pushes += 1
            push(folder, address)

        patch.setattr(Folder, "_push", pushed)


def test_a_run_trains_on_while_its_store_is_away_and_waits_with_its_last_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Away(monkeypatch, until=100)
    told = messages(task(tmp_path, folder=f"file://{tmp_path}/store/x"))
    assert [next(told)["metrics"]["epoch"] for _ in range(2)] == [1, 2]
    assert away.clock.now == 0 and away.pushes == 0
    assert [m["metrics"]["epoch"] for m in told] == [3]
    assert 100 <= away.clock.now < 120 and away.pushes == 1
    assert (tmp_path / "store" / "x" / CHECKPOINT).exists()


def test_a_run_whose_epochs_the_store_has_long_lacked_waits_for_it_and_then_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Away(monkeypatch, until=1e9)
    told = messages(task(tmp_path, folder=f"file://{tmp_path}/store/x"))
    assert next(told)["metrics"]["epoch"] == 1
    away.clock.now = patience.PATIENCE + 1
    assert next(told)["state"] == "failed"
    assert away.clock.now > 2 * patience.PATIENCE - patience.LONGEST_PAUSE


def test_an_error_is_one_line() -> None:
    assert sentence(ValueError("bad\nworse")) == "bad"
    assert sentence(KeyError("x")) == "KeyError: 'x'"
    assert sentence(RuntimeError()) == "RuntimeError"
    assert sentence(OSError(28, "No space left", "/x")) == "/x: No space left"
