"""Evaluation of a frozen encoder: exact weighted kNN, and the linear probe.

Shapes: M = bank, Q = queries, D = feature, C = classes, R = ranks.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ascl.batches import Pixels, plain_batches, training_batches
from ascl.datasets import ImageFiles, Images
from ascl.distributed import gather, gather_uneven, share, total, world_size
from ascl.seeding import generator, seeded_init
from ascl.views import ViewSpec

KNN_CHUNK_BYTES = 48 * 2**20  # of similarities at a time
KNN_GROUPS = 16  # how many bank entries share a first look; see `top_similar`
PROBE_BATCH = 256
PROBE_RATE = 10.0
PROBE_DROPS = (0.6, 0.8)  # shares of the epochs after which the rate falls tenfold

Encode = Callable[[Tensor], Tensor]


def features(encode: Encode, images: Images | ImageFiles, pixels: Pixels) -> Tensor:
    """Features (N, D) of un-augmented pictures on every rank; each rank computes its share."""
    return gather_uneven(own_features(encode, images, pixels), len(images))


def own_features(encode: Encode, images: Images | ImageFiles, pixels: Pixels) -> Tensor:
    """As `features`, of this rank's share only."""
    own, done, out = share(len(images)), 0, torch.empty(0)
    for batch in plain_batches(images, pixels):
        part = encode(batch).float()
        if not done:  # all of it at once: parts put together later would be there twice
            out = part.new_empty(own.stop - own.start, part.shape[1])
        out[done : done + len(part)] = part
        done += len(part)
    return out


def own_labels(images: Images | ImageFiles, pixels: Pixels) -> Tensor:
    """Labels of the pictures that `own_features` has features of."""
    return images.labels[share(len(images))].to(pixels.device)


