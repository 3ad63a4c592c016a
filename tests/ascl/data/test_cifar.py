"""Laws of CIFAR: read as torchvision reads it, and nothing damaged is unpickled."""

import hashlib
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10

from ascl.data import cifar
from ascl.data.base import Images
from ascl.data.subset import fetch, load_data
from tests.ascl.data.files import error_message, md5, serve


class Trap:
    """Fails the test that unpickles it."""

    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("a file with a wrong checksum was unpickled",)


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with a CIFAR-10 of 100 training and 20 test images."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    rng = np.random.default_rng(0)
    sums = {}
    names = [name for name, _ in CIFAR10.train_list + CIFAR10.test_list]
    for name in names:
        pixels = rng.integers(0, 256, (20, 3072), dtype=np.uint8)
        batch = {"data": pixels, "labels": [i % 10 for i in range(20)]}
        (folder / name).write_bytes(pickle.dumps(batch))
        sums[name] = md5(folder / name)
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    sha256 = {path.name: sha256_of(path) for path in folder.iterdir()}
    monkeypatch.setitem(cifar.SHA256, "cifar10", sha256)
    monkeypatch.setattr(CIFAR10, "train_list", [[name, sums[name]] for name in names[:-1]])
    monkeypatch.setattr(CIFAR10, "test_list", [[names[-1], sums[names[-1]]]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": md5(folder / "batches.meta")})
    return tmp_path


def test_cifar_is_read_as_torchvision_reads_it(cifar10: Path) -> None:
    read = load_data("cifar10", cifar10)
    for ours, train in ((read.train, True), (read.test, False)):
        theirs = CIFAR10(cifar10, train=train)
        assert isinstance(ours, Images) and ours.images.is_contiguous()
        assert ours.images.permute(0, 2, 3, 1).equal(torch.from_numpy(theirs.data))
        assert ours.labels.tolist() == theirs.targets
    assert read.reference is read.train


def test_a_subset_holds_images_with_their_own_labels(cifar10: Path) -> None:
    whole = load_data("cifar10", cifar10).train
    part = load_data("cifar10", cifar10, train_size=30).train
    label_of = dict(zip((i.numpy().tobytes() for i in whole.images), whole.labels, strict=True))
    assert [label_of[i.numpy().tobytes()] for i in part.images] == part.labels.tolist()
    assert part.labels.bincount().tolist() == [3] * 10


def test_missing_cifar_is_reported_with_the_download_command(tmp_path: Path) -> None:
    assert error_message("cifar100", tmp_path) == (
        f"cifar100 is not in {tmp_path}: {tmp_path}/cifar-100-python does not exist; "
        f"download it with `ascl-sweep fetch cifar100 --root {tmp_path}`"
    )


def test_incomplete_cifar_names_the_missing_file(cifar10: Path) -> None:
    path = cifar10 / "cifar-10-batches-py" / "data_batch_4"
    path.unlink()
    assert f"cifar10 is not in {cifar10}: {path} does not exist; download it with" in error_message(
        "cifar10", cifar10
    )


@pytest.mark.parametrize("file", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_damaged_cifar_file_is_named_and_never_unpickled(cifar10: Path, file: str) -> None:
    path = cifar10 / "cifar-10-batches-py" / file
    path.write_bytes(pickle.dumps(Trap()))
    said = error_message("cifar10", cifar10)
    assert f"{path} is damaged (its checksum differs from the published one); delete it" in said


def test_a_forged_cifar_file_with_the_published_md5_is_never_unpickled(
    cifar10: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cifar10 / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(pickle.dumps(Trap()))
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", md5(path)]])  # as if they collided
    assert f"{path} is damaged (its checksum differs" in error_message("cifar10", cifar10)


def test_every_file_of_cifar10_has_a_sha256() -> None:
    files = [*CIFAR10.train_list, *CIFAR10.test_list, (CIFAR10.meta["filename"], "")]
    assert [name for name, _ in files] == list(cifar.SHA256["cifar10"])


def test_unreadable_file_is_reported(cifar10: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", "data_batch_1")

    monkeypatch.setattr(CIFAR10, "__init__", refuse)
    assert "cannot be read ([Errno 13] Permission denied" in error_message("cifar10", cifar10)


def test_fetched_cifar_can_be_read_and_fetch_prints_only_to_stderr(
    cifar10: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    with tarfile.open(folder / CIFAR10.filename, "w:gz") as archive:
        archive.add(cifar10 / "cifar-10-batches-py", "cifar-10-batches-py")
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(folder / CIFAR10.filename))
    root = tmp_path / "new"
    with serve(folder) as address:
        monkeypatch.setattr(CIFAR10, "url", f"{address}/{CIFAR10.filename}")
        fetch("cifar10", root)
        assert len(load_data("cifar10", root).train) == 100
        captured = capsys.readouterr()
        assert captured.out == "" and "100%" in captured.err
        # Fetching again repairs what was damaged since.
        (root / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"")
        fetch("cifar10", root)
    assert len(load_data("cifar10", root).train) == 100
