"""Base types of datasets, and the registry of datasets by name.

A dataset file in this folder defines `LABELS`, the table names of its datasets, and `SPECS`, their
`DatasetSpec`s. A split is read in two steps: all labels first, then only the selected images, so
that a small subset of a large dataset is cheap. This module does not load torch.
"""

# Shapes: N = images, H and W = their size as stored.

import shlex
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import ascl.data
from ascl.errors import DataError, unknown_name
from ascl.plugins import find_modules, read_constants

if TYPE_CHECKING:
    from torch import Tensor

    from ascl.data.pixel_cache import Decoded, OnDecoded, RawPicture


@dataclass(frozen=True, eq=False)
class Images:
    """Images held in memory."""

    images: "Tensor"
    """uint8 (N, 3, H, W), contiguous."""
    labels: "Tensor"
    """int64 (N,); −1 is unlabeled."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Images on disk, decoded when they are needed."""

    paths: tuple[str, ...]
    labels: "Tensor"
    """int64 (N,)."""
    decoded: "Decoded | None" = None
    """Location of the cached pixels, if there are any."""

    def __len__(self) -> int:
        return len(self.labels)

    def place(self, index: int) -> "str | RawPicture":
        """Return the location that a loader worker reads an image from: a file or cached pixels."""
        return self.paths[index] if self.decoded is None else self.decoded.picture(index)


@dataclass(frozen=True, eq=False)
class Split:
    """A split with known labels, whose images are read on demand."""

    labels: "Tensor"
    take: "Callable[[Tensor], Images | ImageFiles]"
    """Read the images at these indices."""


@dataclass(frozen=True)
class DatasetSpec:
    """Description of a dataset."""

    name: str
    num_classes: int
    image_size: int | None
    """Side of the stored images; None if it varies."""
    view_size: int
    """Side of the training views."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    open: Callable[["DatasetSpec", Path, str], Split]
    """Open the split "train" or "test" in a root folder."""
    download: Callable[["DatasetSpec", Path], None]
    streams: bool = False
    """Whether images stay on disk and are decoded by loader workers."""
    decode: "Callable[[DatasetSpec, Path, OnDecoded], None] | None" = None
    """Cache the decoded pixels of all images on disk; None if images are held in memory."""
    code_max_pool: bool = False
    """Whether the authors' code (`preset: code`) uses the encoder's max-pool for this dataset."""


def fetch_command(spec: DatasetSpec, root: Path) -> str:
    return f"`ascl-sweep fetch {spec.name} --root {shlex.quote(str(root))}`"


def missing_data(spec: DatasetSpec, root: Path, path: Path) -> DataError:
    return DataError(
        f"{spec.name} is not in {root}: {path} does not exist; "
        f"download it with {fetch_command(spec, root)}"
    )


def damaged_data(spec: DatasetSpec, root: Path, path: Path, how: str) -> DataError:
    return DataError(f"{path} is damaged ({how}); delete it and run {fetch_command(spec, root)}")


def check_files(spec: DatasetSpec, root: Path, folder: str, files: Sequence[Sequence[str]]) -> None:
    """Raise `DataError` for the first file that is missing or differs from the published one."""
    from torchvision.datasets.utils import check_integrity

    for file, md5 in files:
        path = root / folder / file
        if not path.is_file():
            raise missing_data(spec, root, path if path.parent.is_dir() else path.parent)
        if not check_integrity(path, md5):
            raise damaged_data(spec, root, path, "its checksum differs from the published one")


def _read_labels() -> dict[str, tuple[str, str]]:
    """Return the module and the label of every dataset, without importing the modules."""
    return {
        name: (module, label)
        for module, path in find_modules(tuple(ascl.data.__path__)).items()
        for name, label in read_constants(path).get("LABELS", {}).items()
    }


def dataset_label(name: str) -> str:
    """Return the name of a dataset in tables; for an unknown dataset, the given name."""
    return _read_labels().get(name, ("", name))[1]


class _Datasets(MutableMapping[str, DatasetSpec]):
    """Datasets by name. A dataset's module is imported when its spec is first read."""

    def __init__(self) -> None:
        self._loaded: dict[str, DatasetSpec] = {}

    def __getitem__(self, name: str) -> DatasetSpec:
        if name not in self._loaded:
            module = import_module(f"ascl.data.{_read_labels()[name][0]}")
            self._loaded[name] = {spec.name: spec for spec in module.SPECS}[name]
        return self._loaded[name]

    def __setitem__(self, name: str, spec: DatasetSpec) -> None:
        self._loaded[name] = spec

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**_read_labels(), **self._loaded})

    def __len__(self) -> int:
        return len({**_read_labels(), **self._loaded})


DATASETS = _Datasets()


def dataset_spec(name: str) -> DatasetSpec:
    """Return a dataset by name; raise `DataError` if it does not exist."""
    if name not in DATASETS:
        raise DataError(unknown_name("dataset", name, DATASETS))
    return DATASETS[name]
