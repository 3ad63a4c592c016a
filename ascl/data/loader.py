"""Batches of network inputs: augmented views for training, un-augmented images for evaluation.

A dataset in memory is one uint8 tensor on the training device, where batches are cropped, colored
and normalized. For a dataset on disk, DataLoader workers decode (or read cached pixels) and crop;
the rest also runs on the training device.

Shapes: N = this rank's share of a batch, S = side of the view.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import functional as TF

from ascl.augment.color import normalize_
from ascl.augment.maker import ViewMaker
from ascl.augment.plan import Plan
from ascl.augment.views import ViewDraw, ViewSpec, crop_boxes, draw_view
from ascl.data.base import DatasetSpec, ImageFiles, Images
from ascl.data.pixel_cache import RawPicture, decode
from ascl.data.transfer import send
from ascl.distributed import share
from ascl.errors import DataError
from ascl.memory import keep_freed

T = TypeVar("T")
Place = str | RawPicture
CropRequest = tuple[Place, np.ndarray, np.ndarray, list[bool]]
"""Location of an image, and its rows of `ViewDraw.crop`, `place` and `flip`, one for each view."""
EVAL_BATCH = 256
EVAL_MARGIN = 256 / 224  # ImageNet's evaluation: shorter side 256, center crop 224


@dataclass(frozen=True)
class Pixels:
    """Format of network inputs: device, size, normalization and memory layout."""

    device: torch.device
    size: int
    mean: Tensor
    std: Tensor
    memory_format: torch.memory_format = torch.channels_last

    @staticmethod
    def of(spec: DatasetSpec, device: torch.device, *, channels_last: bool = True) -> "Pixels":
        mean, std = (torch.tensor(v, device=device) for v in (spec.mean, spec.std))
        layout = torch.channels_last if channels_last else torch.contiguous_format
        return Pixels(device, spec.view_size, mean, std, layout)

    def maker(self, specs: Sequence[ViewSpec], stored: tuple[int, int] | None = None) -> ViewMaker:
        return ViewMaker.of(specs, self.mean, self.std, self.memory_format, stored)

    def lay_out(self, pictures: Tensor) -> Tensor:
        """Convert images to the memory layout of the network."""
        return pictures.contiguous(memory_format=self.memory_format)


def to_device(images: Images | ImageFiles, device: torch.device) -> Images | ImageFiles:
    """Move a dataset in memory to the training device; leave image files on disk."""
    if isinstance(images, ImageFiles):
        return images
    return Images(images.images.to(device), images.labels.to(device))


@dataclass(frozen=True)
class ViewBatch(Generic[T]):
    """This rank's share of a batch, on the training device."""

    views: tuple[Tensor, ...]  # (N, 3, S, S), one per spec
    labels: Tensor  # (N,) classes
    indices: Tensor  # (N,) of the images in the training set
    extras: T


@dataclass(frozen=True)
class _Drawn(Generic[T]):
    """What the host draws for this rank's share of a batch."""

    indices: Tensor  # (N,) of the images in the training set
    views: list[ViewDraw]
    extras: T


def training_batches(
    images: Images | ImageFiles,
    steps: Iterable[Tensor],
    specs: Sequence[ViewSpec],
    generators: Sequence[torch.Generator],
    pixels: Pixels,
    extras: Iterable[T],
) -> Iterator[ViewBatch[T]]:
    """Yield this rank's views for each training step.

    Each view draws from its own generator for the whole batch, so the draws depend neither on the
    number of views of a method nor on the number of ranks. Each step is planned before the previous
    one is made, and moves to the device in one copy: indices, draws and extras.

    Args:
        images: The training set.
        steps: Indices of the global batch of each step.
        specs: Parameters of each view.
        generators: Generator of each view.
        pixels: Format of the views.
        extras: What else each step needs on the device, for example `repeat(None)`.
    """

    def draw(indices: Tensor, extra: T) -> _Drawn[T]:
        mine = share(len(indices))
        views = [
            draw_view(spec, len(indices), generator, mine)
            for spec, generator in zip(specs, generators, strict=True)
        ]
        return _Drawn(indices[mine], views, extra)

    drawn = map(draw, steps, extras)
    if isinstance(images, Images):
        return _batches_in_memory(images, drawn, specs, pixels)
    return _batches_of_files(images, drawn, specs, pixels)


def _batches_in_memory(
    images: Images, drawn: Iterator[_Drawn[T]], specs: Sequence[ViewSpec], pixels: Pixels
) -> Iterator[ViewBatch[T]]:
    alike = defaultdict(list)  # views that one maker makes
    for view, spec in enumerate(specs):
        alike[spec.size, spec.num_ops, spec.magnitude].append(view)
    groups = list(alike.values())
    stored = images.images.shape[2], images.images.shape[3]
    makers = [pixels.maker([specs[view] for view in group], stored) for group in groups]

    def plan(step: _Drawn[T]) -> tuple[Tensor, list[list[Plan]], T]:
        plans = [
            maker.plan([step.views[view] for view in group], step.indices.numpy())
            for group, maker in zip(groups, makers, strict=True)
        ]
        return send((step.indices, plans, step.extras), pixels.device)

    for indices, plans, extras in _one_ahead(map(plan, drawn)):
        views: dict[int, Tensor] = {}
        for group, maker, parts in zip(groups, makers, plans, strict=True):
            views.update(zip(group, maker.make(images.images, parts), strict=True))
        labels = images.labels.index_select(0, indices)
        yield ViewBatch(tuple(views[view] for view in range(len(specs))), labels, indices, extras)


