"""Loss functions shared by several methods: pure functions of unit-norm float32 features.

Shapes: N = batch, B = bank, M = images, D = feature.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def unit(features: Tensor) -> Tensor:
    """Normalize rows to norm 1, in float32 for any precision of the encoder."""
    return F.normalize(features.float(), dim=1)


def bank_logits(query: Tensor, key: Tensor, bank: Tensor, temperature: float) -> Tensor:
    """Return similarities (N, 1 + B) of each query to its own key and to the bank, divided by τ."""
    own = (query * key).sum(dim=1, keepdim=True)
    return torch.cat((own, query @ bank.T), dim=1) / temperature


def mask_logits(logits: Tensor, excluded: Tensor) -> Tensor:
    """Set the logits (N, 1 + B) of `excluded` (N, B) bank entries to −inf; keep the own key's."""
    own = torch.zeros_like(excluded[:, :1])
    return logits.masked_fill(torch.cat((own, excluded), dim=1), -torch.inf)


def info_nce(logits: Tensor, labels: Tensor | None = None) -> Tensor:
    """Cross-entropy with pseudo labels (N, 1 + B), eq. 2; by default the own key's is 1, eq. 1."""
    if labels is None:
        labels = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
    return F.cross_entropy(logits, labels)


def instance_softmax(query: Tensor, slots: Tensor, own: Tensor, temperature: float) -> Tensor:
    """Cross-entropy over the slots (M, D) of all images; each query's class is its slot `own`."""
    return F.cross_entropy(query @ slots.T / temperature, own)


def weighted_cosine(prediction: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """2 − 2·Σ_j w_ij cos(prediction_i, key_j), mean over i (appendix of the ASCL paper)."""
    return 2 - 2 * (weights * (prediction @ keys.T)).sum(dim=1).mean()


def spread(features: Tensor) -> Tensor:
    """Collapse monitor in [0, 1]: 0 if all unit features are equal, 1 if their mean is zero."""
    return 1 - features.detach().mean(dim=0).square().sum()
