"""Random streams: one seed, many independent generators, each named by its purpose.

A run has no shared random stream. The generator for a purpose and an epoch is derived from
(seed, purpose, epoch). Arms with the same seed therefore see the same images in the same views, and
a run that resumes at an epoch needs no saved generator state.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Derive a seed for one purpose, independent of the seeds for other purposes."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Create a CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive_seed(seed, *purpose))


@contextmanager
def seeded_init(seed: int, *purpose: str | int) -> Iterator[None]:
    """Initialize modules from a separate stream; leave PyTorch's global stream unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, *purpose))
        yield
