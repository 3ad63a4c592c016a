"""Query and key views of ImageNet-like files, images per second and core, against torchvision.

The peer is what one would write first: `ImageFolder` with a transform of two views in a DataLoader,
which does all on its workers. Ours decodes and crops there, or only crops where pixels are kept
(`ascl-sweep fetch --decode`), and colours whole batches on the training device. That is either this
CPU, which costs the workers' cores, or PyTorch's `meta` device, which computes nothing, as if a GPU
had the colours. Every side has as many workers as PyTorch has threads and as many cores for all it
does, and runs in a process of its own; what a loader had ready is not counted.
"""

import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from ascl.batches import Pixels, training_batches
from ascl.datasets import DATASETS, ImageFiles
from ascl.decoded import decode_folders, open_decoded, pixels_of
from ascl.memory import keep_freed
from ascl.views import ViewSpec
from benchmarks.peers import pil_pipeline
from benchmarks.timing import Apart, Measure, Ratio, in_turns

FILES, HEIGHT, WIDTH, SIZE = 96, 375, 500, 224
BATCH, STEPS, ROUNDS = 32, 10, 3
WORKERS = torch.get_num_threads()
SKIP = 2 * WORKERS + 2  # batches that a loader may have had ready, and a warm-up


def photo(rng: np.random.Generator) -> Image.Image:
    """Noise at many scales with some grain: about 100 KB as a JPEG, as ImageNet's files."""
    picture = 18 * rng.normal(size=(HEIGHT, WIDTH, 3))
    for side in (4, 12, 40, 130):
        for channel in range(3):
            noise = Image.fromarray(rng.normal(size=(3 * side // 4, side)).astype(np.float32))
            smooth = noise.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
            picture[..., channel] += 100 * np.asarray(smooth) / side**0.5
    return Image.fromarray((128 + picture).clip(0, 255).astype(np.uint8))


def make_files(root: Path) -> Path:
    """A folder of photos in one class, with their pixels kept beside it."""
    rng = np.random.default_rng(0)
    (root / "train" / "n00000000").mkdir(parents=True)
    names = [f"n00000000/{i}.JPEG" for i in range(FILES)]
    for name in names:
        photo(rng).save(root / "train" / name, quality=90)
    decode_folders({root / "train": names}, lambda done, total: None)
    return root / "train"


class TwoViews:
    """torchvision's query and key of a picture."""

    def __init__(self) -> None:
        self.views = pil_pipeline("strong", SIZE), pil_pipeline("weak", SIZE)

    def __call__(self, picture: Image.Image) -> tuple[torch.Tensor, ...]:
        return tuple(view(picture) for view in self.views)


def torchvisions(folder: Path) -> Iterator[Any]:
    """Endless batches as torchvision's documentation would have one make them."""
    dataset = ImageFolder(str(folder), TwoViews())
    dataset.samples *= 1000
    return iter(DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS))


def ours(folder: Path, *, kept: bool, device: str) -> Iterator[Any]:
    """Endless batches as a run has them."""
    keep_freed()
    opened = open_decoded(pixels_of(folder), "")
    assert opened
    names, decoded = opened
    paths = tuple(str(folder / name) for name in names)
    files = ImageFiles(paths, torch.zeros(FILES).long(), decoded if kept else None)
    steps = torch.randint(FILES, (1000, BATCH)).unbind()
    # A worker's part is the same for both kinds; the other device's is not to be timed at all.
    specs = [ViewSpec("strong" if device == "cpu" else "weak", SIZE), ViewSpec("weak", SIZE)]
    generators = [torch.Generator().manual_seed(i) for i in range(2)]
    pixels = Pixels.of(DATASETS["imagenet"], torch.device(device))
    return training_batches(files, steps, specs, generators, pixels)


def per_image(batches: "partial[Iterator[Any]]") -> Measure:
    """Seconds per image, times cores, of a fresh loader."""

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
    """Megabytes that a worker in the midst of its work shares with no other process (USS)."""

    def measure() -> float:
        fed = batches()
        for _ in range(SKIP):
            next(fed)
        pids = [child.pid for child in multiprocessing.active_children()]
        maps = "".join(Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids)
        return sum(map(int, re.findall(r"Private_\w+: +(\d+) kB", maps))) / len(pids) / 1000

    return measure


def megabytes(batches: "partial[Iterator[Any]]") -> float:
    with Apart() as apart:
        return apart.start(partial(per_worker, batches))()


def run() -> Iterator[Ratio]:
    with tempfile.TemporaryDirectory() as name, Apart() as apart:
        folder = make_files(Path(name))
        peer = partial(torchvisions, folder)
        theirs, their_memory = apart.start(partial(per_image, peer)), megabytes(peer)
        for kept, source in ((False, "JPEG"), (True, "kept pixels")):
            memory = megabytes(partial(ours, folder, kept=kept, device="cpu"))
            for device, colours in (("cpu", "colours on the CPU"), ("meta", "colours elsewhere")):
                batches = partial(ours, folder, kept=kept, device=device)
                with Apart() as beside:
                    a, b = in_turns(beside.start(partial(per_image, batches)), theirs, ROUNDS)
                yield Ratio(
                    f"ImageNet views from {source}, {colours}; torchvision, {WORKERS} workers",
                    a,
                    b,
                    "≥ 1.5",
                    note=f"{1 / a:,.0f} against {1 / b:,.0f} images/s a core; "
                    f"{memory:,.0f} against {their_memory:,.0f} MB of a worker's own",
                )
