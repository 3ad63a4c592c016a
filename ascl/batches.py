"""From stored images to what a network sees: training views, and plain pictures for evaluation.

Sets in memory live as one uint8 tensor on the training device and are cut, coloured and normalised
there in batches. Sets on disk are decoded (or read, where their pixels are kept) and cropped by
DataLoader workers, the rest is the same.

Shapes: N = this rank's share of a batch, S = side of the view.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import functional as TF

from ascl.datasets import DataError, DatasetSpec, ImageFiles, Images
from ascl.decoded import RawPicture, decode
from ascl.distributed import share
from ascl.memory import keep_freed
from ascl.views import ViewDraw, ViewSpec, crop_boxes, draw_view, finish_view, make_view, normalise_

Place = str | RawPicture
CropRequest = tuple[Place, np.ndarray, np.ndarray, list[bool]]
"""Where a picture is, and its rows of `ViewDraw.crop`, `place` and `flip`, one for each view."""
# Floats of a view that a CPU takes through all that is done to them before it goes on to others:
# 4 MB, for its cache. A batch of ImageNet's is far larger, and each op would go through memory.
CACHED = 2**20
EVAL_BATCH = 256
EVAL_MARGIN = 256 / 224  # ImageNet's evaluation: shorter side 256, centre 224


@dataclass(frozen=True)
class Pixels:
    """How pictures of a dataset reach the network: where, how large, how scaled and laid out."""

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

    def laid_out(self, pictures: Tensor) -> Tensor:
        """Pictures in the memory layout that the network wants."""
        return pictures.contiguous(memory_format=self.memory_format)


def to_device(images: Images | ImageFiles, device: torch.device) -> Images | ImageFiles:
    """Move a set that is in memory to the training device."""
    if isinstance(images, ImageFiles):
        return images
    return Images(images.images.to(device), images.labels.to(device))


def training_batches(
    images: Images | ImageFiles,
    steps: Sequence[Tensor],
    specs: Sequence[ViewSpec],
    generators: Sequence[torch.Generator],
    pixels: Pixels,
) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
    """For each step's global indices: this rank's views, one per spec, and their classes.

    Each view draws from its own generator, for the whole batch, so the draws do not depend on how
    many views a method has nor on the number of ranks.
    """

    def draws(indices: Tensor) -> list[ViewDraw]:
        mine = share(len(indices))
        return [
            draw_view(spec, len(indices), g)[mine]
            for spec, g in zip(specs, generators, strict=True)
        ]

    if isinstance(images, Images):
        for indices in steps:
            index = indices[share(len(indices))].to(images.images.device)
            pictures = images.images[index]
            views = tuple(
                pixels.laid_out(make_view(pictures, draw, spec, pixels.mean, pixels.std))
                for draw, spec in zip(draws(indices), specs, strict=True)
            )
            yield views, images.labels[index]
        return

    pending: deque[list[ViewDraw]] = deque()  # the loader hands batches back in order

    def requests() -> Iterator[list[CropRequest]]:
        for indices in steps:
            drawn = draws(indices)
            pending.append(drawn)
            places = map(images.place, indices[share(len(indices))].tolist())
            # As arrays, since a tensor sent to a worker costs a file descriptor, and batches ahead
            # of a few dozen workers would use up all there are.
            crop, place, flip = (
                torch.stack([getattr(draw, name) for draw in drawn], dim=1)
                for name in ("crop", "place", "flip")
            )
            yield list(zip(places, crop.numpy(), place.numpy(), flip.tolist(), strict=True))

    for indices, crops in zip(steps, _loaded(_Crops(specs), requests()), strict=True):
        drawn = pending.popleft()
        with _one_thread(pixels.device):
            views = tuple(
                _finished(crop, draw, spec, pixels)
                for crop, draw, spec in zip(crops, drawn, specs, strict=True)
            )
        yield views, images.labels[indices[share(len(indices))]].to(pixels.device)


def plain_batches(images: Images | ImageFiles, pixels: Pixels) -> Iterator[Tensor]:
    """This rank's share of a set, un-augmented and in order, in batches (≤ EVAL_BATCH, 3, S, S)."""
    mine = range(len(images))[share(len(images))]
    parts = [mine[i : i + EVAL_BATCH] for i in range(0, len(mine), EVAL_BATCH)]
    if isinstance(images, Images):
        for part in parts:
            pictures = images.images[part.start : part.stop].float().div_(255)
            if pictures.shape[-1] != pixels.size:
                pictures = F.interpolate(
                    pictures, (pixels.size, pixels.size), mode="bilinear", antialias=True
                )
            yield pixels.laid_out(normalise_(pictures, pixels.mean, pixels.std))
        return
    places = (list(map(images.place, part)) for part in parts)
    for pictures in _loaded(_Centres(pixels.size), places):
        with _one_thread(pixels.device):
            pictures = normalise_(_floats(pictures, pixels), pixels.mean, pixels.std)
            pictures = pixels.laid_out(pictures)
        yield pictures


