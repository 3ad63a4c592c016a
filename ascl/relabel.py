"""Relabelling: which bank features share a query's label, and how much (eq. 5–11 of the paper).

Pure functions of the similarity between keys and bank; methods use them as a plug-in. All of it is
float32 or wider: in bf16 about one row in a hundred changes its nearest neighbour.

Shapes: N = batch, B = bank. A similarity of −inf marks an entry that is not a candidate.
"""

import math
from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ascl.config import MethodConfig, RunConfig
from ascl.faults import Fault

Relabel = Literal["none", "hard", "ahcl", "ascl"]


class RelabelConfig(MethodConfig):
    """The keys of a method that can relabel."""

    relabel: Relabel = "none"
    """How likely neighbours share the key's label; none is the plain method."""
    num_neighbours: int = Field(1, ge=0)
    """K: how many neighbours' worth of label may be shared; 0 is the plain method."""
    target_temperature: float = Field(0.05, gt=0)
    """τ' that sharpens the relation of a key to the candidates."""

    def inert(self) -> frozenset[str]:
        if self.relabel == "none" or self.num_neighbours == 0:
            return frozenset({"relabel", "num_neighbours", "target_temperature"})
        return frozenset({"target_temperature"} if self.relabel == "hard" else {})

    def neighbour_faults(self, candidates: int, where: str) -> Iterator[Fault]:
        """Refuse more neighbours than there are candidates for."""
        if self.relabel != "none" and self.num_neighbours > candidates:
            yield Fault(
                "method.num_neighbours",
                f"must be at most the number of {where}, "
                f"got num_neighbours={self.num_neighbours}, {candidates} {where}",
            )

    def in_batch_faults(self, run: RunConfig) -> Iterator[Fault]:
        """Refuse what `labels_in_batch` cannot do in a batch of this size."""
        if self.relabel != "none" and run.batch_size < 3:
            yield Fault(
                "batch_size",
                "relabelling in the batch needs at least 3 images, "
                f"got batch_size={run.batch_size}",
            )
        yield from self.neighbour_faults(run.batch_size - 1, "other images in the batch")


def soft_labels(
    config: RelabelConfig,
    similarity: Tensor,
    classes: Tensor,
    candidate_classes: Tensor,
    *,
    diagnose: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The labels a config asks for, and on request what `label_diagnostics` sees in them."""
    kind, temperature = config.relabel, config.target_temperature
    labels = relabel(
        similarity, kind, num_neighbours=config.num_neighbours, temperature=temperature
    )
    if not diagnose:
        return labels, {}
    return labels, label_diagnostics(
        similarity, labels, classes, candidate_classes, kind=kind, temperature=temperature
    )


def labels_in_batch(
    config: RelabelConfig,
    similarity: Tensor,
    own: Tensor,
    classes: Tensor,
    candidate_classes: Tensor,
    *,
    diagnose: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    """As `soft_labels` where the candidates are the batch's keys and `own` marks a row's own one.

    The labels are (N, B) as `similarity` is: the own key, no candidate of its own, is in its place.
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
    """Pseudo labels (N, 1 + B), rows summing to 1; column 0 is the query's own key.

    `similarity` (N, B) is the cosine of each key with each bank feature (eq. 5).
    """
    if similarity.shape[1] < 2:
        raise ValueError(f"relabelling needs a bank of at least 2, got {similarity.shape[1]}")
    if not 0 <= num_neighbours <= similarity.shape[1]:
        raise ValueError(
            f"num_neighbours must lie between 0 and the bank size, got num_neighbours="
            f"{num_neighbours}, bank size {similarity.shape[1]}"
        )
    similarity = at_least_float32(similarity.detach())
    if kind == "ascl":
        q = relation(similarity, temperature)
        scale = num_neighbours * confidence(q, similarity)
        neighbours = (q * scale).clamp(max=1)  # eq. 10
    elif kind == "none" or num_neighbours == 0:
        neighbours = torch.zeros_like(similarity)  # eq. 4
    else:
        nearest = similarity.topk(num_neighbours, dim=1).indices
        if kind == "hard":
            weight = similarity.new_ones(len(similarity), 1)  # eq. 6
        else:
            weight = confidence(relation(similarity, temperature), similarity)  # eq. 9
        neighbours = torch.zeros_like(similarity)
        neighbours.scatter_(1, nearest, weight.expand_as(nearest).contiguous())
        neighbours.masked_fill_(similarity == -math.inf, 0)
    labels = torch.cat((similarity.new_ones(len(similarity), 1), neighbours), dim=1)
    return labels / labels.sum(dim=1, keepdim=True)  # eq. 11


def relation(similarity: Tensor, temperature: float) -> Tensor:
    """The relative distribution q (N, B) of a key over the bank, eq. 7."""
    if not temperature > 0:
        raise ValueError(f"a temperature must be above 0, got {temperature}")
    return torch.softmax(similarity / temperature, dim=1)


def confidence(q: Tensor, similarity: Tensor) -> Tensor:
    """c (N, 1) in [0, 1]: 1 where q sits on one entry, 0 where it is uniform, eq. 8."""
    candidates = (similarity > -math.inf).sum(dim=1, keepdim=True).clamp(min=2)
    c = 1 - entropy(q) / candidates.to(q.dtype).log()
    return c.clamp(0, 1)  # rounding gives −5e-7 for a uniform q over 131,072 entries


def entropy(q: Tensor) -> Tensor:
    """Shannon entropy (N, 1) in nats; entries that are 0, masked or underflowed, add nothing."""
    terms: Tensor = torch.special.entr(q)
    return terms.sum(dim=1, keepdim=True)


def at_least_float32(x: Tensor) -> Tensor:
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
    """How sure and how right the soft labels are; needs true classes, so it only watches.

    `classes` (N,) and `bank_classes` (B,) hold −1 where the class is unknown; such entries are left
    out. A value is NaN where there is nothing to measure.
    """
    similarity = at_least_float32(similarity)
    mass = labels[:, 1:]
    total = mass.sum(dim=1, keepdim=True)
    known = (classes.view(-1, 1) >= 0) & (bank_classes.view(1, -1) >= 0)
    same = known & (classes.view(-1, 1) == bank_classes.view(1, -1))
    nearest = similarity.argmax(dim=1, keepdim=True)
    nearest_known, nearest_same = known.gather(1, nearest), same.gather(1, nearest)
    values = {
        # How many neighbours the label mass is as good as spread over.
        "effective_neighbours": entropy(mass / total).exp().mean(),
        "purity": (mass * same).sum() / (mass * known).sum(),
        "neighbour_top1": nearest_same.sum() / nearest_known.sum(),
    }
    if kind in ("ahcl", "ascl"):
        values["confidence"] = confidence(relation(similarity, temperature), similarity).mean()
    return values
