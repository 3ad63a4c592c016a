"""Two ranks of b/2 are one rank of b: bank, loss, gradients, running statistics and scores.

What ranks compute is cut into parts, and each part is computed once: a part that is slow or stuck
fails the laws about it and no others.
BN included: `encoder.bn_splits` counts groups of the global batch, whatever rank they are on.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torchvision.transforms import functional as TF

from ascl import train as training
from ascl.augment.views import ViewSpec
from ascl.checkpoint import advance_in, resume, train_in
from ascl.config import RunConfig
from ascl.data.base import DATASETS, Images
from ascl.data.loader import Pixels, plain_batches, training_batches
from ascl.data.subset import load_data
from ascl.distributed import (
    broadcast_first,
    encode_shuffled,
    gather_uneven,
    gather_with_gradient,
    mean,
    plan_shuffle,
    rank,
    share,
    world_size,
)
from ascl.eval import knn as evaluate
from ascl.eval.extract import extract_features, extract_own_features, own_labels
from ascl.eval.knn import knn_predict, knn_top1
from ascl.eval.linear_probe import linear_probe
from ascl.metrics import EpochMetrics
from ascl.models.batch_norm import splits_per_rank
from ascl.train import Run, build, train
from tests.conftest import ONE_EACH, SYSTEMS, steady, tiny
from tests.processes import on_ranks

CROSSING = sorted(
    {*ONE_EACH, "ascl", "byol_ascl", "byol_full", "instdisc_sampled", "nnclr_ascl", "simclr_ascl"}
    | {"swav_full"}
)
"""Systems that differ in what crosses ranks; other kinds of relabeling use the same path."""


@pytest.fixture(params=CROSSING)
def system(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def config(system: str, **changes: Any) -> RunConfig:
    splits = 4 if SYSTEMS[system]["name"] == "moco" else 2
    small = {"epochs": 1, "encoder": {"bn_splits": splits}}
    return steady(system, **small, eval={"probe": "cached", "probe_epochs": 2}, **changes)


def in_micro_batches(micro_batches: int) -> RunConfig:
    return config("ascl", runtime={"micro_batches": micro_batches})


def first_gradients(run: Run) -> dict[str, torch.Tensor]:
    """Train one epoch and keep the gradients of its first step."""
    kept: dict[str, torch.Tensor] = {}
    step = run.optimizer.step

    def watch(*args: Any, **kwargs: Any) -> Any:
        if not kept:
            kept.update(
                {n: p.grad.clone() for n, p in run.method.named_parameters() if p.grad is not None}
            )
        return step(*args, **kwargs)

    run.optimizer.step = watch  # type: ignore[method-assign]
    list(train(run))
    return kept


def part(name: str) -> Any:
    """Results of this rank for a part: a system's name or one of `PARTS`."""
    return PARTS[name]() if name in PARTS else trained(name)


def trained(system: str) -> dict[str, Any]:
    run = build(config(system))
    gradients = first_gradients(run)
    last = run.history[-1]
    return {
        "gradients": gradients,
        "state": run.method.state_dict(),
        "loss": last.loss,
        "knn": last.knn_top1,
        "probe": last.probe_top1,
        "probe_best": last.probe_best_top1,
    }


def collectives() -> dict[str, Any]:
    return {
        "uneven": gather_uneven(torch.arange(7)[share(7)], 7),
        "gathered": gathered(),
        "agreed": broadcast_first(torch.full((2, 3), 1.0 + rank()).T),  # not contiguous
        "rank": rank(),
    }


