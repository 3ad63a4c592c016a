"""From stored images to what a network sees: training views, and plain pictures for evaluation.

Sets in memory live as one uint8 tensor on the training device and are cut, coloured and normalised
there in batches. Sets on disk are decoded and cropped by DataLoader workers, the rest is the same.

Shapes: N = this rank's share of a batch, S = side of the view.
"""

from collections import deque
from collections.abc import Iterator, Sequence
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
from ascl.distributed import share
from ascl.views import ViewDraw, ViewSpec, crop_boxes, draw_view, finish_view, make_view, normalise_

CropDraw = tuple[np.ndarray, np.ndarray, bool]
"""A sample's row of `ViewDraw.crop`, `place` and `flip`."""
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

    def requests() -> Iterator[list[tuple[int, list[CropDraw]]]]:
        for indices in steps:
            drawn = draws(indices)
            pending.append(drawn)
            mine = indices[share(len(indices))].tolist()
            rows = [_crop_draws(draw) for draw in drawn]
            yield list(zip(mine, map(list, zip(*rows, strict=True)), strict=True))

    for crops, labels in _loaded(_Crops(images, specs), requests()):
        drawn = pending.popleft()
        views = tuple(
            pixels.laid_out(finish_view(_floats(crop, pixels), draw, spec, pixels.mean, pixels.std))
            for crop, draw, spec in zip(crops, drawn, specs, strict=True)
        )
        yield views, labels.to(pixels.device, non_blocking=True)


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
    for pictures in _loaded(_Centres(images, pixels.size), iter([list(part) for part in parts])):
        pictures = normalise_(_floats(pictures, pixels), pixels.mean, pixels.std)
        yield pixels.laid_out(pictures)


def _floats(pictures: Tensor, pixels: Pixels) -> Tensor:
    return pictures.to(pixels.device, non_blocking=True).float().div_(255)


def _crop_draws(draw: ViewDraw) -> list[CropDraw]:
    """What a worker needs to know of each sample; as arrays, since a tensor sent to a worker costs
    a file descriptor, and batches ahead of a few dozen workers would use up all there are."""
    return list(zip(draw.crop.numpy(), draw.place.numpy(), draw.flip.tolist(), strict=True))


def _loaded(dataset: "Dataset[Any]", requests: Iterator[list[Any]]) -> Iterator[Any]:
    """Batches from DataLoader workers; a bad file gets its sentence without their traceback."""
    loader = DataLoader(
        dataset,
        batch_sampler=requests,
        num_workers=torch.get_num_threads(),  # Ray sets it to the CPUs a worker was given
        pin_memory=torch.cuda.is_available(),
    )
    try:
        yield from loader
    except DataError as error:
        raise DataError(str(error).strip().splitlines()[-1].partition("DataError: ")[2]) from None


def _decode(path: str) -> Image.Image:
    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except OSError as error:
        raise DataError(f"{path} cannot be decoded: {error}; fetch that file again") from error


class _Crops(Dataset[tuple[list[Tensor], int]]):
    """Decoded pictures, cropped and flipped as drawn, one crop per view."""

    def __init__(self, files: ImageFiles, specs: Sequence[ViewSpec]) -> None:
        self.files, self.specs = files, specs

    def __getitem__(self, request: tuple[int, list[CropDraw]]) -> tuple[list[Tensor], int]:
        index, draws = request
        picture = _decode(self.files.paths[index])
        crops = []
        for (drawn, place, flip), spec in zip(draws, self.specs, strict=True):
            candidates, where = torch.from_numpy(drawn)[None], torch.from_numpy(place)[None]
            boxes = crop_boxes(candidates, where, picture.height, picture.width)
            top, left, height, width = boxes[0].tolist()
            crop = TF.resized_crop(picture, top, left, height, width, [spec.size, spec.size])
            crops.append(TF.pil_to_tensor(TF.hflip(crop) if flip else crop))
        return crops, int(self.files.labels[index])


class _Centres(Dataset[Tensor]):
    """Decoded pictures at evaluation size."""

    def __init__(self, files: ImageFiles, size: int) -> None:
        self.files, self.size = files, size

    def __getitem__(self, index: int) -> Tensor:
        picture = TF.resize(_decode(self.files.paths[index]), round(self.size * EVAL_MARGIN))
        out: Tensor = TF.pil_to_tensor(TF.center_crop(picture, [self.size, self.size]))
        return out
