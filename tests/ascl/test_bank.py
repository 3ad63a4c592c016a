"""Laws of the feature bank."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from ascl.bank import FeatureBank


def numbered(start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features that say when they came, and the same as classes."""
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
def test_a_restored_bank_goes_on_at_the_same_place(size: int, first: int, second: int) -> None:
    bank, restored = FeatureBank(size, 3), FeatureBank(size, 3)
    bank.enqueue(*numbered(0, first))
    restored.load_state_dict(bank.state_dict())
    for b in (bank, restored):
        b.enqueue(*numbered(first, second))
    assert bank.features.equal(restored.features)
    assert bank.classes.equal(restored.classes)


def test_a_fresh_bank_has_unit_rows_of_no_class() -> None:
    bank = FeatureBank(50, 8)
    torch.testing.assert_close(bank.features.norm(dim=1), torch.ones(50))
    assert (bank.classes == -1).all()