def refusals() -> dict[str, str]:
    """The message of each config that does not fit this number of ranks."""

    def diverge() -> None:
        list(train(build(tiny("moco", encoder={"bn_splits": 2}, optim={"lr": 1e30}))))

    attempts: dict[str, Callable[[], object]] = {
        "splits": lambda: splits_per_rank(3 * world_size() // 2),
        "batch": lambda: build(tiny("moco", batch_size=15, encoder={"bn_splits": 3})),
        "diverged": diverge,
        "cut": lambda: build(in_micro_batches(4)),
    }
    seen = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except (ValueError, RuntimeError) as error:
            seen[name] = str(error)
    return seen


def in_two_micro_batches() -> dict[str, Any]:
    run = build(in_micro_batches(2))
    return {"gradients": first_gradients(run), "state": run.method.state_dict()}


def gathered() -> dict[str, torch.Tensor]:
    """A loss over the gathered features, and this rank's gradients as DDP averages them."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(8, 5, generator=generator, dtype=torch.float64)[share(8)]
    weight = torch.randn(5, 3, generator=generator, dtype=torch.float64).requires_grad_()
    features = images @ weight
    everyone = gather_with_gradient(features)
    # No symmetry between what a feature does on its own rank and what it does on the others.
    loss = torch.log_softmax(features @ everyone.T + everyone[:, 0].sin(), dim=1)[:, 1].mean()
    loss.backward()
    assert weight.grad is not None
    return {"everyone": everyone.detach(), "loss": mean(loss), "gradient": mean(weight.grad)}


def with_paper_probe(**changes: Any) -> RunConfig:
    # 65 images to train on: the probe takes them at once, and two ranks cannot have equal shares.
    data = {"train_size": 65, "holdout": 0.0}
    return tiny(
        "ascl", epochs=1, eval={"probe": "paper", "probe_epochs": 3}, **{"data": data} | changes
    )


def measured(run: Run) -> dict[str, Any]:
    """Metrics of one epoch of a run, and a probe's weights after each of its steps."""
    list(train(run))
    last = run.history[-1]
    return {
        "loss": last.loss,
        "knn": last.knn_top1,
        "probe": last.probe_top1,
        "probe_best": last.probe_best_top1,
        # Of mean colours: encoders differ by rounding, which a rate of 10 makes much of.
        "steps": steps_of(lambda: probe(run, cached=False)),
        "cached_steps": steps_of(lambda: probe(run, cached=True)),
    }


def probe(run: Run, *, cached: bool) -> None:
    data, pixels = run.data, run.pixels
    for _ in linear_probe(
        *(mean_color, data.reference, pixels),
        *(extract_features(mean_color, data.test, pixels), data.test.labels),
        num_classes=data.spec.num_classes,
        epochs=3,
        seed=0,
        crop_min=0.2,
        cached=extract_own_features(mean_color, data.reference, pixels) if cached else None,
    ):
        pass


def mean_color(images: Tensor) -> Tensor:
    return images.mean(dim=(2, 3))


def steps_of(train_something: Callable[[], None]) -> list[torch.Tensor]:
    """The first trained weight after each step."""
    steps: list[torch.Tensor] = []

    def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        steps.append(optimizer.param_groups[0]["params"][0].detach().clone())

    hook = register_optimizer_step_post_hook(keep)
    try:
        train_something()
    finally:
        hook.remove()
    return steps


def streamed() -> dict[str, Any]:
    """Results for an ImageNet on disk: this rank's views and images, and a run."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        return streamed_from(Path(folder), patch)


def streamed_from(root: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    write_imagenet(root)
    small = replace(DATASETS["imagenet"], num_classes=10, view_size=32)
    patch.setitem(DATASETS, "imagenet", small)
    data = {"name": "imagenet", "root": str(root), "train_size": 65, "holdout": 0.0}
    run = build(with_paper_probe(data=data, encoder={"name": "resnet18", "max_pool": False}))
    assert not isinstance(run.data.train, Images) and not isinstance(run.data.test, Images)
    steps = torch.arange(64).view(4, 16)
    specs = [ViewSpec("strong", 32), ViewSpec("weak", 32)]
    generators = [torch.Generator().manual_seed(i) for i in range(2)]
    batches = list(
        training_batches(run.data.train, list(steps), specs, generators, run.pixels, repeat(None))
    )
    return measured(run) | {
        "views": [torch.stack(batch.views) for batch in batches],
        "classes": [batch.labels for batch in batches],
        "pictures": torch.cat(list(plain_batches(run.data.test, run.pixels))),
    }


def write_imagenet(root: Path) -> None:
    """Ten classes of shapes in ImageNet's layout, in images of all sizes."""
    shapes = load_data("shapes", "", train_size=99)
    assert isinstance(shapes.train, Images)
    labels = shapes.train.labels.tolist()
    for i, (picture, label) in enumerate(zip(shapes.train.images, labels, strict=True)):
        path = root / "imagenet" / ("train" if i < 70 else "val") / f"n{label:08}" / f"{i}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        TF.to_pil_image(picture).resize((32 + i % 7, 32 + i % 5)).save(path, quality=95)


def resumed() -> list[float]:
    """Losses of a run that is stopped after an epoch and resumed; each rank has its own disk."""
    settings = tiny("ascl", epochs=2, encoder={"bn_splits": 2})
    with tempfile.TemporaryDirectory() as folder:
        first = train_in(build(settings), Path(folder))
        next(first)
        again = build(settings)
        resume(again, Path(folder))
        assert again.epoch == 1
        return [metrics.loss for metrics in (*again.history, *train_in(again, Path(folder)))]


def resumed_in_its_evaluation(settings: RunConfig) -> list[float | None]:
    """Scores of a run whose process ends after every save of its evaluation."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "SAVE_SECONDS", 0.0)
        steps = []
        while not steps or not isinstance(steps[-1], EpochMetrics):
            run = build(settings)
            resume(run, Path(folder))
            steps.append(next(advance_in(run, Path(folder))))
        saves = 2 + settings.eval.probe_epochs  # after training, kNN, each epoch of the probe
        assert len(steps) == saves + 1
        return [steps[-1].knn_top1, steps[-1].probe_top1, steps[-1].probe_best_top1]


def sent_around() -> dict[str, Any]:
    """This rank's shuffled keys and kNN results, and the amount of communication."""
    with pytest.MonkeyPatch.context() as patch:
        seen: dict[str, Any] = {"keys": []}
        exchanged = watched(patch, "all_to_all_single")
        gathered = watched(patch, "all_gather_into_tensor")
        for seed in range(4):
            images, order = images_and_order(seed)
            shuffle = plan_shuffle(order, rank(), world_size())
            seen["keys"].append(encode_shuffled(less_their_mean, images[share(12)], shuffle))
        seen["exchanged"], seen["gathered_for_keys"] = [*exchanged], [*gathered]
        gathered.clear()
        seen["scored"] = scored()
        seen["gathered_for_knn"] = [*gathered]
        seen["knn"] = {name: knn(*case) for name, case in KNN_CASES.items()}
        twins = torch.eye(3).repeat(world_size(), 1)[share(3 * world_size())]
        places = torch.arange(3 * world_size())[share(3 * world_size())]
        seen["twins"] = knn_predict(
            twins, places, torch.eye(3), num_classes=9, k=1, temperature=0.1
        )
        patch.setattr(evaluate, "KNN_CHUNK_BYTES", 1)  # a query at a time
        seen["knn_in_chunks"] = knn(*KNN_CASES["some without a label"])
    return seen


def watched(patch: pytest.MonkeyPatch, name: str) -> list[list[int]]:
    """Record the shapes that PyTorch's function returns from now on."""
    shapes: list[list[int]] = []
    function = getattr(dist, name)

    def watch(output: Tensor, *args: Any) -> None:
        shapes.append([*output.shape])
        function(output, *args)

    patch.setattr(dist, name, watch)
    return shapes


def images_and_order(seed: int) -> tuple[Tensor, Tensor]:
    """A batch of twelve in the memory format of training, and a permutation."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(12, 3, 4, 4, generator=generator)
    order = torch.randperm(12, generator=generator)
    return images.contiguous(memory_format=torch.channels_last), order


class LessTheirMean(torch.nn.Module):
    """Like batch norm: the result for an image depends on the other images of its group."""

    def forward(self, images: Tensor) -> Tensor:
        return (images - images.mean(dim=0)).flatten(1)


less_their_mean = LessTheirMean()

KNN_CASES = {  # bank, k, which are without a label
    "unequal shares": (65, 9, []),
    "a bank that is searched by groups": (1000, 5, []),
    "k larger than a share": (65, 50, []),
    "k larger than the bank": (65, 200, []),
    "some without a label": (65, 9, range(0, 65, 3)),
    "none with a label on the first of two or three": (65, 20, range(33)),
    "one with a label": (65, 20, range(64)),
}


def knn(size: int, k: int, unlabelled: Any) -> Tensor:
    """Predictions for 50 random queries; each rank has its share of a random bank."""
    generator = torch.Generator().manual_seed(size + k)
    bank, queries = (torch.randn(n, 6, generator=generator) for n in (size, 50))
    labels = torch.randint(0, 4, (size,), generator=generator)
    labels[[*unlabelled]] = -1
    own = share(size)
    return knn_predict(bank[own], labels[own], queries, num_classes=4, k=k, temperature=0.1)


def scored() -> float:
    """The kNN score of 12 of 130 images that are their own features."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (130, 3, 8, 8), generator=generator).to(torch.uint8)
    bank = Images(pictures, torch.randint(0, 3, (130,), generator=generator))
    test = Images(pictures[:12], bank.labels[:12])
    grey = torch.full((3,), 0.5)
    pixels = Pixels(torch.device("cpu"), 8, grey, grey)
    return knn_top1(
        *(extract_own_features(as_they_are, bank, pixels), own_labels(bank, pixels)),
        *(extract_features(as_they_are, test, pixels), test.labels),
        num_classes=3,
        k=4,
        temperature=0.1,
    )


def as_they_are(pictures: Tensor) -> Tensor:
    return pictures.flatten(1)


PARTS: dict[str, Callable[[], Any]] = {
    "collectives": collectives,
    "refusals": refusals,
    "micro_batches": in_two_micro_batches,
    "resumed": resumed,
    "resumed_in_its_evaluation": lambda: {
        "paper": resumed_in_its_evaluation(with_paper_probe()),
        "ascl": resumed_in_its_evaluation(config("ascl")),  # with the cached probe
    },
    "paper": lambda: measured(build(with_paper_probe())),
    "streamed": streamed,
    "sent_around": sent_around,
}

One = Callable[[str], Any]
"""Results of a single rank for a part."""
Several = Callable[[str], list[Any]]
"""Results of each of several ranks for a part."""


@pytest.fixture(scope="module")
def one() -> One:
    return cache(part)


@pytest.fixture(scope="module")
def two() -> Several:
    return cache(lambda name: on_ranks(2, part, name))


@pytest.fixture(scope="module")
def three() -> Several:
    return cache(lambda name: on_ranks(3, part, name))


@pytest.fixture(params=[2, 3])
def several(request: pytest.FixtureRequest, two: Several, three: Several) -> list[dict[str, Any]]:
    return (two if request.param == 2 else three)("sent_around")


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=tolerance, rtol=tolerance, msg=name)


