"""Relabeling: which bank features share a query's label, and by how much.

Equations 5–11 of Feng and Patras, Adaptive Soft Contrastive Learning, ICPR 2022,
https://arxiv.org/abs/2207.11163.

Pure functions of the similarity between keys and bank, which several methods use as a plug-in. All
computation is in float32 or wider: in bf16 about 1% of the rows change their nearest neighbor.

Shapes: N = batch, B = bank. A similarity of −inf marks an entry that is not a candidate.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ascl.config import RunConfig
from ascl.errors import Issue
from ascl.sections import Key, MethodConfig

Relabel = Literal["none", "hard", "ahcl", "ascl"]


class RelabelConfig(MethodConfig):
    """Config keys of a method that supports relabeling."""

    relabel: Annotated[Relabel, Key(label="relabel")] = "none"
    """How neighbors share the key's label; `none` is the plain method."""
    num_neighbours: Annotated[int, Key(label="K")] = Field(1, ge=0)
    """K: number of neighbors that share the key's label; 0 is the plain method."""
    target_temperature: Annotated[float, Key(label="τ'")] = Field(0.05, gt=0)
    """τ': temperature of the distribution q of a key over the candidates (eq. 7)."""

    def inert(self) -> frozenset[str]:
        unused = {"target_temperature"} if self.relabel == "hard" else set()
        if self.relabel == "none" or self.num_neighbours == 0:
            unused = {"relabel", "num_neighbours", "target_temperature"}
        return super().inert() | unused

    def neighbor_issues(self, candidates: int, where: str) -> Iterator[Issue]:
        """Yield an issue if there are more neighbors than candidates."""
        if self.relabel != "none" and self.num_neighbours > candidates:
            yield Issue(
                "method.num_neighbours",
                f"must be at most the number of {where}, "
                f"got num_neighbours={self.num_neighbours}, {candidates} {where}",
            )

    def in_batch_issues(self, run: RunConfig) -> Iterator[Issue]:
        """Yield an issue if the batch is too small for `soft_labels_in_batch`."""
        if self.relabel != "none" and run.batch_size < 3:
            yield Issue(
                "batch_size",
                "relabeling within the batch needs at least 3 images, "
                f"got batch_size={run.batch_size}",
            )
        yield from self.neighbor_issues(run.batch_size - 1, "other images in the batch")


