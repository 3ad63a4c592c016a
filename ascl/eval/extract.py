"""Features of un-augmented images; each rank computes its share."""

from collections.abc import Callable

import torch
from torch import Tensor

from ascl.data.base import ImageFiles, Images
from ascl.data.loader import Pixels, plain_batches
from ascl.distributed import gather_uneven, share
from ascl.progress import Report

Encode = Callable[[Tensor], Tensor]


def report_batches(encode: Encode, report: Report) -> Encode:
    """Return an encoder that reports each batch."""

    def reporting(images: Tensor) -> Tensor:
        report()
        return encode(images)

    return reporting


def extract_features(encode: Encode, images: Images | ImageFiles, pixels: Pixels) -> Tensor:
    """Compute features (N, D) of un-augmented images; return all of them on every rank."""
    return gather_uneven(extract_own_features(encode, images, pixels), len(images))


def extract_own_features(encode: Encode, images: Images | ImageFiles, pixels: Pixels) -> Tensor:
    """Compute the features of this rank's share only."""
    own, done, out = share(len(images)), 0, torch.empty(0)
    for batch in plain_batches(images, pixels):
        part = encode(batch).float()
        if not done:  # allocate once: concatenating parts would need twice the memory
            out = part.new_empty(own.stop - own.start, part.shape[1])
        out[done : done + len(part)] = part
        done += len(part)
    return out


def own_labels(images: Images | ImageFiles, pixels: Pixels) -> Tensor:
    """Return the labels of the images in `extract_own_features`."""
    return images.labels[share(len(images))].to(pixels.device)
