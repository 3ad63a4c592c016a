"""Strong, weak and stronger views at 32 px on one thread, against the same operations in PIL.

Our side is `training_batches`, as in a training step: it draws, plans, takes the images out of the
dataset and makes the views. Small batches show its cost per call.
"""

from collections.abc import Iterator
from itertools import count, repeat

import torch
from torchvision.transforms.functional import to_pil_image

from ascl.augment.views import ViewSpec
from ascl.data.base import Images
from ascl.data.loader import Pixels, training_batches
from benchmarks.peers import MEAN, STD, pil_pipeline
from benchmarks.timing import Ratio, alternate, timed

BATCHES, SIDE = (256, 32), 32


def run() -> Iterator[Ratio]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    images = torch.randint(0, 256, (max(BATCHES), 3, SIDE, SIDE), dtype=torch.uint8)
    dataset = Images(images, torch.zeros(len(images), dtype=torch.long))
    pictures = [to_pil_image(image) for image in images]
    pixels = Pixels(torch.device("cpu"), SIDE, torch.tensor(MEAN), torch.tensor(STD))
    # glibc returns each large freed block to the system, until an even larger block has been freed.
    # Training frees large activations. Here, free one block in advance: otherwise, returning memory
    # takes half of the measured time.
    torch.ones(30 * 2**18)
    for kind, goal in (("strong", "≥ 10"), ("weak", "–"), ("stronger", "–")):
        pipeline = pil_pipeline(kind, SIDE)
        for batch in BATCHES:
            endless = (torch.randperm(len(images))[:batch] for _ in count())
            specs, generators = [ViewSpec(kind, SIDE)], [torch.Generator().manual_seed(0)]
            made = training_batches(dataset, endless, specs, generators, pixels, repeat(None))

            def peer(pipeline: object = pipeline, batch: int = batch) -> None:
                for picture in pictures[:batch]:
                    pipeline(picture)  # type: ignore[operator]

            next(made)
            steps = 5 * max(BATCHES) // batch
            a, b = alternate(timed(made.__next__, steps), timed(peer), rounds=9)
            yield Ratio(
                f"{kind} views, batch {batch}, torchvision PIL, 1 thread",
                a,
                b,
                goal if batch == max(BATCHES) else "–",
                note=f"{batch / a:,.0f} against {batch / b:,.0f} images/s",
            )
    torch.set_num_threads(threads)
