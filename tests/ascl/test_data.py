"""Laws of the datasets: which images a run sees, and what is said when they cannot be read."""

import hashlib
import http.server
import io
import pickle
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100, STL10

from ascl import data, datasets
from ascl.data import fetch, load_data
from ascl.datasets import DATASETS, DataError, ImageFiles, Images, dataset_spec

TINY = "tiny-imagenet-200"


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


class Trap:
    """Fails the test that unpickles it."""

    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("a file with a wrong checksum was unpickled",)


def sentence(name: str, root: Path, **options: float) -> str:
    """What is said when a dataset cannot be read: one line."""
    with pytest.raises(DataError) as caught:
        load_data(name, root, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------- small sets, as published


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
    monkeypatch.setattr(CIFAR10, "train_list", [[name, sums[name]] for name in names[:-1]])
    monkeypatch.setattr(CIFAR10, "test_list", [[names[-1], sums[names[-1]]]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": md5(folder / "batches.meta")})
    return tmp_path


@pytest.fixture
def stl10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with an STL-10 of 40 labelled, 60 unlabelled and 10 test images."""
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for part, count in {"train": 40, "unlabeled": 60, "test": 10}.items():
        rng.integers(0, 256, (count, 3, 96, 96), dtype=np.uint8).tofile(folder / f"{part}_X.bin")
        if part != "unlabeled":
            (np.arange(count) % 10 + 1).astype(np.uint8).tofile(folder / f"{part}_y.bin")
    for files in ("train_list", "test_list"):
        sums = [[name, md5(folder / name)] for name, _ in getattr(STL10, files)]
        monkeypatch.setattr(STL10, files, sums)
    return tmp_path


def jpeg(colour: int, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (64, 64), colour if mode == "L" else (colour,) * 3).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with a Tiny ImageNet of 200 classes, two training images and one val image each.

    The images of class c are of grey level c, and the first of each class is stored greyscale.
    """
    monkeypatch.setattr(datasets, "_TINY_PER_CLASS", {"train": 2, "test": 1})
    folder = tmp_path / TINY
    (folder / "val" / "images").mkdir(parents=True)
    wnids = [f"n{c:08}" for c in range(200)]
    (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in reversed(wnids)))
    for c, wnid in enumerate(wnids):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        (images.parent / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t63\t63\n")
        (images / f"{wnid}_0.JPEG").write_bytes(jpeg(c, "L"))
        (images / f"{wnid}_1.JPEG").write_bytes(jpeg(c))
        (folder / "val" / "images" / f"val_{c}.JPEG").write_bytes(jpeg(c))
    rows = [f"val_{c}.JPEG\t{wnid}\t0\t0\t63\t63\n" for c, wnid in enumerate(wnids)]
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))
    return tmp_path


def zip_tiny(root: Path) -> Path:
    """Replace the folder with the archive it would have come from."""
    with zipfile.ZipFile(root / f"{TINY}.zip", "w") as archive:
        for path in sorted((root / TINY).rglob("*")):
            archive.write(path, path.relative_to(root))
    shutil.rmtree(root / TINY)
    return root / f"{TINY}.zip"


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """A root with an ImageNet of empty files, two for training and one for validation a class."""
    for split, count in {"train": 2, "val": 1}.items():
        for c in range(1000):
            folder = tmp_path / "imagenet" / split / f"n{c:08}"
            folder.mkdir(parents=True)
            for i in range(count):
                (folder / f"{i}.JPEG").touch()
    return tmp_path


# ---------------------------------------------------------------- names


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"no dataset named 'cifar' .*; there are: cifar10, cifar100"
    ):
        dataset_spec("cifar")


def test_every_spec_is_found_under_its_name() -> None:
    assert all(dataset_spec(name).name == name for name in DATASETS)
    assert [name for name, spec in DATASETS.items() if spec.streams] == ["imagenet"]


def test_the_mean_and_deviation_of_shapes_are_those_of_its_pixels() -> None:
    pixels = load_data("shapes", "nowhere").train.images.double() / 255
    spec = dataset_spec("shapes")
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(spec.mean, abs=1e-4)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(spec.std, abs=1e-4)


# ---------------------------------------------------------------- subsets

label_lists = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(torch.tensor)


@given(labels=label_lists, share=st.floats(0.01, 1))
def test_a_subset_is_exact_and_as_balanced_as_the_classes_allow(
    labels: torch.Tensor, share: float
) -> None:
    size = max(1, int(share * len(labels)))
    chosen = data._subset(labels, size, "any")
    assert len(chosen.unique()) == len(chosen) == size
    counts, there = (part.bincount(minlength=5) for part in (labels[chosen], labels))
    # A class may fall behind the largest by more than one only when it has no more to give.
    assert ((counts >= counts.max() - 1) | (counts == there)).all()