def test_two_ranks_agree_with_each_other_to_the_bit(system: str, two: Several) -> None:
    left, right = two(system)
    assert all(left["state"][k].equal(right["state"][k]) for k in left["state"])
    assert all(left["gradients"][k].equal(right["gradients"][k]) for k in left["gradients"])
    for score in ("loss", "knn", "probe"):
        assert left[score] == right[score]


def test_two_ranks_have_the_gradients_of_one(system: str, one: One, two: Several) -> None:
    close(two(system)[0]["gradients"], one(system)["gradients"], 1e-4)


def test_two_ranks_have_the_loss_and_score_of_one(system: str, one: One, two: Several) -> None:
    assert two(system)[0]["loss"] == pytest.approx(one(system)["loss"], rel=1e-3)
    assert two(system)[0]["knn"] == pytest.approx(one(system)["knn"], abs=1 / 16)
    assert two(system)[0]["probe"] == pytest.approx(one(system)["probe"], abs=2 / 16)


def test_two_ranks_have_the_weights_bank_and_statistics_of_one(
    system: str, one: One, two: Several
) -> None:
    # After four steps rounding has grown, not more; the order of a bank's rows is the same.
    state = two(system)[0]["state"]
    close(state, one(system)["state"], 5e-3)
    if "bank.classes" in state:
        assert state["bank.classes"].equal(one(system)["state"]["bank.classes"])


