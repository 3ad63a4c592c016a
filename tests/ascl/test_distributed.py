"""Two ranks of b/2 are one rank of b: bank, loss, gradients, running statistics and scores.

All of it in one pair of processes, since starting them is what costs; each law is its own test.
BN included: `encoder.bn_splits` counts groups of the global batch, whatever rank they are on.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
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

from ascl import evaluate
from ascl.batches import Pixels, plain_batches, training_batches
from ascl.checkpoint import resume, train_in
from ascl.config import RunConfig, with_overrides
from ascl.data import load_data
from ascl.datasets import DATASETS, Images
from ascl.distributed import (
    agreed,
    gather_uneven,
    gather_with_gradient,
    mean,
    rank,
    route,
    share,
    shuffled_keys,
    world_size,
)
from ascl.encoders import splits_per_rank
from ascl.evaluate import features, knn_predict, knn_top1, linear_probe, own_features, own_labels
from ascl.train import Run, build, train
from ascl.views import ViewSpec
from tests.conftest import ONE_EACH, SYSTEMS, steady, tiny
from tests.processes import on_ranks

CROSSING = sorted(
    {*ONE_EACH, "ascl", "byol_ascl", "byol_full", "instdisc_sampled", "nnclr_ascl", "simclr_ascl"}
    | {"swav_full"}
)
"""The systems that differ in what crosses ranks: other relabellings take the same way."""


@pytest.fixture(params=CROSSING)
def system(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def config(system: str) -> RunConfig:
    splits = 4 if SYSTEMS[system]["name"] == "moco" else 2
    return steady(
        system, epochs=1, encoder={"bn_splits": splits}, eval={"probe": "cached", "probe_epochs": 2}
    )


def in_micro_batches(micro_batches: int) -> RunConfig:
    return with_overrides(config("ascl"), [f"runtime.micro_batches={micro_batches}"])


def first_gradients(run: Run) -> dict[str, torch.Tensor]:
    """Train one epoch and keep the gradients of its first step."""
    kept: dict[str, torch.Tensor] = {}
    step = run.optimiser.step

    def watch(*args: Any, **kwargs: Any) -> Any:
        if not kept:
            kept.update(
                {n: p.grad.clone() for n, p in run.method.named_parameters() if p.grad is not None}
            )
        return step(*args, **kwargs)

    run.optimiser.step = watch  # type: ignore[method-assign]
    list(train(run))
    return kept


def everything() -> dict[str, Any]:
    """What this rank sees, for every system."""
    seen: dict[str, Any] = {}
    for system in CROSSING:
        run = build(config(system))
        gradients = first_gradients(run)
        last = run.history[-1]
        seen[system] = {
            "gradients": gradients,
            "state": run.method.state_dict(),
            "loss": last.loss,
            "knn": last.knn_top1,
            "probe": last.probe_top1,
        }
    seen["uneven"] = gather_uneven(torch.arange(7)[share(7)], 7)
    seen["gathered"] = gathered()
    seen["agreed"] = agreed(torch.full((2, 3), 1.0 + rank()).T)  # not contiguous
    try:
        splits_per_rank(3 * world_size() // 2)
    except ValueError as error:
        seen["splits"] = str(error)
    try:
        build(tiny("moco", batch_size=15, encoder={"bn_splits": 3}))
    except ValueError as error:
        seen["batch"] = str(error)
    try:
        diverging = build(tiny("moco", encoder={"bn_splits": 2}, optim={"lr": 1e30}))
        list(train(diverging))
    except RuntimeError as error:
        seen["diverged"] = str(error)
    run = build(in_micro_batches(2))
    seen["parts"] = {"gradients": first_gradients(run), "state": run.method.state_dict()}
    try:
        build(in_micro_batches(4))
    except ValueError as error:
        seen["cut"] = str(error)
    seen["resumed"] = resumed()
    seen["paper"] = measured(build(with_paper_probe()))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        seen["streamed"] = streamed(Path(folder), patch)
    seen["rank"] = rank()
    return seen | sent_around()


def gathered() -> dict[str, torch.Tensor]:
    """A loss of this rank's features among everyone's, and its gradients as DDP averages them."""
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
    """What an epoch of a run comes to, and a probe's weights after each of its steps."""
    list(train(run))
    last = run.history[-1]
    return {
        "loss": last.loss,
        "knn": last.knn_top1,
        "probe": last.probe_top1,
        # Of mean colours: encoders differ by rounding, which a rate of 10 makes much of.
        "steps": steps_of(lambda: probe(run, crop_min=0.2)),
        "cached_steps": steps_of(lambda: probe(run, crop_min=None)),
    }


