"""Random streams: one seed, many independent generators, each named by what it is for.

Nothing in a run draws from a shared stream. The generator for a purpose and an epoch is made anew
from (seed, purpose, epoch), so arms with the same seed see the same images in the same views,
whatever else they draw; and a run restored at an epoch needs no saved generator state.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derived_seed(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose, unrelated to those for others."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator for one purpose."""
    return torch.Generator().manual_seed(derived_seed(seed, *purpose))


@contextmanager
def seeded_init(seed: int, *purpose: str | int) -> Iterator[None]:
    """Initialise modules from their own stream, and leave PyTorch's global one as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, *purpose))
        yield
