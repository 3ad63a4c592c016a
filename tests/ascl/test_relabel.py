"""Laws of relabeling; the fast code against eq. 5–11 written as loops."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from ascl.relabel import Relabel, confidence, entropy, label_diagnostics, relabel, relation

KINDS: tuple[Relabel, ...] = ("none", "hard", "ahcl", "ascl")


def similarities(
    seed: int, n: int = 6, bank: int = 20, dtype: torch.dtype = torch.float64
) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    key = torch.nn.functional.normalize(torch.randn(n, 5, generator=g, dtype=dtype), dim=1)
    others = torch.nn.functional.normalize(torch.randn(bank, 5, generator=g, dtype=dtype), dim=1)
    return key @ others.T


def by_loops(d: Tensor, kind: Relabel, k: int, t: float) -> Tensor:
    """The paper's equations, one number at a time."""
    rows = []
    for row in d.tolist():
        n = len(row)
        weights = [math.exp((x - max(row)) / t) for x in row]
        q = [w / sum(weights) for w in weights]
        c = 1 - sum(-p * math.log(p) for p in q if p > 0) / math.log(n)
        nearest = sorted(range(n), key=lambda j: -row[j])[:k]
        y = [1.0]
        for j in range(n):
            hard = 1.0 if j in nearest else 0.0
            y.append(
                {"none": 0.0, "hard": hard, "ahcl": c * hard, "ascl": min(1, c * k * q[j])}[kind]
            )
        rows.append([v / sum(y) for v in y])
    return torch.tensor(rows, dtype=torch.float64)


cases = {
    "seed": st.integers(0, 10_000),
    "k": st.integers(0, 20),
    "t": st.sampled_from([0.01, 0.02, 0.05, 0.1, 0.5, 5.0]),
    "kind": st.sampled_from(KINDS),
}


@given(**cases)
def test_labels_follow_the_equations(seed: int, k: int, t: float, kind: Relabel) -> None:
    d = similarities(seed)
    labels = relabel(d, kind, num_neighbours=k, temperature=t)
    torch.testing.assert_close(labels, by_loops(d, kind, k, t))


def test_a_hand_computed_row() -> None:
    # q = (2/3, 1/3): H = ln 3 − (2/3) ln 2, c = 1 − H / ln 2 = 0.0817; K = 1.
    d = torch.tensor([[math.log(2.0), 0.0]], dtype=torch.float64)
    c = 1 - (math.log(3) - 2 / 3 * math.log(2)) / math.log(2)
    labels = relabel(d, "ascl", num_neighbours=1, temperature=1.0)
    expected = torch.tensor([[1, c * 2 / 3, c / 3]], dtype=torch.float64) / (1 + c)
    torch.testing.assert_close(labels, expected)
    assert c == pytest.approx(0.0817, abs=1e-4)