@given(labels=label_lists, sizes=st.tuples(st.integers(1, 60), st.integers(1, 60)))
def test_a_subset_is_contained_in_every_larger_one(
    labels: torch.Tensor, sizes: tuple[int, int]
) -> None:
    small, large = sorted(min(size, len(labels)) for size in sizes)
    inner, outer = (set(data._subset(labels, n, "any").tolist()) for n in (small, large))
    assert inner <= outer


@given(seed=st.integers(0, 1000))
def test_subsets_do_not_depend_on_the_seed_of_the_run(seed: int) -> None:
    labels = torch.arange(50) % 5
    expected = data._subset(labels, 20, "any")
    torch.manual_seed(seed)
    assert data._subset(labels, 20, "any").equal(expected)


@given(per_class=st.integers(2, 30), share=st.floats(0.01, 0.99), unlabelled=st.integers(0, 40))
def test_a_holdout_is_a_balanced_share_of_the_labelled_and_disjoint_from_train(
    per_class: int, share: float, unlabelled: int
) -> None:
    labels = torch.cat([torch.arange(10 * per_class) % 10, torch.full((unlabelled,), -1)])
    chosen = data._subset(labels, None, "any")
    size = round(share * (10 * per_class))
    if not 10 <= size <= 10 * per_class - 10:
        with pytest.raises(ValueError, match="at least one image of each class"):
            data._hold_out(labels, chosen, share, dataset_spec("shapes"))
        return
    kept, held = data._hold_out(labels, chosen, share, dataset_spec("shapes"))
    assert torch.cat([kept, held]).sort().values.equal(torch.arange(len(labels)))
    counts = labels[held].bincount(minlength=10)
    assert counts.sum() == size and counts.max() - counts.min() <= 1


def test_a_holdout_is_scored_in_place_of_the_test_split() -> None:
    part = load_data("shapes", "nowhere", train_size=200, holdout=0.25)
    whole = load_data("shapes", "nowhere", train_size=200)
    assert (part.scored, len(part.train), len(part.test)) == ("holdout", 150, 50)
    assert (whole.scored, len(whole.train), len(whole.test)) == ("test", 200, 2000)
    seen = {image.numpy().tobytes() for image in whole.train.images}
    train, held = ({i.numpy().tobytes() for i in d.images} for d in (part.train, part.test))
    assert train | held == seen and not train & held


@pytest.mark.parametrize("size", [0, -1, 10_001])
def test_a_subset_larger_than_train_or_empty_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=rf"the 10000 training images of shapes, got {size};"):
        load_data("shapes", "nowhere", train_size=size)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_holdout_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=f"at least 0 and below 1, got {share}"):
        load_data("shapes", "nowhere", holdout=share)


def test_shapes_need_no_files_and_all_are_labelled() -> None:
    shapes = load_data("shapes", "nowhere")
    assert (len(shapes.train), len(shapes.test)) == (10_000, 2_000)
    assert shapes.reference is shapes.train
    fetch("shapes", "nowhere")
    assert not Path("nowhere").exists()


# ---------------------------------------------------------------- CIFAR


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


def test_missing_cifar_says_where_and_how_to_get_it(tmp_path: Path) -> None:
    assert sentence("cifar100", tmp_path) == (
        f"cifar100 is not in {tmp_path}: no {tmp_path}/cifar-100-python; "
        f"get it with `ascl-sweep fetch cifar100 --root {tmp_path}`"
    )


def test_a_half_extracted_cifar_names_the_missing_file(cifar10: Path) -> None:
    path = cifar10 / "cifar-10-batches-py" / "data_batch_4"
    path.unlink()
    assert f"no {path}; get it with" in sentence("cifar10", cifar10)


