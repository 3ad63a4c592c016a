"""Random streams."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from ascl.seeding import derive_seed, generator, seeded_init


@given(st.integers(0, 2**31), st.integers(0, 500))
def test_streams_of_other_seeds_purposes_and_epochs_differ(seed: int, epoch: int) -> None:
    seeds = {
        derive_seed(seed, "order", epoch),
        derive_seed(seed + 1, "order", epoch),
        derive_seed(seed, "view", epoch),
        derive_seed(seed, "order", epoch + 1),
    }
    assert len(seeds) == 4


def test_a_stream_is_the_same_every_time() -> None:
    a, b = (torch.rand(5, generator=generator(3, "view", 0)) for _ in range(2))
    assert a.equal(b)


def test_initialization_does_not_use_the_global_random_state() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with seeded_init(1, "init"):
        torch.rand(10)
    assert torch.rand(3).equal(expected)
