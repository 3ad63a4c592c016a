"""Exact weighted kNN on the features of a frozen encoder.

The vote is that of Wu et al., Unsupervised Feature Learning via Non-Parametric Instance-level
Discrimination, 2018, https://arxiv.org/abs/1805.01978.

Shapes: M = bank, Q = queries, D = feature, C = classes, R = ranks.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ascl.distributed import gather, share, total, world_size
from ascl.progress import Report, no_report

KNN_CHUNK_BYTES = 48 * 2**20  # of similarities at a time
KNN_GROUPS = 16  # bank entries per group in the first pass of `top_similar`


def knn_top1(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    labels: Tensor,
    *,
    num_classes: int,
    k: int,
    temperature: float,
    report: Report = no_report,
) -> float:
    """Return the accuracy of weighted kNN on the queries.

    `labels` are the classes of all queries; the other arguments are those of `knn_predict`.
    """
    predicted = knn_predict(
        *(bank, bank_labels, queries),
        num_classes=num_classes,
        k=k,
        temperature=temperature,
        report=report,
    )
    # Each rank counts its share, so that all ranks return the same accuracy: the summation order
    # of votes on a GPU varies.
    mine = share(len(queries))
    right = total((predicted[mine] == labels[mine]).sum())
    return right.item() / len(queries)


@torch.no_grad()
def knn_predict(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    *,
    num_classes: int,
    k: int,
    temperature: float,
    report: Report = no_report,
) -> Tensor:
    """Predict classes (Q,) by a vote of the k most similar features, weighted by exp(cos / τ).

    Args:
        bank: Features (M, D) of this rank's share, because the whole bank may be too large for one
            rank. A normalized copy would need its memory again, so similarities are scaled instead.
        bank_labels: Classes (M,) of this rank's share; entries of −1 do not vote.
        queries: Features (Q, D) of all queries, on every rank.
        num_classes: C.
        k: Number of voters.
        temperature: τ.
        report: Called often, as a sign of progress.
    """
    voters = bank_labels >= 0
    if not voters.all():
        bank, bank_labels = bank[voters], bank_labels[voters]
    sizes = gather(torch.tensor([len(bank)], device=bank.device))  # of the ranks' shares
    largest = int(sizes.max())
    if not largest:
        raise ValueError("kNN needs labeled features in the bank, got none")
    scale = bank.norm(dim=1).clamp_min(1e-12).reciprocal()  # as `F.normalize`
    width = min(k, largest)
    # The same number of rows on every rank, because ranks exchange results after each chunk. The
    # exchanged tensors are limited to the same size.
    rows = max(1, KNN_CHUNK_BYTES // (4 * max(largest, world_size() * width)))
    predictions = []
    for chunk in queries.split(rows):
        report()
        chunk = F.normalize(chunk, dim=1)
        similarity, index = top_similar((chunk @ bank.T).mul_(scale), min(k, len(bank)))
        similarity, classes = _merge_ranks(similarity, bank_labels[index], width)
        similarity, classes = similarity[:, :k], classes[:, :k]
        votes = similarity.new_zeros(len(chunk), num_classes)
        # Relative to the nearest neighbor, so that a small temperature cannot overflow.
        weights = ((similarity - similarity[:, :1]) / temperature).exp()
        votes.scatter_add_(1, classes, weights)
        predictions.append(votes.argmax(dim=1))
    return torch.cat(predictions) if predictions else bank_labels.new_empty(0)


def _merge_ranks(similarity: Tensor, classes: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Merge the nearest neighbors (Q, ≤ width) of all ranks into one list, nearest first.

    A rank with fewer neighbors pads with similarity −inf, which has no weight in the vote.
    """
    if world_size() == 1:
        return similarity, classes
    missing = (0, width - similarity.shape[1])
    similarity = F.pad(similarity, missing, value=-torch.inf)
    classes = F.pad(classes, missing)
    similarity, classes = (
        gather(x.unsqueeze(0)).transpose(0, 1).flatten(1) for x in (similarity, classes)
    )  # (Q, R · width)
    # Stable: ties keep the order of the bank, as far as each rank's `topk` preserved it.
    similarity, place = similarity.sort(dim=1, descending=True, stable=True)
    return similarity, classes.gather(1, place)


def top_similar(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row and their indices, largest first; exact, like `topk`.

    A row is divided into groups of 16, and only the k groups with the largest maxima are searched:
    for a value in any other group there are k maxima at or above it. Most of a row is read once.
    """
    columns = similarity.shape[1] // KNN_GROUPS
    if columns <= k:
        return similarity.topk(k, dim=1)
    body = similarity[:, : columns * KNN_GROUPS].unflatten(1, (KNN_GROUPS, columns))
    best = body.amax(dim=1).topk(k, dim=1, sorted=False).indices  # (Q, k) groups to search
    starts = torch.arange(KNN_GROUPS, device=similarity.device).view(1, -1, 1) * columns
    index = (best.unsqueeze(1) + starts).flatten(1)  # (Q, 16k) their entries
    rest = torch.arange(columns * KNN_GROUPS, similarity.shape[1], device=similarity.device)
    index = torch.cat((index, rest.expand(len(index), -1)), dim=1)
    values, place = similarity.gather(1, index).topk(k, dim=1)
    return values, index.gather(1, place)
