"""One law for the settings of every method: published values, short runs, refusals, identity."""

from typing import Any

import pytest

from ascl.config import RunConfig
from ascl.errors import ConfigError
from ascl.methods import load_method
from ascl.methods.base import TrainingSet
from tests.conftest import tiny

STRONG = {"augment.query": "strong", "augment.key": "strong"}
MOCO_OPTIM = {"optim.lr": 0.06, "optim.weight_decay": 1e-4, "encoder.bn_splits": 8}

# The name of a method and a dataset is a published run: (method, dataset, values, peak rate).
PUBLISHED: list[tuple[str, str, dict[str, Any], float | None]] = [
    ("simclr", "cifar10", {**STRONG, "batch_size": 256}, 0.12),
    ("simclr", "imagenet", {"batch_size": 4096, "optim.name": "lars"}, 4.8),
    ("simsiam", "cifar10", {**STRONG, "optim.weight_decay": 5e-4}, 0.06),
    ("simsiam", "imagenet", {"optim.weight_decay": 1e-4}, 0.05),
    ("nnclr", "cifar10", {**STRONG, "method.queue_size": 4096}, None),
    ("nnclr", "imagenet", {"method.temperature": 0.1, "method.queue_size": 65536}, 4.8),
    (
        "ressl",
        "cifar10",
        {"augment.query": "strong", "augment.key": "weak", "encoder.bn_splits": 8}
        | {"method.queue_size": 4096, "method.momentum": 0.99}
        | {"optim.lr": 0.06, "optim.weight_decay": 5e-4, "optim.warmup_epochs": 5},
        None,
    ),
    (
        "ressl",
        "imagenet",
        {"augment.key": "weak", "method.queue_size": 131072, "method.momentum": 0.999}
        | {"optim.lr": 0.05, "optim.weight_decay": 1e-4, "optim.warmup_epochs": 5},
        None,
    ),
    (
        "co2",
        "cifar10",
        {**STRONG, **MOCO_OPTIM, "method.queue_size": 4096}
        | {"method.consistency_weight": 1.0, "method.consistency_temperature": 0.05},
        None,
    ),
    ("co2", "imagenet", {"method.consistency_weight": 10.0, "method.queue_size": 65536}, None),
    (
        "clsa",
        "cifar10",
        {**MOCO_OPTIM, "method.queue_size": 4096}
        | {"method.temperature": 0.1, "method.stronger_weight": 1.0},
        None,
    ),
    (
        "clsa",
        "imagenet",
        {"method.queue_size": 65536, "method.temperature": 0.2, "method.stronger_weight": 1.0},
        None,
    ),
    (
        "meanshift",
        "cifar10",
        {"augment.query": "strong", "augment.key": "weak", "encoder.bn_splits": 1}
        | {"method.momentum": 0.99, "method.num_targets": 5, "method.queue_size": 4096}
        | {"encoder.projector_hidden": 1024},
        None,
    ),
    (
        "meanshift",
        "imagenet",
        {"method.num_targets": 10, "method.queue_size": 131072, "encoder.projector_hidden": 4096}
        | {"augment.key": "weak", "method.momentum": 0.99, "encoder.bn_splits": 1},
        None,
    ),
    (
        "swav",
        "cifar10",
        {**STRONG, "method.num_prototypes": 100, "method.queue_size": 0, "method.small_crops": 0}
        | {"optim.name": "sgd", "batch_size": 256, "encoder.bn_splits": 1},
        None,
    ),
    (
        "swav",
        "imagenet",
        {"method.num_prototypes": 3000, "optim.name": "lars", "optim.weight_decay": 1e-6}
        | {"batch_size": 4096, "augment.crop_min": 0.14, "augment.strength": 1.0},
        4.8,
    ),
    ("pcl", "cifar10", {**STRONG, "method.temperature": 0.1}, None),
    ("pcl", "cifar10", {"method.granularities": (250, 500)}, None),
    (
        "pcl",
        "imagenet",
        {"method.temperature": 0.2, "method.negative_prototypes": 16384}
        | {"method.granularities": (25000, 50000, 100000), "method.queue_size": 16384},
        None,
    ),
    (
        "localagg",
        "cifar10",
        {"method.temperature": 0.1, "method.background": 512, "optim.lr": 0.03}
        | {"method.num_clusterings": 3, "method.num_clusters": 500},
        None,
    ),
    (
        "localagg",
        "imagenet",
        {"method.temperature": 0.07, "method.background": 4096, "optim.lr": 0.03}
        | {"method.num_clusterings": 10, "method.num_clusters": 30000},
        None,
    ),
    (
        "instdisc",
        "cifar10",
        {"method.temperature": 0.1, "method.negatives": None, "method.slot_momentum": 0.5}
        | {"optim.lr": 0.03, "encoder.projector_dim": 128},
        None,
    ),
    (
        "instdisc",
        "imagenet",
        {"method.temperature": 0.07, "method.negatives": 65536, "method.slot_momentum": 0.5}
        | {"optim.lr": 0.03},
        None,
    ),
]


def values_at(config: Any, keys: Any) -> dict[str, Any]:
    """The values of dotted keys."""
    found = {}
    for key in keys:
        value = config
        for name in key.split("."):
            value = getattr(value, name)
        found[key] = value
    return found