@pytest.mark.parametrize("file", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_damaged_cifar_file_is_named_and_never_unpickled(cifar10: Path, file: str) -> None:
    path = cifar10 / "cifar-10-batches-py" / file
    path.write_bytes(pickle.dumps(Trap()))
    said = sentence("cifar10", cifar10)
    assert f"{path} is damaged (its checksum differs from the published one); delete it" in said


def test_an_unreadable_file_is_a_sentence(cifar10: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", "data_batch_1")

    monkeypatch.setattr(CIFAR10, "__init__", refuse)
    assert "cannot be read ([Errno 13] Permission denied" in sentence("cifar10", cifar10)


# ---------------------------------------------------------------- STL-10


def test_stl10_is_read_as_torchvision_reads_it(stl10: Path) -> None:
    read = load_data("stl10", stl10)
    parts = ((read.train, "train+unlabeled"), (read.reference, "train"), (read.test, "test"))
    for ours, split in parts:
        theirs = STL10(stl10, split=split)
        assert isinstance(ours, Images) and ours.images.is_contiguous()
        assert ours.images.equal(torch.from_numpy(theirs.data.copy()))
        assert ours.labels.tolist() == theirs.labels.tolist()


def test_a_subset_of_stl10_keeps_the_share_of_the_unlabelled(stl10: Path) -> None:
    part = load_data("stl10", stl10, train_size=50)
    assert (part.train.labels == -1).sum() == 30
    assert part.reference.labels.bincount().tolist() == [2] * 10


def test_a_holdout_of_stl10_comes_from_the_labelled(stl10: Path) -> None:
    part = load_data("stl10", stl10, holdout=0.5)
    assert part.test.labels.bincount().tolist() == [2] * 10
    assert (len(part.train), len(part.reference)) == (80, 20)


def test_a_subset_without_a_labelled_image_is_refused(stl10: Path) -> None:
    with pytest.raises(ValueError, match="only 40 of the 100 images of stl10 have labels"):
        load_data("stl10", stl10, train_size=1)


def test_a_damaged_stl10_file_is_named(stl10: Path) -> None:
    path = stl10 / "stl10_binary" / "unlabeled_X.bin"
    path.write_bytes(path.read_bytes()[:-1])
    assert f"{path} is damaged" in sentence("stl10", stl10)
    path.unlink()
    assert f"no {path}; get it with" in sentence("stl10", stl10)


# ---------------------------------------------------------------- Tiny ImageNet


@pytest.mark.parametrize("zipped", [False, True])
def test_tiny_imagenet_is_read_from_folder_or_archive(tiny: Path, zipped: bool) -> None:
    if zipped:
        zip_tiny(tiny)
    read = load_data("tiny_imagenet", tiny)
    assert isinstance(read.train, Images) and isinstance(read.test, Images)
    assert read.train.images.shape == (400, 3, 64, 64)
    assert read.test.images.shape == (200, 3, 64, 64)
    # The grey level is the class, by sorted wnid; greyscale files are spread over the channels.
    for part in (read.train, read.test):
        assert part.images[:, :, 5, 5].equal(part.labels[:, None].expand(-1, 3).to(torch.uint8))


def test_missing_tiny_imagenet_says_how_to_get_it(tmp_path: Path) -> None:
    said = sentence("tiny_imagenet", tmp_path)
    assert f"no {tmp_path}/{TINY}.zip; get it with `ascl-sweep fetch tiny_imagenet" in said


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("wnids.txt", "no wnids.txt in it"),
        ("val/val_annotations.txt", "no val/val_annotations.txt in it"),
        ("train/n00000007", "it holds 0 of 2 train images of class n00000007"),
        (
            "train/n00000007/images/n00000007_1.JPEG",
            "it holds 1 of 2 train images of class n00000007",
        ),
        ("val/images/val_5.JPEG", "it holds 0 of 1 test images of class n00000005"),
    ],
)
def test_a_half_extracted_tiny_imagenet_is_told(tiny: Path, lost: str, said: str) -> None:
    path = tiny / TINY / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert f"{tiny / TINY} is damaged ({said}); delete it" in sentence("tiny_imagenet", tiny)


@pytest.mark.parametrize("file", ["wnids.txt", "val/val_annotations.txt"])
def test_a_cut_listing_of_tiny_imagenet_is_told(tiny: Path, file: str) -> None:
    path = tiny / TINY / file
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    assert f"{tiny / TINY} is damaged" in sentence("tiny_imagenet", tiny)


