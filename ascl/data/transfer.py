"""Copies of tensors from the host to the device, without waiting for the device."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def send(value: T, device: torch.device) -> T:
    """Return a value with its tensors on the device, moved there in one copy from pinned memory.

    On the CPU, return the value itself.

    Args:
        value: A tensor, or a tuple, list or dataclass of values, with tensors on the CPU.
        device: The device.
    """
    if device.type == "cpu":
        return value
    # The largest elements first, so that every tensor is aligned.
    tensors = sorted(_tensors(value), key=Tensor.element_size, reverse=True)
    packed = torch.empty(
        sum(x.nbytes for x in tensors), dtype=torch.uint8, pin_memory=device.type == "cuda"
    )
    parts = packed.split([x.nbytes for x in tensors])
    for part, x in zip(parts, tensors, strict=True):
        part.view(x.dtype).view(x.shape).copy_(x)
    arrived = packed.to(device, non_blocking=True).split([x.nbytes for x in tensors])
    moved = {
        id(x): part.view(x.dtype).view(x.shape) for part, x in zip(arrived, tensors, strict=True)
    }
    out: T = _replace(value, moved)
    return out


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))


def _replace(value: Any, moved: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return moved[id(value)]
    if isinstance(value, tuple | list):
        return type(value)(_replace(item, moved) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: _replace(getattr(value, f.name), moved) for f in fields(value)}
        return replace(value, **changed)
    return value
