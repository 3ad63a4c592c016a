"""Laws of configs: presets, overrides, identity, and all issues at once."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ascl.config import RunConfig, load_config, merge, parse_overrides
from ascl.data.base import DATASETS
from ascl.errors import ConfigError
from ascl.methods import method_names


def changed(given: Any, *overrides: str) -> RunConfig:
    """The config of a mapping with some keys changed."""
    return RunConfig.of(merge(given, parse_overrides(overrides)))


def issues(given: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        RunConfig.of(given)
    return [str(issue) for issue in caught.value.issues]


# -- presets: every row of the table of differences


@pytest.mark.parametrize(
    ("preset", "dataset", "expected"),
    [
        (
            "paper",
            "cifar10",
            (0.06, "linear", 1e-4, 0, 0.8, 0.99, "resnet18", "small", False, 4096),
        ),
        ("paper", "stl10", (0.06, "linear", 1e-4, 0, 0.8, 0.99, "resnet18", "small", False, 4096)),
        (
            "paper",
            "imagenet",
            (0.06, "linear", 1e-4, 0, 0.8, 0.99, "resnet50", "large", True, 65536),
        ),
        ("code", "cifar10", (0.03, "none", 5e-4, 5, 0.5, 0.99, "resnet18", "small", False, 4096)),
        ("code", "stl10", (0.03, "none", 5e-4, 5, 0.5, 0.99, "resnet18", "small", True, 4096)),
        (
            "code",
            "tiny_imagenet",
            (0.03, "none", 5e-4, 5, 0.5, 0.99, "resnet18", "small", True, 4096),
        ),
        ("code", "imagenet", (0.03, "none", 5e-4, 5, 0.5, 0.999, "resnet50", "large", True, 65536)),
    ],
)
def test_presets_hold_the_papers_and_the_codes_values(
    preset: str, dataset: str, expected: tuple[object, ...]
) -> None:
    c = RunConfig.of({"preset": preset, "data": {"name": dataset}})
    method: Any = c.method
    assert expected == (
        *(c.optim.lr, c.optim.lr_scaling, c.optim.weight_decay, c.optim.warmup_epochs),
        *(c.augment.strength, method.momentum),
        *(c.encoder.name, c.encoder.stem, c.encoder.max_pool, method.queue_size),
    )
    assert (c.encoder.bn_splits, c.encoder.projector_hidden, c.encoder.projector_dim) == (
        8,
        2048,
        128,
    )
    assert (method.temperature, method.target_temperature, method.num_neighbours) == (0.1, 0.05, 1)
    assert c.eval.probe_nesterov == (preset == "code")
    byol: Any = RunConfig.of(
        {"preset": preset, "data": {"name": dataset}, "method": {"name": "byol"}}
    )
    assert byol.method.momentum == expected[5]
    assert (c.epochs, c.batch_size, c.optim.momentum) == (200, 256, 0.9)
    assert (c.eval.knn_k, c.eval.knn_temperature, c.eval.probe_epochs) == (200, 0.1, 100)


def test_the_batch_scales_the_learning_rate_in_paper_and_not_in_code() -> None:
    paper = RunConfig.of({"batch_size": 512})
    code = RunConfig.of({"batch_size": 512, "preset": "code"})
    assert paper.optim.peak(paper.batch_size) == pytest.approx(0.12)
    assert code.optim.peak(code.batch_size) == pytest.approx(0.03)


@pytest.mark.parametrize("method", method_names())
@pytest.mark.parametrize("dataset", sorted(DATASETS))
@pytest.mark.parametrize("preset", ["paper", "code"])
def test_every_method_has_valid_defaults_on_every_dataset(
    method: str, dataset: str, preset: str
) -> None:
    given = {"preset": preset, "method": {"name": method}, "data": {"name": dataset}}
    config = RunConfig.of(given)
    assert RunConfig.of(yaml.safe_load(config.to_yaml())).identity() == config.identity()


# -- overrides


def test_overrides_change_only_what_they_name() -> None:
    config = changed({}, "optim.lr=1e-3", "data.train_size=5000", "seed=3")
    assert (config.optim.lr, config.data.train_size, config.seed) == (1e-3, 5000, 3)
    assert config.optim.weight_decay == 1e-4


def test_change_of_preset_changes_its_defaults_and_keeps_user_values() -> None:
    config = changed({"optim": {"lr": 0.06}}, "preset=code")
    assert config.optim.lr == 0.06
    assert config.optim.weight_decay == 5e-4


def test_empty_override_resets_a_key_to_none() -> None:
    given = {"data": {"train_size": 5000}}
    assert changed(given, "data.train_size=").data.train_size is None


@pytest.mark.parametrize("text", ["lr", "=3", "a..b=1", ".=1", ""])
def test_malformed_override_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"must look like optim.lr=0.03"):
        parse_overrides([text])


leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
trees = st.recursive(
    leaf, lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text(max_size=6), t)
)


@given(st.text("abc:- \n{}[]!&*'1e.", max_size=40).map(lambda t: f"optim:\n  {t}\nepochs: 3\n"))
def test_no_file_ends_in_a_traceback(text: str) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        try:
            load_config(file.name)
        except ConfigError as config_error:
            assert all(issue.message for issue in config_error.issues)


known = st.sampled_from(
    ["preset", "seed", "epochs", "batch_size", "method", "data", "augment", "encoder", "optim"]
)
inner = st.sampled_from(["name", "lr", "width", "relabel", "root", "train_size", "key", "momentum"])


@given(st.dictionaries(known, trees | st.dictionaries(inner, trees, max_size=3)) | trees)
def test_no_config_ends_in_a_traceback(given: object) -> None:
    try:
        RunConfig.of(given)
    except ConfigError as config_error:
        assert all(issue.message for issue in config_error.issues)


@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=2), trees), st.dictionaries(st.text(max_size=2), trees))
def test_merging_does_not_modify_its_inputs(under: dict[str, Any], over: dict[str, Any]) -> None:
    before = repr(under), repr(over)
    merge(under, over)
    assert before == (repr(under), repr(over))


# -- faults


def test_all_issues_are_reported_at_once() -> None:
    found = issues(
        {
            "epochs": 0,
            "batchsize": 3,
            "method": {"name": "moco", "num_neighbors": 2, "temperature": "hot"},
            "optim": {"lr": -1},
            "augment": {"key": "wild"},
            "encoder": 18,
        }
    )
    assert sorted(found) == [
        "augment.key: must be 'weak' or 'strong', got 'wild'",
        "batchsize: no such field (did you mean 'batch_size'?)",
        "encoder: must be a mapping of keys, got 18",
        "epochs: must be greater than or equal to 1, got 0",
        "method.num_neighbors: no such field (did you mean 'num_neighbours'?)",
        "method.temperature: must be a number, got 'hot'",
        "optim.lr: must be greater than 0, got -1",
    ]


def test_a_key_of_other_methods_names_them() -> None:
    (found,) = issues({"method": {"name": "simsiam", "relabel": "ascl"}})
    assert found == (
        "method.relabel: simsiam has no 'relabel'; methods that have it: "
        "byol, moco, nnclr, ressl, simclr"
    )


def test_a_key_without_its_section_is_suggested_with_it() -> None:
    assert issues({"lr": 0.1}) == ["lr: no such field (did you mean 'optim.lr'?)"]
    assert issues({"num_neighbours": 3}) == [
        "num_neighbours: no such field (did you mean 'method.num_neighbours'?)"
    ]
    assert issues({"epochs": None}) == ["epochs: must be an integer, got no value"]


def test_unknown_names_list_the_known_ones() -> None:
    found = issues({"method": {"name": "mocco"}, "data": {"name": "cifar"}})
    assert found[0].startswith("method.name: no method named 'mocco' (did you mean 'moco'?); there")
    assert found[1].startswith("data.name: no dataset named 'cifar'")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"batch_size": 100},
            "batch_size: must be a multiple of encoder.bn_splits, got batch_size=100, bn_splits=8; "
            "try 96 or 104",
        ),
        ({"batch_size": 8}, "each BN group needs at least 2 images"),
        (
            {"runtime": {"micro_batches": 3}},
            "runtime.micro_batches: encoder.bn_splits must be a multiple of runtime.micro_batches "
            "on each worker, because BN statistics are computed within a micro-batch, "
            "got encoder.bn_splits=8, runtime.micro_batches=3; "
            "try runtime.micro_batches=2 or 4, or another encoder.bn_splits",
        ),
        (
            {"method": {"name": "byol"}, "runtime": {"micro_batches": 2}},
            "got encoder.bn_splits=1, runtime.micro_batches=2; "
            "try runtime.micro_batches=1, or another encoder.bn_splits",
        ),
        ({"data": {"train_size": 100}}, "a batch cannot be larger than the training set"),
        (
            {"preset": "code", "epochs": 5},
            "optim.warmup_epochs: must be less than epochs, got warmup_epochs=5, epochs=5; "
            "train longer, or lower optim.warmup_epochs (preset code sets it to 5)",
        ),
        (
            {"method": {"relabel": "hard", "num_neighbours": 9, "queue_size": 8}},
            "must be at most the number of keys in the bank, got num_neighbours=9, 8 keys",
        ),
        (
            {"batch_size": 2, "method": {"name": "byol", "relabel": "ascl"}},
            "batch_size: relabeling within the batch needs at least 3 images, got batch_size=2",
        ),
        ({"optim": {"lr": float("nan")}}, "optim.lr: must be a finite number, got nan"),
        ({"epochs": True}, "epochs: must be an integer, got True"),
        ([], "a config must be a mapping of keys, got []"),
    ],
)
def test_bad_values_are_refused_with_rule_value_and_fix(given: object, message: str) -> None:
    assert any(message in issue for issue in issues(given)), issues(given)


def test_issues_of_a_file_name_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("epochs: 10\noptim:\n  lr: fast\nmethod:\n  num_neighbors: 3\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).splitlines() == [
        f"{path}:3: optim.lr: must be a number, got 'fast'",
        f"{path}:5: method.num_neighbors: no such field (did you mean 'num_neighbours'?)",
    ]


def test_a_config_is_frozen() -> None:
    config = RunConfig.of({})
    with pytest.raises(ValidationError):
        config.seed = 3  # type: ignore[misc]


# -- identity


def test_identity_is_stable_over_versions_of_this_program() -> None:
    # Ids name results on disk. If this fails, either a default changed (then old results are of
    # another run, and this value is to be changed), or the hash did (then it should not).
    assert RunConfig.of({}).identity() == "13405f541a8d"


@pytest.mark.parametrize(
    "change",
    ["data.root=/elsewhere", "runtime.device=cpu", "optim.lr=0.06", "optim.lr_scaling=none"]
    + ["optim.name=sgd", "method.symmetric=false"]  # younger than many a ledger
    + ["runtime.micro_batches=4"]
    + ["method.num_neighbours=5", "method.target_temperature=0.5"],  # MoCo has no neighbours
)
def test_keys_without_effect_on_results_keep_the_identity(change: str) -> None:
    given = {"method": {"relabel": "none"}}
    assert changed(given, change).identity() == RunConfig.of(given).identity()


@pytest.mark.parametrize(
    "change",
    ["seed=1", "epochs=100", "batch_size=512", "optim.lr=0.03", "method.target_temperature=0.1"]
    + ["data.name=cifar100", "data.holdout=0.1", "augment.key=strong", "encoder.width=16"]
    + ["eval.knn_k=20", "runtime.precision=bf16", "method.relabel=ahcl", "preset=code"]
    + ["optim.name=lars", "method.symmetric=true"],
)
def test_keys_that_can_change_results_change_the_identity(change: str) -> None:
    given = {"method": {"relabel": "ascl"}}
    assert changed(given, change).identity() != RunConfig.of(given).identity()


def test_options_of_full_byol_change_the_identity_only_if_enabled() -> None:
    byol = {"method": {"name": "byol"}}
    plain = RunConfig.of(byol)
    assert plain.identity() == "55826a0d7335", "as before there was a choice"
    for change in ("method.symmetric", "method.momentum_rises"):
        assert changed(byol, f"{change}=false").identity() == plain.identity()
        assert changed(byol, f"{change}=true").identity() != plain.identity()


def test_equivalent_configs_have_one_identity() -> None:
    code = RunConfig.of({"preset": "code"})
    spelled = RunConfig.of(yaml.safe_load(code.to_yaml()) | {"preset": "paper"})
    assert spelled.identity() == code.identity()


def test_zero_neighbors_have_the_identity_of_the_plain_method() -> None:
    moco = RunConfig.of({"method": {"relabel": "none"}})
    for kind in ("hard", "ahcl", "ascl"):
        none = RunConfig.of({"method": {"relabel": kind, "num_neighbours": 0}})
        assert none.identity() == moco.identity()


def test_command_line_issues_are_not_located_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("optim: {lr: 0.1}\nepochs: 0\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["optim.lr.x=3"])
    first, second = str(caught.value).splitlines()
    assert first.startswith("optim.lr: must be a number")
    assert second.startswith(f"{path}:2: epochs:")


def test_target_temperature_has_no_effect_on_hard_relabeling() -> None:
    given = {"method": {"relabel": "hard"}}
    hard = RunConfig.of(given).identity()
    assert changed(given, "method.target_temperature=0.1").identity() == hard
    assert changed(given, "method.num_neighbours=2").identity() != hard


def test_merging_copies_both_trees() -> None:
    under, over = {"optim": {"lr": 0.1}}, {"space": {"seeds": [0]}}
    merged = merge(under, over)
    merged["optim"]["lr"], merged["space"]["seeds"][0] = 0.2, 1
    assert under == {"optim": {"lr": 0.1}} and over == {"space": {"seeds": [0]}}
