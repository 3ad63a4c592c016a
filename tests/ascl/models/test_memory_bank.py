"""Laws of the feature bank and of the slots."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ascl.losses import unit
from ascl.models.memory_bank import FeatureBank, SlotMemory


def numbered(start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and classes that number their insertion."""
    when = torch.arange(start, start + count)
    return when.float().view(-1, 1).expand(-1, 3), when


@given(size=st.integers(2, 12), batches=st.lists(st.integers(0, 30), max_size=8))
def test_the_bank_holds_exactly_the_last_keys(size: int, batches: list[int]) -> None:
    bank = FeatureBank(size, 3)
    count = 0
    for batch in batches:
        bank.enqueue(*numbered(count, batch))
        count += batch
    kept = min(size, count)
    expected = set(range(count - kept, count))
    assert {int(c) for c in bank.classes if c >= 0} == expected
    assert {
        int(f) for f, c in zip(bank.features[:, 0], bank.classes, strict=True) if c >= 0
    } == expected
    assert (bank.features[bank.classes >= 0, 0] == bank.classes[bank.classes >= 0]).all()


@given(size=st.integers(2, 9), first=st.integers(0, 20), second=st.integers(0, 20))
def test_restored_bank_continues_at_the_same_position(size: int, first: int, second: int) -> None:
    bank, restored = FeatureBank(size, 3), FeatureBank(size, 3)
    bank.enqueue(*numbered(0, first))
    restored.load_state_dict(bank.state_dict())
    for b in (bank, restored):
        b.enqueue(*numbered(first, second))
    assert bank.features.equal(restored.features)
    assert bank.classes.equal(restored.classes)


def test_new_bank_has_unit_rows_without_class() -> None:
    bank = FeatureBank(50, 8)
    torch.testing.assert_close(bank.features.norm(dim=1), torch.ones(50))
    assert (bank.classes == -1).all()


# -- slots


def test_new_slots_are_unit_rows_without_class_and_in_the_state() -> None:
    slots = SlotMemory(50, 8)
    torch.testing.assert_close(slots.features.norm(dim=1), torch.ones(50))
    assert (slots.classes == -1).all()
    assert set(slots.state_dict()) == {"features", "classes"}


def test_the_momentum_weighs_the_old_value() -> None:
    slots = SlotMemory(3, 2)
    slots.features.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
    seen = torch.tensor([[0.0, 1.0]])
    # 0.8·(1, 0) + 0.2·(0, 1), made unit.
    slots.update(torch.tensor([0]), seen, torch.tensor([7]), momentum=0.8)
    torch.testing.assert_close(slots.features[0], torch.tensor([0.8, 0.2]) / math.sqrt(0.68))
    assert slots.features[1:].equal(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    assert slots.classes.tolist() == [7, -1, -1]


@pytest.mark.parametrize(("momentum", "stays"), [(0.0, False), (1.0, True)])
def test_all_of_the_old_value_or_none(momentum: float, stays: bool) -> None:
    slots, seen = SlotMemory(4, 3), unit(torch.randn(4, 3))
    before = slots.features.clone()
    slots.update(torch.arange(4), seen, torch.zeros(4).long(), momentum=momentum)
    torch.testing.assert_close(slots.features, before if stays else seen)


@given(st.permutations(range(7)), st.integers(0, 7), st.integers(0, 1000))
def test_each_image_moves_its_own_slot_and_no_other(
    order: list[int], count: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    slots, places = SlotMemory(7, 4), torch.tensor(order[:count], dtype=torch.long)
    before, seen = slots.features.clone(), unit(torch.randn(count, 4, generator=g))
    slots.update(places, seen, places, momentum=0.5)
    for place in range(7):
        row = order[:count].index(place) if place in order[:count] else None
        mixed = before[place] if row is None else before[place] + seen[row]
        torch.testing.assert_close(slots.features[place], mixed / mixed.norm())
        assert slots.classes[place] == (-1 if row is None else place)