@given(**cases)
def test_label_rows_sum_to_one_and_no_neighbor_outweighs_the_key(
    seed: int, k: int, t: float, kind: Relabel
) -> None:
    labels = relabel(similarities(seed, dtype=torch.float32), kind, num_neighbours=k, temperature=t)
    torch.testing.assert_close(labels.sum(dim=1), torch.ones(len(labels)))
    assert (labels[:, 1:] <= labels[:, :1]).all()
    assert (labels >= 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_zero_neighbors_is_moco(kind: Relabel) -> None:
    labels = relabel(similarities(0), kind, num_neighbours=0, temperature=0.05)
    assert labels[:, 0].eq(1).all()
    assert labels[:, 1:].eq(0).all()


@given(seed=st.integers(0, 1000), k=st.integers(1, 20))
def test_a_vanishing_target_temperature_is_hard_with_one_neighbor(seed: int, k: int) -> None:
    d = similarities(seed)
    first, second = d.topk(2, dim=1).values.unbind(1)
    assume(bool((first - second > 1e-4).all()))  # the law wants a top neighbour that stands out
    cold = relabel(d, "ascl", num_neighbours=k, temperature=1e-6)
    hard = relabel(d, "hard", num_neighbours=1, temperature=1.0)
    torch.testing.assert_close(cold, hard)


@given(seed=st.integers(0, 1000), k=st.integers(1, 20))
def test_a_huge_target_temperature_is_moco(seed: int, k: int) -> None:
    d = similarities(seed)
    warm = relabel(d, "ascl", num_neighbours=k, temperature=1e6)
    plain = relabel(d, "none", num_neighbours=k, temperature=1.0)
    torch.testing.assert_close(warm, plain, atol=1e-6, rtol=0)


@given(seed=st.integers(0, 1000), t=st.sampled_from([0.2, 0.5, 1.0]), k=st.integers(1, 3))
def test_without_clamping_the_key_keeps_one_over_one_plus_ck(seed: int, t: float, k: int) -> None:
    d = similarities(seed)
    q = relation(d, t)
    c = confidence(q, d)
    ahcl = relabel(d, "ahcl", num_neighbours=k, temperature=t)[:, :1]
    torch.testing.assert_close(ahcl, 1 / (1 + c * k))
    free = (c * k * q <= 1).all(dim=1)
    ascl = relabel(d, "ascl", num_neighbours=k, temperature=t)[:, :1]
    torch.testing.assert_close(ascl[free], (1 / (1 + c * k))[free])


def test_labels_carry_no_gradient() -> None:
    d = similarities(1).requires_grad_()
    for kind in KINDS:
        assert not relabel(d, kind, num_neighbours=2, temperature=0.05).requires_grad


def test_confidence_of_a_uniform_relation_is_not_negative_in_float32() -> None:
    d = torch.zeros(1, 131_072)
    raw = 1 - entropy(relation(d, 0.05)) / math.log(131_072)
    assert raw.item() < 0, "the trap this clamp is for is gone: the clamp may go too"
    assert confidence(relation(d, 0.05), d).item() == 0


def test_confidence_of_a_single_spike_is_one() -> None:
    d = torch.zeros(1, 4096)
    d[0, 7] = 1
    assert confidence(relation(d, 0.01), d).item() == pytest.approx(1, abs=1e-6)


def test_entropy_is_right_where_q_underflows() -> None:
    d = similarities(3, bank=50, dtype=torch.float32)
    q = relation(d, 0.01)
    assert (q == 0).any() or (q < 1e-30).any()
    exact = entropy(relation(d.double(), 0.01))
    torch.testing.assert_close(entropy(q).double(), exact, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_masked_entries_have_no_effect(kind: Relabel) -> None:
    d = similarities(4)
    masked = torch.cat(
        (d[:, :5], torch.full((len(d), 3), -math.inf, dtype=d.dtype), d[:, 5:]), dim=1
    )
    labels = relabel(masked, kind, num_neighbours=2, temperature=0.05)
    assert labels[:, 6:9].eq(0).all()
    without = torch.cat((labels[:, :6], labels[:, 9:]), dim=1)
    torch.testing.assert_close(without, relabel(d, kind, num_neighbours=2, temperature=0.05))


@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_half_precision_similarities_are_float32(kind: Relabel) -> None:
    d = similarities(5).bfloat16()
    labels = relabel(d, kind, num_neighbours=2, temperature=0.05)
    assert labels.dtype == torch.float32
    torch.testing.assert_close(labels, relabel(d.float(), kind, num_neighbours=2, temperature=0.05))


def test_bad_arguments_are_refused_with_the_given_values() -> None:
    with pytest.raises(ValueError, match="a bank of at least 2, got 1"):
        relabel(torch.zeros(3, 1), "ascl", num_neighbours=1, temperature=0.05)
    with pytest.raises(ValueError, match="num_neighbours=21, bank size 20"):
        relabel(similarities(0), "hard", num_neighbours=21, temperature=0.05)
    with pytest.raises(ValueError, match="above 0, got 0"):
        relabel(similarities(0), "ascl", num_neighbours=1, temperature=0.0)


def test_diagnostics_of_a_known_case() -> None:
    # Two queries of classes 0 and 1; the bank has classes 0, 1, 0 and one unknown.
    d = torch.tensor([[0.9, 0.1, 0.8, 0.95], [0.9, 0.2, 0.1, 0.0]])
    labels = relabel(d, "hard", num_neighbours=2, temperature=0.05)
    seen = label_diagnostics(
        d,
        labels,
        torch.tensor([0, 1]),
        torch.tensor([0, 1, 0, -1]),
        kind="hard",
        temperature=0.05,
    )
    # Query 0 shares with entries 3 (unknown, excluded) and 0 (right); query 1 with 0 (wrong), 1.
    assert seen["purity"].item() == pytest.approx(2 / 3)
    assert seen["neighbour_top1"].item() == pytest.approx(0 / 1)  # query 0's nearest is unknown
    assert seen["effective_neighbours"].item() == pytest.approx(2)
    assert "confidence" not in seen, "hard relabelling has no confidence"


def test_diagnostics_of_unlabeled_data_are_nan() -> None:
    d = similarities(6)
    labels = relabel(d, "ascl", num_neighbours=1, temperature=0.05)
    nobody = torch.full((len(d),), -1), torch.full((d.shape[1],), -1)
    seen = label_diagnostics(d, labels, *nobody, kind="ascl", temperature=0.05)
    assert seen["purity"].isnan()
    assert seen["neighbour_top1"].isnan()
    assert 0 <= seen["confidence"].item() <= 1