def test_uneven_shares_are_gathered_in_order(two: Several) -> None:
    ranks = two("collectives")
    assert all(seen["uneven"].equal(torch.arange(7)) for seen in ranks)
    assert [seen["rank"] for seen in ranks] == [0, 1]


def test_a_loss_over_gathered_features_has_the_gradient_of_one_rank(one: One, two: Several) -> None:
    alone = one("collectives")["gathered"]
    for seen in two("collectives"):
        close(seen["gathered"], alone, 1e-12)
    assert alone["everyone"].shape == (8, 3)
    assert alone["gradient"].abs().min() > 1e-3


def test_values_of_the_first_rank_are_broadcast(one: One, two: Several) -> None:
    ranks = (one("collectives"), *two("collectives"))
    assert all(seen["agreed"].equal(torch.ones(3, 2)) for seen in ranks)


def test_groups_and_batches_not_divisible_by_the_workers_are_refused(two: Several) -> None:
    assert two("refusals")[0]["splits"] == (
        "encoder.bn_splits must be a multiple of the number of workers, because BN statistics "
        "are computed within a worker, got encoder.bn_splits=3, workers=2; try 4"
    )
    assert two("refusals")[0]["batch"] == (
        "batch_size must be a multiple of the number of workers, got batch_size=15, workers=2; "
        "try 14"
    )