@pytest.mark.parametrize(("method", "data", "values", "peak"), PUBLISHED)
def test_method_name_alone_gives_the_published_settings(
    method: str, data: str, values: dict[str, Any], peak: float | None
) -> None:
    config = RunConfig.of({"method": {"name": method}, "data": {"name": data}})
    assert values_at(config, values) == values
    if peak is not None:
        assert config.optim.peak(config.batch_size) == pytest.approx(peak)


def test_presets_differ_in_clsas_momentum_and_not_in_simsiams_optimizer() -> None:
    given: dict[str, Any] = {"method": {"name": "clsa"}, "data": {"name": "imagenet"}}
    clsa: Any = RunConfig.of({**given, "preset": "code"})
    assert clsa.method.momentum == 0.999
    simsiam = RunConfig.of({"preset": "code", "method": {"name": "simsiam"}})
    assert (simsiam.optim.peak(256), simsiam.optim.weight_decay) == (0.06, 5e-4)
    assert values_at(simsiam, STRONG) == STRONG


@pytest.mark.parametrize(
    ("method", "key", "by_epochs"),
    [
        ("localagg", "method.instdisc_epochs", {200: 10, 20: 10, 6: 3, 2: 1, 1: 0}),
        ("pcl", "method.instance_epochs", {200: 20, 50: 5, 6: 1, 2: 1, 1: 0}),
        ("ressl", "optim.warmup_epochs", {800: 5, 50: 5, 20: 2, 5: 0, 1: 0}),
    ],
)
def test_a_short_run_has_fewer_first_epochs(
    method: str, key: str, by_epochs: dict[int, int]
) -> None:
    for epochs, first in by_epochs.items():
        config = RunConfig.of({"epochs": epochs, "method": {"name": method}})
        assert values_at(config, [key]) == {key: first}, epochs


@pytest.mark.parametrize(
    ("system", "method", "message"),
    [
        ("simclr_ascl", {"num_neighbours": 16}, "num_neighbours=16, 15 other images in the batch"),
        ("nnclr_ascl", {"num_neighbours": 40}, "num_neighbours=40, 39 embeddings in the support"),
        ("ressl_ascl", {"num_neighbours": 41}, "got num_neighbours=41, 40 keys in the bank"),
        ("meanshift", {"num_targets": 42}, "num_targets=42, queue_size=40; try 41 or fewer"),
        ("swav", {"num_prototypes": 1}, r"method\.num_prototypes.*2"),
        ("pcl", {"granularities": [5, 80]}, "80 clusters, 80 training images; try 8 or fewer"),
        ("pcl", {"granularities": 5}, "granularities: must be a list, got 5"),
        ("pcl", {"negative_prototypes": 5}, "negative_prototypes=5, 5 clusters; try 4 or fewer"),
        ("pcl", {"instance_epochs": 2}, "got instance_epochs=2, epochs=2; train longer"),
        ("localagg", {"num_clusters": 80}, "80 clusters, 80 training images; try 8 or fewer"),
        ("localagg", {"instdisc_epochs": 2}, "got instdisc_epochs=2, epochs=2; train longer"),
        ("instdisc", {"negatives": 80}, "negatives=80, 80 training images; omit it to use all"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(
    system: str, method: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny(system, method=method)


@pytest.mark.parametrize(
    ("system", "method"),
    [("nnclr_ascl", {"num_neighbours": 39}), ("meanshift", {"num_targets": 41})],
)
def test_the_largest_setting_that_works_is_not_refused(system: str, method: dict[str, Any]) -> None:
    assert tiny(system, method=method)


def test_relabeling_within_the_batch_needs_three_images() -> None:
    small: dict[str, Any] = {"batch_size": 2, "encoder": {"bn_splits": 1}}
    tiny("simclr", **small)
    with pytest.raises(ConfigError, match="needs at least 3 images, got batch_size=2"):
        tiny("simclr_ascl", **small, method={"num_neighbours": 1})


@pytest.mark.parametrize(
    ("system", "method", "message"),
    [
        ("pcl", {"granularities": [5, 64]}, "got 64 clusters, 64 training images"),
        ("localagg", {"num_clusters": 64}, "got 64 clusters, 64 training images"),
        ("instdisc", {"negatives": 79}, "got negatives=79, 64 training images"),
    ],
)
def test_settings_are_checked_against_the_training_images_without_the_holdout(
    system: str, method: dict[str, Any], message: str
) -> None:
    config = tiny(system, method=method)
    with pytest.raises(ValueError, match=message):
        load_method(config.method.name).build(config, TrainingSet(64, 10))


@pytest.mark.parametrize(
    ("system", "switch", "off", "on", "key"),
    [
        ("co2", "consistency_weight", 0.0, 1.0, "consistency_temperature"),
        ("swav", "queue_size", 0, 20, "queue_from"),
    ],
)
def test_a_setting_of_a_term_that_is_off_is_not_part_of_the_identity(
    system: str, switch: str, off: float, on: float, key: str
) -> None:
    def identity(switched: float, value: float) -> str:
        return tiny(system, method={switch: switched, key: value}).identity()

    assert identity(off, 0.1) == identity(off, 0.2)
    assert identity(on, 0.1) != identity(on, 0.2)