def soft_labels(
    config: RelabelConfig,
    similarity: Tensor,
    classes: Tensor,
    candidate_classes: Tensor,
    *,
    diagnose: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the pseudo labels of a config, and their diagnostics if requested.

    Args:
        config: Kind of relabeling, K and τ'.
        similarity: Cosines (N, B) of each key with the candidates.
        classes: True classes (N,) of the keys, −1 if unknown; for diagnostics only.
        candidate_classes: True classes (B,) of the candidates, −1 if unknown.
        diagnose: Whether to compute `label_diagnostics`.

    Returns:
        Labels (N, 1 + B), see `relabel`, and the diagnostics by name.
    """
    kind, temperature = config.relabel, config.target_temperature
    labels = relabel(
        similarity, kind, num_neighbours=config.num_neighbours, temperature=temperature
    )
    if not diagnose:
        return labels, {}
    return labels, label_diagnostics(
        similarity, labels, classes, candidate_classes, kind=kind, temperature=temperature
    )


def soft_labels_in_batch(
    config: RelabelConfig,
    similarity: Tensor,
    own: Tensor,
    classes: Tensor,
    candidate_classes: Tensor,
    *,
    diagnose: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute pseudo labels like `soft_labels`, with the keys of the batch as candidates.

    `own` (N, B) marks each row's own key, which is not a candidate. The labels are (N, B) like
    `similarity`, with the own key's label in its own column.
    """
    if config.relabel == "none":
        return own.float(), {}
    labels, diagnostics = soft_labels(
        config,
        similarity.masked_fill(own, -math.inf),
        classes,
        candidate_classes,
        diagnose=diagnose,
    )
    return torch.where(own, labels[:, :1], labels[:, 1:]), diagnostics


def relabel(
    similarity: Tensor, kind: Relabel, *, num_neighbours: int, temperature: float
) -> Tensor:
    """Compute pseudo labels (N, 1 + B), with rows that sum to 1; column 0 is the own key.

    Args:
        similarity: Cosine (N, B) of each key with each bank feature (eq. 5).
        kind: How neighbors share the label.
        num_neighbours: K.
        temperature: τ'.
    """
    if similarity.shape[1] < 2:
        raise ValueError(f"relabeling needs a bank of at least 2, got {similarity.shape[1]}")
    if not 0 <= num_neighbours <= similarity.shape[1]:
        raise ValueError(
            f"num_neighbours must be between 0 and the bank size, got num_neighbours="
            f"{num_neighbours}, bank size {similarity.shape[1]}"
        )
    similarity = to_float32(similarity.detach())
    if kind == "ascl":
        q = relation(similarity, temperature)
        scale = num_neighbours * confidence(q, similarity)
        neighbors = (q * scale).clamp(max=1)  # eq. 10
    elif kind == "none" or num_neighbours == 0:
        neighbors = torch.zeros_like(similarity)  # eq. 4
    else:
        nearest = similarity.topk(num_neighbours, dim=1).indices
        if kind == "hard":
            weight = similarity.new_ones(len(similarity), 1)  # eq. 6
        else:
            weight = confidence(relation(similarity, temperature), similarity)  # eq. 9
        neighbors = torch.zeros_like(similarity)
        neighbors.scatter_(1, nearest, weight.expand_as(nearest).contiguous())
        neighbors.masked_fill_(similarity == -math.inf, 0)
    labels = torch.cat((similarity.new_ones(len(similarity), 1), neighbors), dim=1)
    return labels / labels.sum(dim=1, keepdim=True)  # eq. 11


def relation(similarity: Tensor, temperature: float) -> Tensor:
    """Return the relative distribution q (N, B) of each key over the bank, eq. 7."""
    if not temperature > 0:
        raise ValueError(f"the temperature must be above 0, got {temperature}")
    return torch.softmax(similarity / temperature, dim=1)


def confidence(q: Tensor, similarity: Tensor) -> Tensor:
    """Return c (N, 1) in [0, 1]: 1 if q is one-hot, 0 if q is uniform, eq. 8."""
    candidates = (similarity > -math.inf).sum(dim=1, keepdim=True).clamp(min=2)
    c = 1 - entropy(q) / candidates.to(q.dtype).log()
    return c.clamp(0, 1)  # rounding gives −5e-7 for a uniform q over 131,072 entries


def entropy(q: Tensor) -> Tensor:
    """Shannon entropy (N, 1) in nats; entries of 0 (masked or underflowed) contribute nothing."""
    terms: Tensor = torch.special.entr(q)
    return terms.sum(dim=1, keepdim=True)


def to_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def label_diagnostics(
    similarity: Tensor,
    labels: Tensor,
    classes: Tensor,
    bank_classes: Tensor,
    *,
    kind: Relabel,
    temperature: float,
) -> dict[str, Tensor]:
    """Measure how confident and how correct the soft labels are; not used in training.

    Args:
        similarity: Cosines (N, B) of each key with each bank feature.
        labels: Pseudo labels (N, 1 + B).
        classes: True classes (N,); entries of −1 (unknown) are excluded.
        bank_classes: True classes (B,); entries of −1 (unknown) are excluded.
        kind: How neighbors share the label.
        temperature: τ'.

    Returns:
        Scalars by name; NaN if there is nothing to measure.
    """
    similarity = to_float32(similarity)
    mass = labels[:, 1:]
    total = mass.sum(dim=1, keepdim=True)
    known = (classes.view(-1, 1) >= 0) & (bank_classes.view(1, -1) >= 0)
    same = known & (classes.view(-1, 1) == bank_classes.view(1, -1))
    nearest = similarity.argmax(dim=1, keepdim=True)
    nearest_known, nearest_same = known.gather(1, nearest), same.gather(1, nearest)
    values = {
        # Perplexity of the label mass on neighbors.
        "effective_neighbours": entropy(mass / total).exp().mean(),
        "purity": (mass * same).sum() / (mass * known).sum(),
        "neighbour_top1": nearest_same.sum() / nearest_known.sum(),
    }
    if kind in ("ahcl", "ascl"):
        values["confidence"] = confidence(relation(similarity, temperature), similarity).mean()
    return values