def test_two_ranks_in_micro_batches_are_one_rank_with_the_whole(one: One, two: Several) -> None:
    whole, left, right = one("ascl"), *two("micro_batches")
    for seen in (one("micro_batches"), left, right):
        close(seen["gradients"], whole["gradients"], 1e-4)
        close(seen["state"], whole["state"], 5e-3)
    left, right = left["state"], right["state"]
    assert all(left[k].equal(right[k]) for k in left)


def test_micro_batches_not_dividing_the_groups_of_a_rank_are_refused(
    one: One, two: Several
) -> None:
    assert "cut" not in one("refusals")
    assert two("refusals")[0]["cut"] == (
        "encoder.bn_splits must be a multiple of runtime.micro_batches on each worker, because BN "
        "statistics are computed within a micro-batch, "
        "got encoder.bn_splits=4, runtime.micro_batches=4, workers=2; "
        "try runtime.micro_batches=2, or another encoder.bn_splits"
    )


def test_every_rank_sees_a_divergence(two: Several) -> None:
    assert two("refusals")[0]["diverged"] == two("refusals")[1]["diverged"]
    assert "diverged: the loss became nan at step" in two("refusals")[0]["diverged"]


def test_ranks_resume_from_the_checkpoint_of_the_first(one: One, two: Several) -> None:
    alone, (left, right) = one("resumed"), two("resumed")
    assert len(alone) == 2
    assert left == right == pytest.approx(alone, abs=1e-4)


@pytest.mark.parametrize("undisturbed", ["paper", "ascl"])
def test_ranks_resume_in_the_evaluation_that_only_the_first_has_saved(
    undisturbed: str, one: One, two: Several
) -> None:
    alone, *ranks = one("resumed_in_its_evaluation"), *two("resumed_in_its_evaluation")
    names, left = ("knn", "probe", "probe_best"), two(undisturbed)[0]
    assert all(seen[undisturbed] == [left[name] for name in names] for seen in ranks)
    assert alone[undisturbed] == [one(undisturbed)[name] for name in names]


@pytest.mark.parametrize("steps", ["steps", "cached_steps"])
@pytest.mark.parametrize("where", ["paper", "streamed"])
def test_the_probe_takes_the_steps_of_one_rank_also_in_uneven_shares(
    where: str, steps: str, one: One, two: Several
) -> None:
    ranks = [seen[steps] for seen in (one(where), *two(where))]
    assert len(ranks[0]) == 3
    for alone, left, right in zip(*ranks, strict=True):
        torch.testing.assert_close(left, alone, atol=1e-4, rtol=1e-4)
        assert left.equal(right)


@pytest.mark.parametrize(("where", "tolerance"), [("paper", 0.01), ("streamed", 2 / 29)])
def test_two_ranks_have_the_loss_and_the_scores_of_one_with_the_paper_probe_and_from_disk(
    where: str, tolerance: float, one: One, two: Several
) -> None:
    alone, (left, right) = one(where), two(where)
    assert left["loss"] == pytest.approx(alone["loss"], rel=1e-3)
    for score in ("knn", "probe"):
        assert left[score] == right[score] == pytest.approx(alone[score], abs=tolerance)


