"""Strong, weak and stronger views at 32 px, on one thread, against PIL with the same operations."""

from collections.abc import Iterator

import torch
from torchvision.transforms.functional import to_pil_image

from ascl.views import ViewSpec, draw_view, make_view
from benchmarks.peers import MEAN, STD, pil_pipeline
from benchmarks.timing import Ratio, in_turns, timed

BATCH = 256


def run() -> Iterator[Ratio]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    images = torch.randint(0, 256, (BATCH, 3, 32, 32), dtype=torch.uint8)
    pictures = [to_pil_image(image) for image in images]
    generator = torch.Generator().manual_seed(0)
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    # glibc hands memory back to the system after every large free until it has seen a larger one.
    # In a training process it has, thanks to activations; here it would be half of what we time.
    torch.ones(30 * 2**18)
    for kind, goal in (("strong", "≥ 7"), ("weak", "–"), ("stronger", "–")):
        spec = ViewSpec(kind, 32)
        pipeline = pil_pipeline(kind, 32)

        def ours(spec: ViewSpec = spec) -> None:
            make_view(images, draw_view(spec, BATCH, generator), spec, mean, std)

        def peer(pipeline: object = pipeline) -> None:
            for picture in pictures:
                pipeline(picture)  # type: ignore[operator]

        ours()
        a, b = in_turns(timed(ours, 5), timed(peer), rounds=9)
        note = f"{BATCH / a:,.0f} against {BATCH / b:,.0f} images/s"
        yield Ratio(f"{kind} views, torchvision PIL, 1 thread", a, b, goal, note=note)
    torch.set_num_threads(threads)
