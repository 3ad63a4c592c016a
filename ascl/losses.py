"""Losses shared by methods: pure functions of unit-norm features, in float32.

Shapes: N = batch, B = bank, M = images, D = feature.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def unit(features: Tensor) -> Tensor:
    """Rows of norm 1, in float32 whatever precision the encoder ran in."""
    return F.normalize(features.float(), dim=1)


def bank_logits(query: Tensor, key: Tensor, bank: Tensor, temperature: float) -> Tensor:
    """Similarities (N, 1 + B) of each query to its own key and to the bank, over τ."""
    own = (query * key).sum(dim=1, keepdim=True)
    return torch.cat((own, query @ bank.T), dim=1) / temperature


def without(logits: Tensor, left_out: Tensor) -> Tensor:
    """Logits (N, 1 + B) less those entries (N, B) of the bank that are no negatives of a query."""
    own = torch.zeros_like(left_out[:, :1])
    return logits.masked_fill(torch.cat((own, left_out), dim=1), -torch.inf)


def info_nce(logits: Tensor, labels: Tensor | None = None) -> Tensor:
    """Cross-entropy with pseudo labels (N, 1 + B), eq. 2; without them the key is all, eq. 1."""
    if labels is None:
        labels = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
    return F.cross_entropy(logits, labels)


def instance_softmax(query: Tensor, slots: Tensor, own: Tensor, temperature: float) -> Tensor:
    """Cross-entropy over the slots (M, D) of all images, each a class; `own` (N,) are the right."""
    return F.cross_entropy(query @ slots.T / temperature, own)


def weighted_cosine(prediction: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """2 − 2·Σ_j w_ij cos(prediction_i, key_j), mean over i (appendix of the paper)."""
    return 2 - 2 * (weights * (prediction @ keys.T)).sum(dim=1).mean()


def spread(features: Tensor) -> Tensor:
    """Collapse monitor in [0, 1]: 0 if all unit features are one point, 1 if they balance out."""
    return 1 - features.detach().mean(dim=0).square().sum()