def probe(run: Run, crop_min: float | None) -> None:
    data, pixels = run.data, run.pixels
    linear_probe(
        lambda x: x.mean(dim=(2, 3)),
        *(data.reference, data.test, pixels),
        num_classes=data.spec.num_classes,
        epochs=3,
        seed=0,
        crop_min=crop_min,
    )


def steps_of(train_something: Callable[[], None]) -> list[torch.Tensor]:
    """The first weight of what is trained, after each step."""
    steps: list[torch.Tensor] = []

    def keep(optimiser: torch.optim.Optimizer, *_: Any) -> None:
        steps.append(optimiser.param_groups[0]["params"][0].detach().clone())

    hook = register_optimizer_step_post_hook(keep)
    try:
        train_something()
    finally:
        hook.remove()
    return steps


def streamed(root: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What comes of an ImageNet on disk: its views and pictures as this rank gets them, a run."""
    write_imagenet(root)
    small = replace(DATASETS["imagenet"], num_classes=10, view_size=32)
    patch.setitem(DATASETS, "imagenet", small)  # type: ignore[arg-type]
    data = {"name": "imagenet", "root": str(root), "train_size": 65, "holdout": 0.0}
    run = build(with_paper_probe(data=data, encoder={"name": "resnet18", "max_pool": False}))
    assert not isinstance(run.data.train, Images) and not isinstance(run.data.test, Images)
    steps = torch.arange(64).view(4, 16)
    specs = [ViewSpec("strong", 32), ViewSpec("weak", 32)]
    generators = [torch.Generator().manual_seed(i) for i in range(2)]
    batches = list(training_batches(run.data.train, list(steps), specs, generators, run.pixels))
    return measured(run) | {
        "views": [torch.stack([*views]) for views, _ in batches],
        "classes": [classes for _, classes in batches],
        "pictures": torch.cat(list(plain_batches(run.data.test, run.pixels))),
    }


def write_imagenet(root: Path) -> None:
    """Ten classes of shapes in ImageNet's layout, in pictures of all sizes."""
    shapes = load_data("shapes", "", train_size=99)
    assert isinstance(shapes.train, Images)
    labels = shapes.train.labels.tolist()
    for i, (picture, label) in enumerate(zip(shapes.train.images, labels, strict=True)):
        path = root / "imagenet" / ("train" if i < 70 else "val") / f"n{label:08}" / f"{i}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        TF.to_pil_image(picture).resize((32 + i % 7, 32 + i % 5)).save(path, quality=95)


def resumed() -> list[float]:
    """Losses of a run that is stopped after an epoch and goes on, each rank with its own disk."""
    settings = tiny("ascl", epochs=2, encoder={"bn_splits": 2})
    with tempfile.TemporaryDirectory() as folder:
        first = train_in(build(settings), Path(folder))
        next(first)
        again = build(settings)
        resume(again, Path(folder))
        assert again.epoch == 1
        return [metrics.loss for metrics in (*again.history, *train_in(again, Path(folder)))]


def sent_around() -> dict[str, Any]:
    """Shuffled keys and kNN as this rank has them, and how much went around for them."""
    with pytest.MonkeyPatch.context() as patch:
        seen: dict[str, Any] = {"keys": []}
        exchanged = watched(patch, "all_to_all_single")
        gathered = watched(patch, "all_gather_into_tensor")
        for seed in range(4):
            images, order = images_and_order(seed)
            seen["keys"].append(shuffled_keys(less_their_mean, images[share(12)], order))
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
    """Shapes of what PyTorch's function gives out from now on."""
    shapes: list[list[int]] = []
    function = getattr(dist, name)

    def watch(output: Tensor, *args: Any) -> None:
        shapes.append([*output.shape])
        function(output, *args)

    patch.setattr(dist, name, watch)
    return shapes


def images_and_order(seed: int) -> tuple[Tensor, Tensor]:
    """A batch of twelve, as it is laid out for training, and what to shuffle it by."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(12, 3, 4, 4, generator=generator)
    order = torch.randperm(12, generator=generator)
    return images.contiguous(memory_format=torch.channels_last), order


class LessTheirMean(torch.nn.Module):
    """As batch norm, makes of an image what depends on the others that it is encoded with."""

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
    """What 50 random queries are taken for, each rank having its share of a random bank."""
    generator = torch.Generator().manual_seed(size + k)
    bank, queries = (torch.randn(n, 6, generator=generator) for n in (size, 50))
    labels = torch.randint(0, 4, (size,), generator=generator)
    labels[[*unlabelled]] = -1
    own = share(size)
    return knn_predict(bank[own], labels[own], queries, num_classes=4, k=k, temperature=0.1)


def scored() -> float:
    """The kNN score of 12 of 130 pictures that are their own features."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (130, 3, 8, 8), generator=generator).to(torch.uint8)
    bank = Images(pictures, torch.randint(0, 3, (130,), generator=generator))
    test = Images(pictures[:12], bank.labels[:12])
    grey = torch.full((3,), 0.5)
    pixels = Pixels(torch.device("cpu"), 8, grey, grey)
    return knn_top1(
        *(own_features(as_they_are, bank, pixels), own_labels(bank, pixels)),
        *(features(as_they_are, test, pixels), test.labels),
        num_classes=3,
        k=4,
        temperature=0.1,
    )


def as_they_are(pictures: Tensor) -> Tensor:
    return pictures.flatten(1)


@pytest.fixture(scope="module")
def three() -> list[dict[str, Any]]:
    return on_ranks(3, sent_around)


@pytest.fixture(params=[2, 3])
def several(
    request: pytest.FixtureRequest, two: list[dict[str, Any]], three: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    return two if request.param == 2 else three


@pytest.fixture(scope="module")
def one() -> dict[str, Any]:
    return everything()


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=tolerance, rtol=tolerance, msg=name)


def test_two_ranks_agree_with_each_other_to_the_bit(system: str, two: list[dict[str, Any]]) -> None:
    left, right = (seen[system] for seen in two)
    assert all(left["state"][k].equal(right["state"][k]) for k in left["state"])
    assert all(left["gradients"][k].equal(right["gradients"][k]) for k in left["gradients"])
    for score in ("loss", "knn", "probe"):
        assert left[score] == right[score]


def test_two_ranks_have_the_gradients_of_one(
    system: str, one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    close(two[0][system]["gradients"], one[system]["gradients"], 1e-4)


def test_two_ranks_have_the_loss_and_the_score_of_one(
    system: str, one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    assert two[0][system]["loss"] == pytest.approx(one[system]["loss"], rel=1e-3)
    assert two[0][system]["knn"] == pytest.approx(one[system]["knn"], abs=1 / 16)
    assert two[0][system]["probe"] == pytest.approx(one[system]["probe"], abs=2 / 16)


def test_two_ranks_have_the_weights_bank_and_statistics_of_one(
    system: str, one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    # After four steps rounding has grown, not more; the order of a bank's rows is the same.
    state = two[0][system]["state"]
    close(state, one[system]["state"], 5e-3)
    if "bank.classes" in state:
        assert state["bank.classes"].equal(one[system]["state"]["bank.classes"])


def test_uneven_shares_come_back_in_order(two: list[dict[str, Any]]) -> None:
    assert all(seen["uneven"].equal(torch.arange(7)) for seen in two)
    assert [seen["rank"] for seen in two] == [0, 1]


def test_a_loss_over_gathered_features_has_the_gradient_of_one_rank(
    one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    for seen in two:
        close(seen["gathered"], one["gathered"], 1e-12)
    assert one["gathered"]["everyone"].shape == (8, 3)
    assert one["gathered"]["gradient"].abs().min() > 1e-3


def test_what_the_first_rank_has_is_agreed(one: dict[str, Any], two: list[dict[str, Any]]) -> None:
    assert all(seen["agreed"].equal(torch.ones(3, 2)) for seen in (one, *two))


def test_what_does_not_divide_over_the_workers_gets_a_sentence(two: list[dict[str, Any]]) -> None:
    assert two[0]["splits"] == (
        "the BN groups must divide evenly over the workers, for statistics never cross them, "
        "got encoder.bn_splits=3, workers=2; try 4"
    )
    assert "got batch_size=15, workers=2; try 14" in two[0]["batch"]


def test_two_ranks_in_micro_batches_are_one_rank_with_the_whole(
    one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    for seen in (one, *two):
        close(seen["parts"]["gradients"], one["ascl"]["gradients"], 1e-4)
        close(seen["parts"]["state"], one["ascl"]["state"], 5e-3)
    left, right = (seen["parts"]["state"] for seen in two)
    assert all(left[k].equal(right[k]) for k in left)


def test_micro_batches_that_the_groups_of_a_rank_do_not_fill_get_a_sentence(
    one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    assert "cut" not in one
    assert two[0]["cut"] == (
        "the BN groups must divide evenly over the micro-batches, for statistics never cross them, "
        "got encoder.bn_splits=4, runtime.micro_batches=4, workers=2; "
        "try 2, or another encoder.bn_splits"
    )


def test_every_rank_sees_a_divergence(two: list[dict[str, Any]]) -> None:
    assert two[0]["diverged"] == two[1]["diverged"]
    assert "diverged: the loss became nan at step" in two[0]["diverged"]


def test_ranks_go_on_from_the_checkpoint_that_only_the_first_has(
    one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    assert len(one["resumed"]) == 2
    assert two[0]["resumed"] == two[1]["resumed"] == pytest.approx(one["resumed"], abs=1e-4)


@pytest.mark.parametrize("steps", ["steps", "cached_steps"])
@pytest.mark.parametrize("where", ["paper", "streamed"])
def test_the_probe_takes_the_steps_of_one_rank_also_in_uneven_shares(
    where: str, steps: str, one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    assert len(one[where][steps]) == 3
    for alone, left, right in zip(one[where][steps], *(s[where][steps] for s in two), strict=True):
        torch.testing.assert_close(left, alone, atol=1e-4, rtol=1e-4)
        assert left.equal(right)


@pytest.mark.parametrize(("where", "tolerance"), [("paper", 0.01), ("streamed", 2 / 29)])
def test_two_ranks_have_the_loss_and_the_scores_of_one_with_the_paper_probe_and_from_disk(
    where: str, tolerance: float, one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    assert two[0][where]["loss"] == pytest.approx(one[where]["loss"], rel=1e-3)
    for score in ("knn", "probe"):
        assert two[0][where][score] == two[1][where][score]
        assert two[0][where][score] == pytest.approx(one[where][score], abs=tolerance)


def test_two_ranks_read_the_views_and_pictures_of_one_from_disk(
    one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    alone, (left, right) = one["streamed"], (seen["streamed"] for seen in two)
    for step in range(4):
        both = torch.cat((left["views"][step], right["views"][step]), dim=1)
        torch.testing.assert_close(both, alone["views"][step])
        classes = torch.cat((left["classes"][step], right["classes"][step]))
        assert classes.equal(alone["classes"][step])
    assert len(alone["pictures"]) == 29 and len(left["pictures"]) == 14
    assert torch.cat((left["pictures"], right["pictures"])).equal(alone["pictures"])


def test_the_state_of_two_ranks_fits_one(system: str, two: list[dict[str, Any]]) -> None:
    run = build(config(system))
    run.method.load_state_dict(two[0][system]["state"])
    assert all(v.equal(two[0][system]["state"][k]) for k, v in run.method.state_dict().items())


# ---------------------------------------------------------------- shuffled keys, and kNN in shares


def test_shuffled_keys_are_those_of_gathered_images(
    one: dict[str, Any], several: list[dict[str, Any]]
) -> None:
    for seed in range(4):
        images, order = images_and_order(seed)
        gathered, plain = images.contiguous(), torch.empty(12, 48)
        for places in order.chunk(len(several)):  # what each rank encodes
            plain[places] = less_their_mean(gathered[places])
        assert all(seen["keys"][seed].equal(plain) for seen in several)
        assert not plain.allclose(one["keys"][seed])


def test_an_image_travels_at_most_once(several: list[dict[str, Any]]) -> None:
    own = 12 // len(several)
    for seen in several:
        assert seen["exchanged"] == [[own, 3, 4, 4]] * 4
        assert seen["gathered_for_keys"] == [[12, 48]] * 4  # keys, and no images


@given(world=st.integers(1, 5), size=st.integers(1, 6), data=st.data())
def test_a_route_brings_each_row_once_to_where_it_is_wanted(
    world: int, size: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(world * size)))
    routes = [route(order, rank, world) for rank in range(world)]
    boxes: list[list[list[int]]] = []  # from each rank to each
    for r, mine in enumerate(routes):
        assert sorted(mine.sends) == list(range(size))
        rows = iter(r * size + row for row in mine.sends)
        boxes.append([[next(rows) for _ in range(count)] for count in mine.sends_to])
    result = [-1] * (world * size)
    for r, mine in enumerate(routes):
        assert mine.gets_from == [len(box[r]) for box in boxes]
        arrived = [row for box in boxes for row in box[r]]
        for place, row in zip(mine.places, arrived, strict=True):
            result[r * size + place] = row
    assert result == order


@pytest.mark.parametrize("case", KNN_CASES)
def test_knn_with_the_bank_in_shares_is_that_of_one_rank(
    case: str, one: dict[str, Any], several: list[dict[str, Any]]
) -> None:
    assert all(seen["knn"][case].equal(one["knn"][case]) for seen in several)


def test_chunks_do_not_change_the_answer_of_several_ranks(several: list[dict[str, Any]]) -> None:
    for seen in several:
        assert seen["knn_in_chunks"].equal(seen["knn"]["some without a label"])


def test_of_features_alike_the_first_in_the_bank_votes(several: list[dict[str, Any]]) -> None:
    assert all(seen["twins"].tolist() == [0, 1, 2] for seen in several)


def test_no_rank_has_more_of_the_bank_than_its_share(
    one: dict[str, Any], several: list[dict[str, Any]]
) -> None:
    for seen in several:
        assert seen["scored"] == one["scored"]
        ranks = len(several)
        # The queries, how many each rank has, and what each has found for its vote.
        assert seen["gathered_for_knn"] == [[12, 192], [ranks], [ranks, 12, 4], [ranks, 12, 4]]
