"""One copy moves all tensors of a value, and each keeps its type, shape and values."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ascl.data.transfer import send

TYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64)


@dataclass(frozen=True)
class Pair:
    name: str
    first: Tensor
    rest: tuple["Pair | Tensor | None", ...]


def tensor(kind: torch.dtype, shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(kind)


@given(
    st.lists(st.tuples(st.sampled_from(TYPES), st.lists(st.integers(0, 3), max_size=3)), max_size=6)
)
def test_values_arrive_in_one_copy(given: list[tuple[torch.dtype, list[int]]]) -> None:
    tensors = [tensor(kind, tuple(shape), i) for i, (kind, shape) in enumerate(given)]
    first = torch.arange(5)
    value = [Pair("a", first, (Pair("b", first.flip(0), (None, *tensors)),)), ("text", 3)]
    copies: list[int] = []

    def to(packed: Tensor, device: torch.device, *, non_blocking: bool) -> Tensor:
        assert device.type == "meta" and non_blocking
        copies.append(packed.nbytes)
        return packed.clone()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "to", to)  # a device whose values can be read
        sent: Any = send(value, torch.device("meta"))
    assert copies == [sum(x.nbytes for x in (first, first, *tensors))]
    outer, other = sent
    (inner,) = outer.rest
    assert (outer.name, inner.name, inner.rest[0], other) == ("a", "b", None, ("text", 3))
    assert outer.first.equal(first) and inner.first.equal(first.flip(0))
    for ours, expected in zip(inner.rest[1:], tensors, strict=True):
        assert ours.dtype == expected.dtype and ours.shape == expected.shape
        assert ours.equal(expected)


def test_on_the_cpu_nothing_is_copied() -> None:
    value = (torch.ones(2), [torch.zeros(3)])
    assert send(value, torch.device("cpu")) is value
