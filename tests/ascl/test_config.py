"""Configs: presets, overrides, identity, and faults all at once."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ascl.config import RunConfig, load_config, merge, parse_overrides, with_overrides
from ascl.datasets import DATASETS
from ascl.faults import Faulty
from ascl.methods import method_names


def faults(given: object) -> list[str]:
    with pytest.raises(Faulty) as caught:
        RunConfig.of(given)
    return [str(fault) for fault in caught.value.faults]


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
def test_every_method_has_a_sane_run_on_every_dataset(
    method: str, dataset: str, preset: str
) -> None:
    given = {"preset": preset, "method": {"name": method}, "data": {"name": dataset}}
    config = RunConfig.of(given)
    assert RunConfig.of(yaml.safe_load(config.to_yaml())).identity() == config.identity()


# -- overrides


def test_overrides_change_only_what_they_name() -> None:
    config = with_overrides(RunConfig.of({}), ["optim.lr=1e-3", "data.train_size=5000", "seed=3"])
    assert (config.optim.lr, config.data.train_size, config.seed) == (1e-3, 5000, 3)
    assert config.optim.weight_decay == 1e-4


def test_a_change_of_preset_moves_what_the_preset_gave_and_not_what_the_user_gave() -> None:
    config = with_overrides(RunConfig.of({"optim": {"lr": 0.06}}), ["preset=code"])
    assert config.optim.lr == 0.06
    assert config.optim.weight_decay == 5e-4


def test_an_empty_value_takes_a_key_back_to_none() -> None:
    config = RunConfig.of({"data": {"train_size": 5000}})
    assert with_overrides(config, ["data.train_size="]).data.train_size is None


@pytest.mark.parametrize("text", ["lr", "=3", "a..b=1", ".=1", ""])
def test_a_malformed_override_gets_a_sentence(text: str) -> None:
    with pytest.raises(Faulty, match=r"must look like optim.lr=0.03"):
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
        except Faulty as faulty:
            assert all(fault.message for fault in faulty.faults)


known = st.sampled_from(
    ["preset", "seed", "epochs", "batch_size", "method", "data", "augment", "encoder", "optim"]
)
inner = st.sampled_from(["name", "lr", "width", "relabel", "root", "train_size", "key", "momentum"])


@given(st.dictionaries(known, trees | st.dictionaries(inner, trees, max_size=3)) | trees)
def test_no_config_ends_in_a_traceback(given: object) -> None:
    try:
        RunConfig.of(given)
    except Faulty as faulty:
        assert all(fault.message for fault in faulty.faults)


@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=2), trees), st.dictionaries(st.text(max_size=2), trees))
def test_merging_leaves_its_inputs_alone(under: dict[str, Any], over: dict[str, Any]) -> None:
    before = repr(under), repr(over)
    merge(under, over)
    assert before == (repr(under), repr(over))


# -- faults


def test_all_faults_come_at_once() -> None:
    found = faults(
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


def test_unknown_names_list_the_known_ones() -> None:
    found = faults({"method": {"name": "mocco"}, "data": {"name": "cifar"}})
    assert found[0].startswith("method.name: no method named 'mocco' (did you mean 'moco'?); there")
    assert found[1].startswith("data.name: no dataset named 'cifar'")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"batch_size": 100},
            "batch_size: the batch must be a multiple of the BN groups, got batch_size=100, "
            "bn_splits=8; try 96 or 104",
        ),
        ({"batch_size": 8}, "each BN group needs at least 2 images"),
        (
            {"runtime": {"micro_batches": 3}},
            "runtime.micro_batches: the BN groups must divide evenly over the micro-batches, for "
            "statistics never cross them, got encoder.bn_splits=8, runtime.micro_batches=3; "
            "try 2 or 4, or another encoder.bn_splits",
        ),
        (
            {"method": {"name": "byol"}, "runtime": {"micro_batches": 2}},
            "got encoder.bn_splits=1, runtime.micro_batches=2; try 1, or another encoder.bn_splits",
        ),
        ({"data": {"train_size": 100}}, "a batch cannot be larger than the training set"),
        ({"preset": "code", "epochs": 5}, "warm-up must end before the run does"),
        (
            {"method": {"relabel": "hard", "num_neighbours": 9, "queue_size": 8}},
            "must be at most the number of keys in the bank, got num_neighbours=9, 8 keys",
        ),
        (
            {"batch_size": 2, "method": {"name": "byol", "relabel": "ascl"}},
            "relabelling in the batch needs at least 3 images, got batch_size=2",
        ),
        ({"optim": {"lr": float("nan")}}, "optim.lr: must be a finite number, got nan"),
        ({"epochs": True}, "epochs: must be an integer, got True"),
        ([], "a config must be a mapping of keys, got []"),
    ],
)
def test_bad_values_get_the_rule_the_value_and_the_way_out(given: object, sentence: str) -> None:
    assert any(sentence in fault for fault in faults(given)), faults(given)


def test_faults_of_a_file_name_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("epochs: 10\noptim:\n  lr: fast\nmethod:\n  num_neighbors: 3\n")
    with pytest.raises(Faulty) as caught:
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
def test_what_changes_no_number_changes_no_identity(change: str) -> None:
    config = RunConfig.of({"method": {"relabel": "none"}})
    assert with_overrides(config, [change]).identity() == config.identity()


@pytest.mark.parametrize(
    "change",
    ["seed=1", "epochs=100", "batch_size=512", "optim.lr=0.03", "method.target_temperature=0.1"]
    + ["data.name=cifar100", "data.holdout=0.1", "augment.key=strong", "encoder.width=16"]
    + ["eval.knn_k=20", "runtime.precision=bf16", "method.relabel=ahcl", "preset=code"]
    + ["optim.name=lars", "method.symmetric=true"],
)
def test_what_can_change_a_number_changes_the_identity(change: str) -> None:
    config = RunConfig.of({"method": {"relabel": "ascl"}})
    assert with_overrides(config, [change]).identity() != config.identity()


def test_what_full_byol_has_changes_the_identity_and_what_it_has_not_does_not() -> None:
    plain = RunConfig.of({"method": {"name": "byol"}})
    assert plain.identity() == "55826a0d7335", "as before there was a choice"
    for change in ("method.symmetric", "method.momentum_rises"):
        assert with_overrides(plain, [f"{change}=false"]).identity() == plain.identity()
        assert with_overrides(plain, [f"{change}=true"]).identity() != plain.identity()


def test_two_ways_of_saying_a_run_are_one_run() -> None:
    code = RunConfig.of({"preset": "code"})
    spelled = RunConfig.of(yaml.safe_load(code.to_yaml()) | {"preset": "paper"})
    assert spelled.identity() == code.identity()


def test_no_neighbours_is_the_plain_method_whatever_it_is_called() -> None:
    moco = RunConfig.of({"method": {"relabel": "none"}})
    for kind in ("hard", "ahcl", "ascl"):
        none = RunConfig.of({"method": {"relabel": kind, "num_neighbours": 0}})
        assert none.identity() == moco.identity()


def test_a_config_keeps_its_own_copy_of_what_it_was_given() -> None:
    given: Any = {"optim": {"lr": 0.1}}
    config = RunConfig.of(given)
    given["optim"]["lr"] = 0.5
    assert with_overrides(config, []).optim.lr == 0.1


def test_what_was_said_on_the_command_line_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("optim: {lr: 0.1}\nepochs: 0\n")
    with pytest.raises(Faulty) as caught:
        load_config(path, ["optim.lr.x=3"])
    first, second = str(caught.value).splitlines()
    assert first.startswith("optim.lr: must be a number")
    assert second.startswith(f"{path}:2: epochs:")


def test_the_target_temperature_is_nothing_to_hard_relabelling() -> None:
    hard = RunConfig.of({"method": {"relabel": "hard"}})
    assert with_overrides(hard, ["method.target_temperature=0.1"]).identity() == hard.identity()
    assert with_overrides(hard, ["method.num_neighbours=2"]).identity() != hard.identity()
