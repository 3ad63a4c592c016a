"""Laws of supervised learning: cross-entropy, labeled images only, a classifier that is scored."""

import math
from dataclasses import replace

import pytest
import torch

from ascl.config import RunConfig
from ascl.data.base import Images
from ascl.data.subset import Data, load_data
from ascl.methods.base import Batch
from ascl.train import build, train
from tests.ascl.methods.test_contract import a_batch, ready
from tests.conftest import tiny
from tests.processes import on_ranks


def test_the_loss_is_cross_entropy_as_loops() -> None:
    run = ready("supervised")
    batch = a_batch(run)
    with torch.no_grad():
        logits = ready("supervised").method.network(batch.views[0]).double().tolist()
    total = 0.0
    for row, label in zip(logits, batch.labels.tolist(), strict=True):
        total -= math.log(math.exp(row[label]) / sum(math.exp(x) for x in row))
    assert run.model(batch).loss.item() == pytest.approx(total / len(logits), rel=1e-5)


def test_uniform_predictions_have_the_loss_log_of_the_number_of_classes() -> None:
    run = ready("supervised")
    for parameter in run.method.classifier.parameters():
        torch.nn.init.zeros_(parameter)
    assert run.model(a_batch(run)).loss.item() == pytest.approx(math.log(10))


def test_gradient_raises_the_score_of_the_labels() -> None:
    run = ready("supervised")
    batch = a_batch(run)
    run.model(batch).loss.backward()
    bias = run.method.classifier.bias
    counts = batch.labels.bincount(minlength=10)
    assert bias.grad is not None
    # d loss / d bias_c is the mean of p_c less the share of c in the batch: negative at the labels.
    assert bias.grad.sum().item() == pytest.approx(0, abs=1e-6)
    assert bias.grad[counts.argmax()] == bias.grad.min() < 0


def test_it_trains_on_one_weak_view() -> None:
    config = RunConfig.of({"method": {"name": "supervised"}})
    assert config.method.cost().views == ("query",)
    assert config.augment.query == "weak"
    assert (config.optim.lr, config.optim.weight_decay, config.encoder.bn_splits) == (0.1, 5e-4, 1)
    large = RunConfig.of({"method": {"name": "supervised"}, "data": {"name": "imagenet"}})
    assert (large.optim.lr, large.optim.weight_decay) == (0.1, 1e-4)


# -- labelled images only


def partly_labelled(labelled: int) -> Data:
    """Like STL-10: most of train has no class, the labeled part is the reference."""
    data = load_data("shapes", "", train_size=80, holdout=0.2)
    assert isinstance(data.train, Images)
    classes = data.train.labels.clone()
    classes[labelled:] = -1
    known = Images(data.train.images[:labelled], classes[:labelled])
    return replace(data, train=Images(data.train.images, classes), reference=known)


def test_unlabeled_images_are_not_trained_on() -> None:
    run = build(tiny("supervised", epochs=1), data=partly_labelled(37))
    seen: list[Batch] = []
    run.method.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    list(train(run))
    assert len(run.data.train) == 37
    assert run.steps_per_epoch == len(seen) == 2
    assert all((batch.labels >= 0).all() for batch in seen)


def test_dataset_without_labels_is_refused() -> None:
    message = "supervised needs labels, but none of the 64 training images of shapes has one; use"
    with pytest.raises(ValueError, match=message):
        build(tiny("supervised"), data=partly_labelled(0))


# -- its own classifier is scored


def counted() -> list[float]:
    """The score of a run's own classifier, and the same counted image by image."""
    # 19 images to score: shares of two ranks differ.
    run = build(tiny("supervised", data={"train_size": 95, "holdout": 0.2}))
    scores = [metrics.test_top1 for metrics in train(run)]
    mean, std = run.pixels.mean.view(1, 3, 1, 1), run.pixels.std.view(1, 3, 1, 1)
    assert isinstance(run.data.test, Images)
    assert len(run.data.test) == 19
    network, right = run.method.get_submodule("network").eval(), 0
    for picture, label in zip(run.data.test.images, run.data.test.labels, strict=True):
        with torch.no_grad():
            logits = network((picture.float()[None] / 255 - mean) / std)[0].tolist()
        right += logits.index(max(logits)) == label
    assert all(score is not None for score in scores)
    return [scores[-1] or 0.0, right / 19]


def test_classifier_score_of_each_epoch_is_the_fraction_correct() -> None:
    score, by_count = counted()
    assert score == by_count
    assert 0 <= score <= 1


def test_two_ranks_have_the_same_classifier_score() -> None:
    first, second = on_ranks(2, counted)
    assert first == second
    assert first[0] == first[1]


def test_other_methods_have_no_classifier_to_score() -> None:
    assert [m.test_top1 for m in train(build(tiny("moco", epochs=1)))] == [None]