def _one_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield each item after computing the next one."""
    waiting = list(islice(items, 1))
    for item in items:
        waiting.append(item)
        yield waiting.pop(0)
    yield from waiting


def _batches_of_files(
    images: ImageFiles, drawn: Iterator[_Drawn[T]], specs: Sequence[ViewSpec], pixels: Pixels
) -> Iterator[ViewBatch[T]]:
    makers = [pixels.maker([spec]) for spec in specs]
    pending: deque[tuple[list[list[Plan]], Tensor, Tensor, T]] = deque()  # in the loader's order

    def requests() -> Iterator[list[CropRequest]]:
        for step in drawn:
            crops = np.arange(len(step.indices))
            plans = [
                maker.plan([draw], crops) for maker, draw in zip(makers, step.views, strict=True)
            ]
            labels = images.labels[step.indices]
            pending.append(send((plans, labels, step.indices, step.extras), pixels.device))
            places = map(images.place, step.indices.tolist())
            # As arrays, because a tensor sent to a worker needs a file descriptor, and the
            # prefetched batches of a few dozen workers would exhaust them.
            crop, place, flip = (
                np.stack([getattr(draw, name) for draw in step.views], axis=1)
                for name in ("crop", "place", "flip")
            )
            yield list(zip(places, crop, place, flip.tolist(), strict=True))

    for crops in _load_batches(_RandomCrops(specs), requests()):
        plans, labels, indices, extras = pending.popleft()
        with _one_thread(pixels.device):
            views = tuple(
                maker.make(crop.to(pixels.device, non_blocking=True), parts)[0]
                for maker, crop, parts in zip(makers, crops, plans, strict=True)
            )
        yield ViewBatch(views, labels, indices, extras)


def plain_batches(images: Images | ImageFiles, pixels: Pixels) -> Iterator[Tensor]:
    """Yield this rank's share of a dataset in order, as batches (≤ EVAL_BATCH, 3, S, S)."""
    mine = range(len(images))[share(len(images))]
    parts = [mine[i : i + EVAL_BATCH] for i in range(0, len(mine), EVAL_BATCH)]
    if isinstance(images, Images):
        for part in parts:
            pictures = images.images[part.start : part.stop].float().div_(255)
            if pictures.shape[-1] != pixels.size:
                pictures = F.interpolate(
                    pictures, (pixels.size, pixels.size), mode="bilinear", antialias=True
                )
            yield pixels.lay_out(normalize_(pictures, pixels.mean, pixels.std))
        return
    places = (list(map(images.place, part)) for part in parts)
    for pictures in _load_batches(_CenterCrops(pixels.size), places):
        with _one_thread(pixels.device):
            pictures = normalize_(_floats(pictures, pixels), pixels.mean, pixels.std)
            pictures = pixels.lay_out(pictures)
        yield pictures


def _floats(pictures: Tensor, pixels: Pixels) -> Tensor:
    """Convert bytes (N, S, S, 3) to floats (N, 3, S, S) in [0, 1] on the device, channels last."""
    pictures = pictures.to(pixels.device, non_blocking=True)
    return pictures.float().div_(255).permute(0, 3, 1, 2)


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU, use one thread for image operations while loader workers use the other cores.

    Views consist of many small operations, and OpenMP threads spin while they wait for each other
    after each one. If a worker preempts one thread, all others wait, and a view takes twice as long
    as with one thread. Coloring in the workers would be slower still, because they would have to
    transfer floats.
    """
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _load_batches(dataset: "Dataset[Any]", requests: Iterator[list[Any]]) -> Iterator[Any]:
    """Load batches with DataLoader workers; re-raise a `DataError` without its traceback."""
    loader = DataLoader(
        dataset,
        batch_sampler=requests,
        num_workers=torch.get_num_threads(),  # Ray sets it to the number of CPUs of the worker
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=_init_worker,
    )
    try:
        yield from loader
        return
    except DataError as error:
        message = str(error).strip().splitlines()[-1].partition("DataError: ")[2]
        # The traceback's frames hold the loader in a reference cycle; a loader that is freed by the
        # garbage collector waits five seconds for its workers (torch 2.15).
        error.__traceback__ = None
    raise DataError(message)


def _init_worker(worker: int) -> None:
    # Each image needs about as much memory as the previous one has freed.
    keep_freed()


def _open(place: Place) -> Image.Image | RawPicture:
    return decode(place) if isinstance(place, str) else place


class _RandomCrops(Dataset[list[np.ndarray]]):
    """Images cropped, resized and flipped as drawn, as bytes (S, S, 3), one for each view.

    Requests contain the location of an image. If workers held all paths, reference counting would
    gradually copy the memory that they share with the parent process.
    """

    def __init__(self, specs: Sequence[ViewSpec]) -> None:
        self.sizes = [spec.size for spec in specs]

    def __getitem__(self, request: CropRequest) -> list[np.ndarray]:
        place, candidates, where, flips = request
        picture = _open(place)
        boxes = crop_boxes(candidates, where, picture.height, picture.width).tolist()
        crops = []
        for (top, left, height, width), flip, size in zip(boxes, flips, self.sizes, strict=True):
            crop = picture.crop((left, top, left + width, top + height))
            crop = crop.resize((size, size), Image.Resampling.BILINEAR)
            if flip:
                crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            crops.append(np.array(crop))
        return crops


class _CenterCrops(Dataset[np.ndarray]):
    """Center crops at evaluation size, as bytes (S, S, 3)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __getitem__(self, place: Place) -> np.ndarray:
        picture = _open(place)
        whole = picture.crop((0, 0, picture.width, picture.height))
        resized = TF.resize(whole, round(self.size * EVAL_MARGIN))
        return np.array(TF.center_crop(resized, [self.size, self.size]))
