"""kNN against a brute-force loop, and the linear probe."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ascl.eval import knn as evaluate
from ascl.eval.knn import knn_predict, knn_top1, top_similar


def points(n: int, seed: int, dim: int = 6) -> torch.Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def labels(n: int, seed: int, low: int = 0) -> torch.Tensor:
    return torch.randint(low, 4, (n,), generator=torch.Generator().manual_seed(seed))


@given(seed=st.integers(0, 500), bank=st.integers(1, 90), k=st.integers(1, 120))
def test_knn_is_the_brute_force_vote(seed: int, bank: int, k: int) -> None:
    x, y = points(bank, seed), labels(bank, seed + 1, low=-1)
    y[0] = 2  # at least one voter
    queries = points(7, seed + 2)
    ours = knn_predict(x, y, queries, num_classes=4, k=k, temperature=0.1).tolist()
    for query, predicted in zip(queries.double(), ours, strict=True):
        voters = [
            (float(torch.cosine_similarity(query, v, dim=0)), int(c))
            for v, c in zip(x.double(), y, strict=True)
            if c >= 0
        ]
        votes = [0.0] * 4
        for cosine, c in sorted(voters, reverse=True)[:k]:
            votes[c] += math.exp(cosine / 0.1)
        assert votes[predicted] == pytest.approx(max(votes), rel=1e-4)


@given(
    seed=st.integers(0, 500), columns=st.integers(1, 400), k=st.integers(1, 30), ties=st.booleans()
)
def test_top_similar_is_topk(seed: int, columns: int, k: int, ties: bool) -> None:
    x = torch.randn(5, columns, generator=torch.Generator().manual_seed(seed))
    x = x.round() if ties else x
    k = min(k, columns)
    values, index = top_similar(x, k)
    assert values.equal(x.topk(k, dim=1).values)
    assert x.gather(1, index).equal(values)
    assert all(len(set(row)) == k for row in index.tolist())


def test_chunks_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, q = points(200, 1), labels(200, 2), points(31, 3)
    whole = knn_predict(x, y, q, num_classes=4, k=9, temperature=0.1)
    monkeypatch.setattr(evaluate, "KNN_CHUNK_BYTES", 1)
    assert knn_predict(x, y, q, num_classes=4, k=9, temperature=0.1).equal(whole)


def test_bank_and_queries_are_not_modified() -> None:
    # The cached probe is trained on the features of the bank.
    x, q = points(200, 1), points(31, 3)
    before = x.clone(), q.clone()
    knn_predict(x, labels(200, 2), q, num_classes=4, k=9, temperature=0.1)
    assert x.equal(before[0]) and q.equal(before[1])


def test_lengths_of_features_do_not_matter() -> None:
    x, y, q = points(200, 1), labels(200, 2), points(31, 3)
    vote = partial(knn_predict, num_classes=4, k=9, temperature=0.1)
    lengths = 2.0 ** (7 * torch.arange(200) % 41 - 20).unsqueeze(1)
    assert vote(x * lengths, y, q * lengths[:31]).equal(vote(x, y, q))


def test_feature_without_a_direction_is_no_near_neighbor() -> None:
    x, y, q = points(200, 1), labels(200, 2), points(31, 3)
    vote = partial(knn_predict, num_classes=4, k=9, temperature=0.1)
    x[7] = 0
    others = torch.arange(200) != 7
    assert vote(x, y, q).equal(vote(x[others], y[others], q))


def test_a_small_temperature_does_not_overflow() -> None:
    x, y = points(50, 4), labels(50, 5)
    nearest = knn_predict(x, y, x, num_classes=4, k=50, temperature=1e-4)
    assert nearest.equal(y)


def test_bank_without_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="kNN needs labeled features in the bank, got none"):
        knn_predict(
            points(3, 0), torch.full((3,), -1), points(2, 1), num_classes=4, k=1, temperature=1
        )


def test_accuracy_is_the_fraction_of_correct_predictions() -> None:
    x = torch.eye(4)
    y = torch.arange(4)
    wrong = torch.tensor([0, 1, 2, 0])
    assert knn_top1(x, y, x, wrong, num_classes=4, k=1, temperature=0.1) == 0.75