def test_two_ranks_read_the_views_and_pictures_of_one_from_disk(one: One, two: Several) -> None:
    alone, (left, right) = one("streamed"), two("streamed")
    for step in range(4):
        both = torch.cat((left["views"][step], right["views"][step]), dim=1)
        torch.testing.assert_close(both, alone["views"][step])
        classes = torch.cat((left["classes"][step], right["classes"][step]))
        assert classes.equal(alone["classes"][step])
    assert len(alone["pictures"]) == 29 and len(left["pictures"]) == 14
    assert torch.cat((left["pictures"], right["pictures"])).equal(alone["pictures"])


def test_the_state_of_two_ranks_fits_one(system: str, two: Several) -> None:
    run = build(config(system))
    run.method.load_state_dict(two(system)[0]["state"])
    assert all(v.equal(two(system)[0]["state"][k]) for k, v in run.method.state_dict().items())


# ---------------------------------------------------------------- shuffled keys, and kNN in shares


def test_shuffled_keys_are_those_of_gathered_images(
    one: One, several: list[dict[str, Any]]
) -> None:
    for seed in range(4):
        images, order = images_and_order(seed)
        plain = torch.empty(12, 48)
        for places in order.chunk(len(several)):  # what each rank encodes, in its memory format
            plain[places] = less_their_mean(images[places])
        assert all(seen["keys"][seed].equal(plain) for seen in several)
        assert not plain.allclose(one("sent_around")["keys"][seed])


def test_image_is_sent_at_most_once(several: list[dict[str, Any]]) -> None:
    own = 12 // len(several)
    for seen in several:
        assert seen["exchanged"] == [[own, 4, 4, 3]] * 4
        assert seen["gathered_for_keys"] == [[12, 48]] * 4  # keys, and no images


@given(world=st.integers(1, 5), size=st.integers(1, 6), data=st.data())
def test_shuffle_sends_each_row_once_to_its_rank(
    world: int, size: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(world * size)))
    shuffles = [plan_shuffle(torch.tensor(order), rank, world) for rank in range(world)]
    boxes: list[list[list[int]]] = []  # from each rank to each
    for r, mine in enumerate(shuffles):
        assert sorted(mine.sends.tolist()) == list(range(size))
        rows = iter(r * size + row for row in mine.sends.tolist())
        boxes.append([[next(rows) for _ in range(count)] for count in mine.sends_to])
    result = []
    for r, mine in enumerate(shuffles):
        assert mine.gets_from == [len(box[r]) for box in boxes]
        arrived = [row for box in boxes for row in box[r]]
        result += [arrived[place] for place in mine.places.tolist()]
        assert [order[place] for place in mine.restores.tolist()] == list(range(world * size))
    assert result == order


@pytest.mark.parametrize("case", KNN_CASES)
def test_knn_with_a_sharded_bank_equals_one_rank(
    case: str, one: One, several: list[dict[str, Any]]
) -> None:
    assert all(seen["knn"][case].equal(one("sent_around")["knn"][case]) for seen in several)


def test_chunks_do_not_change_the_answer_of_several_ranks(several: list[dict[str, Any]]) -> None:
    for seen in several:
        assert seen["knn_in_chunks"].equal(seen["knn"]["some without a label"])


def test_among_equal_features_the_first_in_the_bank_votes(several: list[dict[str, Any]]) -> None:
    assert all(seen["twins"].tolist() == [0, 1, 2] for seen in several)


def test_no_rank_has_more_of_the_bank_than_its_share(
    one: One, several: list[dict[str, Any]]
) -> None:
    for seen in several:
        assert seen["scored"] == one("sent_around")["scored"]
        ranks = len(several)
        # The queries, how many each rank has, and what each has found for its vote.
        assert seen["gathered_for_knn"] == [[12, 192], [ranks], [ranks, 12, 4], [ranks, 12, 4]]
