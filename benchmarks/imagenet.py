"""Query and key views of ImageNet-like files, in core time per image, against torchvision.

The peer is the standard setup: `ImageFolder` with a two-view transform, in a DataLoader whose
workers do everything. Our workers decode and crop, or only crop if pixels are cached (`ascl-sweep
fetch --decode`); color augmentation runs on whole batches on the training device. That device is
either this CPU, where it takes time from the workers' cores, or PyTorch's `meta` device, which
computes nothing and thus stands for a GPU. Each side runs in a separate process, with as many
workers and cores as PyTorch has threads. Batches that a loader prefetched are not timed.
"""

import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from ascl.augment.views import ViewSpec
from ascl.data.base import DATASETS, ImageFiles
from ascl.data.loader import Pixels, training_batches
from ascl.data.pixel_cache import cache_folder, decode_folders, open_decoded
from ascl.memory import keep_freed
from benchmarks.peers import pil_pipeline
from benchmarks.timing import Measure, Ratio, SeparateProcesses, alternate

FILES, HEIGHT, WIDTH, SIZE = 96, 375, 500, 224
BATCH, STEPS, ROUNDS = 32, 10, 3
WORKERS = torch.get_num_threads()
SKIP = 2 * WORKERS + 2  # prefetched batches and a warm-up


def photo(rng: np.random.Generator) -> Image.Image:
    """Make an image of noise at several scales; about 100 KB as a JPEG, like ImageNet's files."""
    picture = 18 * rng.normal(size=(HEIGHT, WIDTH, 3))
    for side in (4, 12, 40, 130):
        for channel in range(3):
            noise = Image.fromarray(rng.normal(size=(3 * side // 4, side)).astype(np.float32))
            smooth = noise.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
            picture[..., channel] += 100 * np.asarray(smooth) / side**0.5
    return Image.fromarray((128 + picture).clip(0, 255).astype(np.uint8))


def make_files(root: Path) -> Path:
    """Make a folder of JPEG files of one class, and cache their pixels."""
    rng = np.random.default_rng(0)
    (root / "train" / "n00000000").mkdir(parents=True)
    names = [f"n00000000/{i}.JPEG" for i in range(FILES)]
    for name in names:
        photo(rng).save(root / "train" / name, quality=90)
    decode_folders({root / "train": names}, lambda done, total: None)
    return root / "train"


class TwoViews:
    """Transform an image into a query and a key view with torchvision."""

    def __init__(self) -> None:
        self.views = pil_pipeline("strong", SIZE), pil_pipeline("weak", SIZE)

    def __call__(self, picture: Image.Image) -> tuple[torch.Tensor, ...]:
        return tuple(view(picture) for view in self.views)


def torchvision_batches(folder: Path) -> Iterator[Any]:
    """Load endless batches as in torchvision's documentation."""
    dataset = ImageFolder(str(folder), TwoViews())
    dataset.samples *= 1000
    return iter(DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS))


def our_batches(folder: Path, *, cached: bool, device: str) -> Iterator[Any]:
    """Load endless batches as a training run does."""
    keep_freed()
    opened = open_decoded(cache_folder(folder), "")
    assert opened
    names, decoded = opened
    paths = tuple(str(folder / name) for name in names)
    files = ImageFiles(paths, torch.zeros(FILES).long(), decoded if cached else None)
    steps = torch.randint(FILES, (1000, BATCH)).unbind()
    # Workers do the same work for strong and weak views. On the meta device use only weak views,
    # because issuing the color augmentation of strong views would take time even there.
    specs = [ViewSpec("strong" if device == "cpu" else "weak", SIZE), ViewSpec("weak", SIZE)]
    generators = [torch.Generator().manual_seed(i) for i in range(2)]
    pixels = Pixels.of(DATASETS["imagenet"], torch.device(device))
    return training_batches(files, steps, specs, generators, pixels, repeat(None))


def per_image(batches: "partial[Iterator[Any]]") -> Measure:
    """Make a measure of a fresh loader's core-seconds per image."""

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:WORKERS])

    def measure() -> float:
        fed = batches()
        for _ in range(SKIP):
            next(fed)
        start = time.perf_counter()
        for _ in range(STEPS):
            next(fed)
        return WORKERS * (time.perf_counter() - start) / (STEPS * BATCH)

    return measure


def per_worker(batches: "partial[Iterator[Any]]") -> Measure:
    """Make a measure of the MB that only one busy worker uses, not shared (USS)."""

    def measure() -> float:
        fed = batches()
        for _ in range(SKIP):
            next(fed)
        pids = [child.pid for child in multiprocessing.active_children()]
        maps = "".join(Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids)
        return sum(map(int, re.findall(r"Private_\w+: +(\d+) kB", maps))) / len(pids) / 1000

    return measure


def megabytes(batches: "partial[Iterator[Any]]") -> float:
    with SeparateProcesses() as processes:
        return processes.start(partial(per_worker, batches))()


def run() -> Iterator[Ratio]:
    with tempfile.TemporaryDirectory() as name, SeparateProcesses() as processes:
        folder = make_files(Path(name))
        peer = partial(torchvision_batches, folder)
        theirs, their_memory = processes.start(partial(per_image, peer)), megabytes(peer)
        for cached, source in ((False, "JPEG"), (True, "cached pixels")):
            memory = megabytes(partial(our_batches, folder, cached=cached, device="cpu"))
            for device, color in (("cpu", "color on CPU"), ("meta", "color on GPU, not timed")):
                batches = partial(our_batches, folder, cached=cached, device=device)
                with SeparateProcesses() as ours:
                    a, b = alternate(ours.start(partial(per_image, batches)), theirs, ROUNDS)
                yield Ratio(
                    f"ImageNet views from {source}, {color}; torchvision, {WORKERS} workers",
                    a,
                    b,
                    "≥ 1.5",
                    note=f"{1 / a:,.0f} against {1 / b:,.0f} images/s per core; "
                    f"{memory:,.0f} against {their_memory:,.0f} MB of unshared memory per worker",
                )