def test_a_broken_image_of_tiny_imagenet_is_named(tiny: Path) -> None:
    name = "train/n00000003/images/n00000003_0.JPEG"
    whole = (tiny / TINY / name).read_bytes()
    for broken in (b"", b"no image", whole[: len(whole) // 2]):
        (tiny / TINY / name).write_bytes(broken)
        assert f"{name} is not a readable 64 x 64 image" in sentence("tiny_imagenet", tiny)


def test_a_truncated_archive_of_tiny_imagenet_is_told(tiny: Path) -> None:
    archive = zip_tiny(tiny)
    archive.write_bytes(archive.read_bytes()[:-1000])
    assert f"{archive} is damaged (" in sentence("tiny_imagenet", tiny)


def test_a_flipped_bit_in_the_archive_of_tiny_imagenet_is_told(tiny: Path) -> None:
    archive = zip_tiny(tiny)
    content = bytearray(archive.read_bytes())
    content[content.index(jpeg(9)) + 300] ^= 1
    archive.write_bytes(content)
    assert "n00000009_1.JPEG is not a readable" in sentence("tiny_imagenet", tiny)


# ---------------------------------------------------------------- ImageNet


def test_imagenet_is_listed_not_read(imagenet: Path) -> None:
    read = load_data("imagenet", imagenet, train_size=1000)
    assert isinstance(read.train, ImageFiles) and isinstance(read.test, ImageFiles)
    assert read.train.labels.tolist() == list(range(1000)) == read.test.labels.tolist()
    for path, label in zip(read.train.paths, read.train.labels.tolist(), strict=True):
        assert Path(path).parent == imagenet / "imagenet" / "train" / f"n{label:08}"


def test_missing_imagenet_says_where_to_register_and_unpack(tmp_path: Path) -> None:
    said = sentence("imagenet", tmp_path)
    assert "register at https://image-net.org" in said
    assert f"{tmp_path}/imagenet/train/<wnid>/" in said and "val/<wnid>/" in said
    with pytest.raises(DataError, match="imagenet cannot be fetched; its licence"):
        fetch("imagenet", tmp_path)


def test_a_half_unpacked_imagenet_is_told(imagenet: Path) -> None:
    val, train = imagenet / "imagenet" / "val", imagenet / "imagenet" / "train"
    (train / "n00000004" / "0.JPEG").unlink()
    (train / "n00000004" / "1.JPEG").unlink()
    assert f"{train}/n00000004 is incomplete (it holds no .JPEG" in sentence("imagenet", imagenet)
    (train / "n00000004").rmdir()
    said = sentence("imagenet", imagenet)
    assert f"{train} is incomplete (it holds 999 of 1000 class folders)" in said
    (train / "n00000004").mkdir()
    (train / "n00000004" / "0.JPEG").touch()
    shutil.rmtree(val)
    assert f"no {val};" in sentence("imagenet", imagenet)


# ---------------------------------------------------------------- fetching


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder and the address on this machine where its files can be had."""
    folder = tmp_path_factory.mktemp("served")
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *args: Quiet(*args, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_fetched_cifar_can_be_read_and_only_stderr_was_used(
    cifar10: Path,
    served: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, address = served
    with tarfile.open(folder / CIFAR10.filename, "w:gz") as archive:
        archive.add(cifar10 / "cifar-10-batches-py", "cifar-10-batches-py")
    monkeypatch.setattr(CIFAR10, "url", f"{address}/{CIFAR10.filename}")
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(folder / CIFAR10.filename))
    root = tmp_path / "new"
    fetch("cifar10", root)
    assert len(load_data("cifar10", root).train) == 100
    captured = capsys.readouterr()
    assert captured.out == "" and "100%" in captured.err
    # Fetching again mends what was damaged since.
    (root / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"")
    fetch("cifar10", root)
    assert len(load_data("cifar10", root).train) == 100


def test_a_fetched_tiny_imagenet_can_be_read(
    tiny: Path, served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = served
    archive = zip_tiny(tiny).rename(folder / f"{TINY}.zip")
    monkeypatch.setattr(datasets, "_TINY_URL", f"{address}/{TINY}.zip")
    monkeypatch.setattr(datasets, "_TINY_MD5", md5(archive))
    fetch("tiny_imagenet", tmp_path / "new")
    assert len(load_data("tiny_imagenet", tmp_path / "new", train_size=200).train) == 200


def test_a_download_with_a_wrong_checksum_is_told_and_never_read(
    served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = served
    (folder / f"{TINY}.zip").write_bytes(b"not what was published")
    monkeypatch.setattr(datasets, "_TINY_URL", f"{address}/{TINY}.zip")
    with pytest.raises(DataError, match=r"could not be downloaded to .* \(File not found or corr"):
        fetch("tiny_imagenet", tmp_path)
    assert "tiny_imagenet is not in" in sentence("tiny_imagenet", tmp_path)


@pytest.mark.parametrize("source", [CIFAR10, CIFAR100, STL10])
def test_no_network_is_a_sentence(
    source: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Port 9 of this machine: nothing listens there.
    monkeypatch.setattr(source, "url", "http://127.0.0.1:9/archive.tar.gz")
    name = source.__name__.lower()
    with pytest.raises(DataError, match=f"{name} could not be downloaded to .* check the network"):
        fetch(name, tmp_path)