def knn_top1(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    labels: Tensor,
    *,
    num_classes: int,
    k: int,
    temperature: float,
) -> float:
    """Share of queries that the weighted vote of their k nearest bank features gets right.

    For what is whose, and what becomes of `bank`, see `knn_predict`.
    """
    predicted = knn_predict(
        bank, bank_labels, queries, num_classes=num_classes, k=k, temperature=temperature
    )
    # Each rank counts a share, so that all return the same: votes on a GPU add up in any order.
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
) -> Tensor:
    """Classes (Q,): a vote of the k most similar, each weighing exp(cos / temperature).

    `bank` and its labels are this rank's share, `queries` are all of them on every rank: the bank
    may be too large for one. So it is not copied but brought to unit length in place.
    """
    voters = bank_labels >= 0
    if not voters.all():
        bank, bank_labels = bank[voters], bank_labels[voters]
    sizes = gather(torch.tensor([len(bank)], device=bank.device))  # of the ranks' shares
    largest, everyones = int(sizes.max()), int(sizes.sum())
    if not everyones:
        raise ValueError("kNN needs labelled features in the bank, got none")
    F.normalize(bank, dim=1, out=bank)
    width = min(k, largest)
    # As many rows on every rank, as they meet after each chunk; what they then gather is small too.
    rows = max(1, KNN_CHUNK_BYTES // (4 * max(largest, world_size() * width)))
    predictions = []
    for chunk in queries.split(rows):
        chunk = F.normalize(chunk, dim=1)
        similarity, index = top_similar(chunk @ bank.T, min(k, len(bank)))
        similarity, classes = _of_all_ranks(similarity, bank_labels[index], width)
        similarity, classes = similarity[:, :k], classes[:, :k]
        votes = similarity.new_zeros(len(chunk), num_classes)
        # Relative to the nearest, so that a small temperature cannot overflow.
        weights = ((similarity - similarity[:, :1]) / temperature).exp()
        votes.scatter_add_(1, classes, weights)
        predictions.append(votes.argmax(dim=1))
    return torch.cat(predictions) if predictions else bank_labels.new_empty(0)


def _of_all_ranks(similarity: Tensor, classes: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The nearest (Q, ≤ width) that each rank has found in its share, as one list, nearest first.

    A rank with fewer fills up with what is infinitely far: it weighs nothing in a vote.
    """
    if world_size() == 1:
        return similarity, classes
    missing = (0, width - similarity.shape[1])
    similarity = F.pad(similarity, missing, value=-torch.inf)
    classes = F.pad(classes, missing)
    similarity, classes = (
        gather(x.unsqueeze(0)).transpose(0, 1).flatten(1) for x in (similarity, classes)
    )  # (Q, R · width)
    # Of equals the first in the bank is first, as far as each rank's `topk` has kept to that.
    similarity, place = similarity.sort(dim=1, descending=True, stable=True)
    return similarity, classes.gather(1, place)


def top_similar(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and where they are, largest first; exact, as `topk`.

    A row is cut into groups of 16 and only the k groups with the largest maxima are searched: a
    value in any other group has k maxima at or above it. Most of a row is read just once.
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


def linear_probe(
    encode: Encode,
    reference: Images | ImageFiles,
    test: Images | ImageFiles,
    pixels: Pixels,
    *,
    num_classes: int,
    epochs: int,
    seed: int,
    crop_min: float | None,
    nesterov: bool = False,
    on_epoch: Callable[[int, int], None] = lambda epoch, epochs: None,
) -> tuple[float, float]:
    """Accuracy of a linear classifier on frozen features, after the last epoch and at its best.

    The paper's protocol: SGD, learning rate 10, a tenth of it after 60% and 80% of the epochs. With
    `crop_min` the features are of freshly augmented views, without it of the plain pictures, once;
    each rank then keeps those of its share, and of each batch takes what it has.
    The best epoch is chosen on what is scored: it is shown, not to be reported.
    """
    test_features = features(encode, test, pixels)
    test_labels = test.labels.to(pixels.device)
    cached = own_features(encode, reference, pixels) if crop_min is None else None
    size = min(PROBE_BATCH, len(reference))
    with seeded_init(seed, "probe"):
        classifier = nn.Linear(test_features.shape[1], num_classes)
        nn.init.normal_(classifier.weight, std=0.01)
        nn.init.zeros_(classifier.bias)
    classifier.to(pixels.device)
    optimiser = torch.optim.SGD(
        classifier.parameters(), lr=PROBE_RATE, momentum=0.9, nesterov=nesterov
    )

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(reference), generator=generator(seed, "probe", "order", epoch))
        steps = [step for step in order.split(size) if len(step) == size]
        if cached is not None:
            labels, own = own_labels(reference, pixels), share(len(reference))
            for step in steps:
                # Gradients are summed over ranks: it is all one which of them adds an image's.
                mine = step[(step >= own.start) & (step < own.stop)] - own.start
                mine = mine.to(pixels.device)
                yield cached[mine], labels[mine]
            return
        assert crop_min is not None
        views = [ViewSpec("weak", pixels.size, crop_min=crop_min)]
        draws = [generator(seed, "probe", "view", epoch)]
        for (view,), labels in training_batches(reference, steps, views, draws, pixels):
            yield encode(view).float(), labels

    last = best = 0.0
    for epoch in range(epochs):
        drops = sum(epoch >= drop * epochs for drop in PROBE_DROPS)
        for group in optimiser.param_groups:
            group["lr"] = PROBE_RATE * 0.1**drops
        for batch, labels in batches(epoch):
            optimiser.zero_grad()
            # Of the whole batch, to which each rank adds its share: shares may differ in length.
            (F.cross_entropy(classifier(batch), labels, reduction="sum") / size).backward()
            for parameter in classifier.parameters():
                parameter.grad = total(parameter.grad) if parameter.grad is not None else None
            optimiser.step()
        with torch.no_grad():
            right = (classifier(test_features).argmax(dim=1) == test_labels).float().mean()
        last = right.item()
        best = max(best, last)
        on_epoch(epoch + 1, epochs)
    return last, best