def _floats(pictures: Tensor, pixels: Pixels) -> Tensor:
    """Floats (N, 3, S, S) in [0, 1] on the device, channels last, of bytes (N, S, S, 3)."""
    pictures = pictures.to(pixels.device, non_blocking=True)
    return pictures.float().div_(255).permute(0, 3, 1, 2)


def _finished(crops: Tensor, draw: ViewDraw, spec: ViewSpec, pixels: Pixels) -> Tensor:
    """The view (N, 3, S, S) of crops that are bytes (N, S, S, 3)."""
    count, size = len(crops), spec.size
    shape = (count, 3, size, size)
    views = torch.empty(shape, device=pixels.device, memory_format=pixels.memory_format)
    # Samples have nothing to do with each other.
    step = max(1, CACHED // (3 * size * size)) if pixels.device.type == "cpu" else count
    for start in range(0, count, step):
        part = slice(start, start + step)
        floats = _floats(crops[part], pixels)
        views[part] = finish_view(floats, draw[part], spec, pixels.mean, pixels.std)
    return views


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU, one thread for what is done to pictures while the loader's workers are at others.

    Views are many small ops, and after each OpenMP's threads wait for each other by spinning: one
    that has to give way to a worker costs the other core too, and a view twice as much as it does
    with a single thread. For workers to colour would be worse, as they have to hand floats over.
    """
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _loaded(dataset: "Dataset[Any]", requests: Iterator[list[Any]]) -> Iterator[Any]:
    """Batches from DataLoader workers; a bad file gets its sentence without their traceback."""
    loader = DataLoader(
        dataset,
        batch_sampler=requests,
        num_workers=torch.get_num_threads(),  # Ray sets it to the CPUs a worker was given
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=_begin,
    )
    try:
        yield from loader
        return
    except DataError as error:
        sentence = str(error).strip().splitlines()[-1].partition("DataError: ")[2]
        # Its frames hold the loader in a cycle; found by the garbage collector, a loader waits five
        # seconds for its workers.
        error.__traceback__ = None
    raise DataError(sentence)


def _begin(worker: int) -> None:
    # Each picture needs about the memory that the one before it has freed.
    keep_freed()


def _opened(place: Place) -> Image.Image | RawPicture:
    return decode(place) if isinstance(place, str) else place


class _Crops(Dataset[list[np.ndarray]]):
    """Pictures cropped, resized and flipped as drawn, as bytes (S, S, 3), one for each view.

    Requests say where a picture is: a worker that held all paths would by and by copy them, as
    counting references writes to the memory that it shares with its parent.
    """

    def __init__(self, specs: Sequence[ViewSpec]) -> None:
        self.sizes = [spec.size for spec in specs]

    def __getitem__(self, request: CropRequest) -> list[np.ndarray]:
        place, candidates, where, flips = request
        picture = _opened(place)
        boxes = crop_boxes(candidates, where, picture.height, picture.width).tolist()
        crops = []
        for (top, left, height, width), flip, size in zip(boxes, flips, self.sizes, strict=True):
            crop = picture.crop((left, top, left + width, top + height))
            crop = crop.resize((size, size), Image.Resampling.BILINEAR)
            if flip:
                crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            crops.append(np.array(crop))
        return crops


class _Centres(Dataset[np.ndarray]):
    """Pictures at evaluation size, as bytes (S, S, 3)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __getitem__(self, place: Place) -> np.ndarray:
        picture = _opened(place)
        whole = picture.crop((0, 0, picture.width, picture.height))
        resized = TF.resize(whole, round(self.size * EVAL_MARGIN))
        return np.array(TF.center_crop(resized, [self.size, self.size]))
