"""Sweep files: what they mean, what is wrong with them, overrides, and the laptop's scale."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from ascl.config import RunConfig
from ascl.faults import Faulty
from ascl.methods import method_names
from ascl_sweep.sections import SweepFile
from ascl_sweep.spec import Scale, StopConfig, SweepSpec, json_schema, load_spec, spec_of

SPACES = Path(__file__).parent.parent.parent / "search_spaces"
FILES = sorted(SPACES.glob("*.yaml"))

SEARCH = """\
name: joint
base: {data.name: shapes, method: {relabel: ascl}}
space:
  optuna:
    domains:
      method.num_neighbours: {int: [1, 8]}
      batch_size: {choice: [64, 128]}
seeds: [3, 4]
stop: {asha: {grace: 10%}}
ladder: {finalists: 2}
budget: {trials: 8}
"""


def read(given: Any, *overrides: str, scale: Scale = "full") -> SweepSpec:
    text = given if isinstance(given, str) else yaml.safe_dump({"name": "s", **given})
    return spec_of(text, file="s.yaml", overrides=overrides, scale=scale)


def faults(given: Any, *overrides: str, scale: Scale = "full") -> list[str]:
    with pytest.raises(Faulty) as caught:
        read(given, *overrides, scale=scale)
    return str(caught.value).splitlines()


def grid(**axes: list[Any]) -> dict[str, Any]:
    return {"grid": {key.replace("__", "."): values for key, values in axes.items()}}


# -- what a file means


def test_a_cell_is_the_base_with_its_changes() -> None:
    spec = read(
        {
            "base": {"preset": "code", "optim.lr": 0.5, "method": {"relabel": "ascl"}},
            "space": grid(method__num_neighbours=[1, 2], data__name=["cifar10", "stl10"]),
            "epochs": 50,
        }
    )
    config: Any = spec.config(spec.cells()[-1].changes, seed=7)
    assert (config.seed, config.epochs, config.optim.lr, config.preset) == (7, 50, 0.5, "code")
    assert (config.method.num_neighbours, config.data.name) == (2, "stl10")
    assert config.encoder.max_pool, "what a preset says of a dataset follows the axis"


def test_dotted_and_nested_keys_of_the_base_mean_the_same() -> None:
    dotted = read({"base": {"optim.lr": 0.5, "optim.momentum": 0.8, "data.name": "shapes"}})
    tree = read({"base": {"optim": {"lr": 0.5, "momentum": 0.8}, "data": {"name": "shapes"}}})
    assert dotted.base == tree.base


def test_an_axis_over_epochs_wins_over_the_sweeps_epochs() -> None:
    spec = read({"epochs": 10, "space": grid(epochs=[20, 30])})
    assert [spec.config(c.changes, seed=0).epochs for c in spec.cells()] == [20, 30]


def test_without_a_space_the_base_is_the_only_cell() -> None:
    assert [dict(cell.changes) for cell in read({}).cells()] == [{}]


def test_a_change_that_changes_nothing_is_the_base() -> None:
    spec = read({"space": {"one_factor": {"batch_size": [128, 256], "optim.lr": [0.06]}}})
    assert [dict(cell.changes) for cell in spec.cells()] == [{}, {"batch_size": 128}]


def test_a_default_of_one_method_or_dataset_is_news_to_another() -> None:
    space = {
        "union": [
            {"grid": {"data.name": ["imagenet"]}},
            {"grid": {"data.name": ["imagenet"], "encoder.name": ["resnet18", "resnet50"]}},
        ]
    }
    names = [
        read({"space": space}).config(c.changes, seed=0).encoder.name
        for c in read({"space": space}).cells()
    ]
    assert names == ["resnet50", "resnet18", "resnet50"]


def test_cells_are_distinct_and_a_union_lists_none_twice() -> None:
    part = grid(optim__lr=[0.1, 0.2])
    spec = read({"space": {"union": [part, grid(optim__lr=[0.2, 0.3]), part]}})
    assert [cell.changes["optim.lr"] for cell in spec.cells()] == [0.1, 0.2, 0.3]
    assert len(set(spec.cells())) == 3


def test_a_sweep_read_again_from_its_own_text_is_the_same() -> None:
    spec = read(SEARCH, "optim.lr=0.1", "stop.asha.factor=4", scale="laptop")
    again = spec_of(spec.text, file=spec.file, overrides=spec.overrides, scale=spec.scale)
    assert again == spec


def test_a_spec_is_frozen() -> None:
    with pytest.raises(AttributeError):
        read({}).name = "x"  # type: ignore[misc]


# -- search and final


def test_a_search_is_scored_on_the_holdout_and_its_finalists_on_test() -> None:
    spec = read(SEARCH)
    assert spec.is_search
    assert spec.config({}, seed=0, phase="search").data.holdout == 0.1
    assert spec.config({}, seed=0, phase="final").data.holdout == 0
    own = read(SEARCH, "data.holdout=0.25")
    assert own.config({}, seed=0, phase="search").data.holdout == 0.25
    assert own.config({}, seed=0, phase="final").data.holdout == 0


def test_a_sweep_that_selects_nothing_keeps_the_bases_holdout() -> None:
    spec = read({"base": {"data.holdout": 0.2}})
    assert not spec.is_search
    assert spec.config({}, seed=0, phase="final").data.holdout == 0.2


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ({"asha": {}}, StopConfig("asha", grace=0.1, factor=3)),
        (
            {"asha": {"grace": "12.5 %", "factor": 4}, "audit": "0%"},
            StopConfig("asha", grace=0.125, factor=4, audit=0),
        ),
        ({"median": {"grace": 5}, "audit": 0.1}, StopConfig("median", grace=5, audit=0.1)),
        (
            {"keep_top": {"share": "12.5%", "at": "20%"}},
            StopConfig("keep_top", share=0.125, at=0.2),
        ),
    ],
)
def test_the_rules_of_stopping(stop: dict[str, Any], expected: StopConfig) -> None:
    assert read({"stop": stop, "space": grid(optim__lr=[0.1, 0.2])}).stop == expected


@pytest.mark.parametrize(
    ("grace", "epochs", "first"), [(0.1, 200, 20), (0.1, 4, 1), (7, 200, 7), (0.07, 100, 7)]
)
def test_grace_is_so_many_epochs_or_a_share_of_them(grace: float, epochs: int, first: int) -> None:
    assert StopConfig("asha", grace=grace).grace_epochs(epochs) == first
    assert StopConfig("keep_top", at=grace).at_epochs(epochs) == first


def test_a_searched_key_is_wanted_where_its_condition_holds() -> None:
    spec = read(
        {
            "space": {
                "optuna": {
                    "domains": {
                        "method.target_temperature": {
                            "uniform": [0.1, 0.2],
                            "when": {"method.relabel": ["ascl", "ahcl"], "method.name": "moco"},
                        },
                        "method.relabel": {"choice": ["none", "ascl"]},
                    }
                }
            },
            "budget": {"trials": 3},
        }
    )
    assert list(spec.domains) == ["method.relabel", "method.target_temperature"]
    assert spec.wanted("method.target_temperature", {"method.relabel": "ascl"})
    assert not spec.wanted("method.target_temperature", {"method.relabel": "none"})
    assert not spec.wanted("method.target_temperature", {})


def test_a_table_shows_knn_where_there_is_no_probe() -> None:
    table = {"rows": "optim.lr"}
    for probe, metric in (("cached", "probe_top1"), ("none", "knn_top1")):
        spec = read({"base": {"eval.probe": probe}, "table": table})
        assert spec.table and spec.table.metric == metric


# -- what is wrong


def test_all_faults_come_at_once_with_their_lines() -> None:
    text = """\
name: my sweep
bas: 3
base:
  data: {name: cifar}
  optim.lr: fast
space:
  grid:
    method.num_neighbors: [1, 2]
    method.target_temperature: [0.1, "0.2", -1]
    seed: [0, 1]
seeds: 3
stop: {asha: {grace: 1.5}}
ladder: {finalist: 4}
resources: {gpus_per_worker: 1.5}
table: {rows: data.nam}
"""
    found = faults(text)
    assert found == [
        "s.yaml:1: name: must be a word of letters, digits, `_`, `-` and `.`, for it names files, "
        "got 'my sweep'",
        "s.yaml:2: bas: no such field (did you mean 'base'?)",
        found[2],
        "s.yaml:5: base.optim.lr: must be a number, got 'fast'",
        "s.yaml:8: space.grid.method.num_neighbors: no such field "
        "(did you mean 'method.num_neighbours'?)",
        "s.yaml:9: space.grid.method.target_temperature: must be a number, got '0.2'",
        "s.yaml:9: space.grid.method.target_temperature: must be greater than 0, got -1",
        "s.yaml:10: space.grid.seed: seeds are no axis, for every arm runs with the same ones; "
        "list them in `seeds`",
        "s.yaml:11: seeds: must be a list, got 3",
        "s.yaml:12: stop.asha.grace: must be a whole number of epochs, or a share of them such as "
        "10% or 0.1, got 1.5",
        "s.yaml:13: ladder.finalists: must be given",
        "s.yaml:13: ladder.finalist: no such field (did you mean 'finalists'?)",
        "s.yaml:14: resources.gpus_per_worker: must be a part of one GPU or a whole number of them,"
        " got 1.5",
        "s.yaml:15: table.rows: no such field (did you mean 'data.name'?), got 'data.nam'",
    ]
    assert found[2].startswith("s.yaml:4: base.data.name: no dataset named 'cifar' (did you mean")


def test_a_table_of_the_paper_must_be_one() -> None:
    (found,) = faults("name: s\ntable: {rows: data.name, paper: tau_primes}\n")
    assert found.startswith(
        "s.yaml:2: table.paper: no table of the paper named 'tau_primes' (did you mean"
    )


STOP: dict[str, Any] = {"stop": {"asha": {}}}
OPTUNA: dict[str, Any] = {"budget": {"trials": 4}}


def search(**domains: dict[str, Any]) -> dict[str, Any]:
    named = {key.replace("__", "."): domain for key, domain in domains.items()}
    return {"space": {"optuna": {"domains": named}}, **OPTUNA}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        # the base
        ({"base": {"seed": 3}}, "base.seed: a sweep has `seeds`"),
        ({"base": {"epochs": 3}, "epochs": 4}, "base.epochs: given twice"),
        ({"base": {"optim.lr": 1, "optim": {"lr": 2}}}, "base.optim.lr: given twice"),
        ({"base": {"data": 5}}, "base.data: must be a mapping of keys, got 5"),
        ({"base": 5}, "base: must be a dictionary, got 5"),
        ({"base": {"batch_size": 100}}, "base.batch_size: the batch must be a multiple of the BN"),
        # axes
        ({"space": grid(data__holdout=[0.1])}, "scored on other images; set it in the base"),
        ({"space": grid(data__root=["a", "b"])}, "where the data lie changes no number"),
        ({"space": grid(runtime__device=["cpu"])}, "say how much it gets in `resources`"),
        ({"space": grid(runtime__micro_batches=[1, 2])}, "how a run fits in memory changes no arm"),
        ({"space": grid(method=["moco"])}, "space.grid.method: no such field"),
        ({"space": grid(epochs=[2, 4]), **STOP}, "runs of one length"),
        (search(epochs={"int": [2, 4]}), "runs of one length"),
        (
            {"space": grid(batch_size=[64, 100])},
            "space.grid.batch_size: the batch must be a multiple of the BN groups, "
            "got batch_size=100, bn_splits=8; try 96 or 104",
        ),
        (
            {"space": grid(encoder__bn_splits=[8, 7])},
            "space.grid.encoder.bn_splits: batch_size: the batch must be a multiple of the BN "
            "groups, got batch_size=256, bn_splits=7; try 252 or 259 (with encoder.bn_splits=7)",
        ),
        (
            {"base": {"method.queue_size": 64}, "space": grid(method__name=["moco", "byol"])},
            "space.grid.method.name: method.queue_size: no such field (with method.name='byol')",
        ),
        (
            {"space": {"union": [grid(optim__lr=[1]), grid(optim__lr=[0.5, -1])]}},
            "s.yaml:8: space.union.1.grid.optim.lr: must be greater than 0, got -1",
        ),
        (
            {"space": {"leave_one_out": {"warm-up": {"optim.warmup_epochs": -1}}}},
            "space.leave_one_out.warm-up.optim.warmup_epochs: must be greater than or equal to 0",
        ),
        # exclude
        (
            {"space": {**grid(optim__lr=[1, 2]), "exclude": [{"optim.l": 1}]}},
            "space.exclude.0: excludes no cell: nothing is called 'optim.l' (did you mean 'optim.l",
        ),
        (
            {"space": {**grid(optim__lr=[1, 2]), "exclude": [{"optim.lr": 3}]}},
            "space.exclude.0: excludes no cell, got {'optim.lr': 3}; optim.lr is 1, 2",
        ),
        (
            {"space": {**grid(optim__lr=[1, 2]), "exclude": [{"data.name": "cifar10"}]}},
            "space: must leave at least one cell, and `exclude` takes out all",
        ),
        # domains
        (
            search(method__num_neighbours={"int": [1, 5000]})
            | {"base": {"method.relabel": "ascl"}},
            "space.optuna.domains.method.num_neighbours: must be at most the number of keys",
        ),
        (search(batch_size={"int": [64, 128]}), "got batch_size=65, bn_splits=8"),
        (search(optim__lr={"uniform": [-1, 1]}), "optim.lr: must be greater than 0, got -1.0"),
        (
            search(encoder__name={"choice": ["resnet18", "resnet19"]}),
            "space.optuna.domains.encoder.name: must be",
        ),
        (search(optim__lr={"choice": [1], "stp": 1}), "no such field (did you mean 'step'?)"),
        (
            search(optim__lr={"uniform": [1, 2], "when": {"method.relabel": "ascl"}}),
            "domains.optim.lr.when.method.relabel: never holds: the base has 'none', got 'ascl'",
        ),
        (
            search(optim__lr={"uniform": [1, 2], "when": {"method.relabl": "ascl"}}),
            "when.method.relabl: no such field (did you mean 'method.relabel'?)",
        ),
        (
            search(
                optim__lr={"uniform": [1, 2], "when": {"preset": "papr"}},
                preset={"choice": ["paper", "code"]},
            ),
            "never holds: must be among paper, code, got ['papr']",
        ),
        (
            search(
                optim__lr={"uniform": [1, 2], "when": {"optim.momentum": 0.9}},
                optim__momentum={"uniform": [0.1, 0.9]},
            ),
            "a condition needs a choice or an int to look at, got uniform",
        ),
        # the rest
        ({**search(optim__lr={"uniform": [1, 2]}), "budget": {}}, "budget.trials: must be given"),
        ({"seeds": [1, 1]}, "seeds: must list at least one seed and each once"),
        ({"seeds": []}, "seeds: must list at least one seed"),
        ({"seeds": [-1]}, "seeds.0: must be greater than or equal to 0, got -1"),
        ({"ladder": {"finalists": 1}}, "ladder: finalists come from a search"),
        (
            {**STOP, "space": grid(optim__lr=[1, 2]), "ladder": {"finalists": 3}},
            "ladder.finalists: must be at most the number of cells, got 3 of 2",
        ),
        (
            {**search(optim__lr={"uniform": [1, 2]}), "ladder": {"finalists": 9}},
            "ladder.finalists: must be at most budget.trials, got 9 of 4",
        ),
        (
            {
                **STOP,
                "space": grid(data__name=["cifar10", "stl10"], optim__lr=[1, 2]),
                "ladder": {"finalists": 3, "per": "data.name"},
            },
            "ladder.finalists: must be at most the number of cells, got 3 of 2",
        ),
        (
            {**STOP, "space": grid(optim__lr=[1, 2]), "ladder": {"finalists": 1, "per": "optim.l"}},
            "ladder.per: must be a key that varies, got 'optim.l' (did you mean 'optim.lr'?)",
        ),
        ({**STOP, "base": {"eval.knn_every": 5}}, "base.eval.knn_every: must be 1 with `stop`"),
        (
            {**STOP, "space": grid(data__name=["cifar10", "imagenet"])},
            "space.grid.data.name: eval.knn_every: must be 1 with `stop`, which looks at every "
            "epoch's kNN, got 10; set it in the base (with data.name='imagenet')",
        ),
        ({"stop": {"asha": {"grace": 9}}, "epochs": 9}, "stop.asha.grace: must come before the"),
        ({"stop": {"asha": {}, "median": {}}}, "stop: must have exactly one of asha, median, keep"),
        ({"stop": {"asha": {"factor": 1}}}, "stop.asha.factor: must be greater than 1, got 1"),
        ({"stop": {"keep_top": {"share": "0%"}}}, "stop.keep_top.share: must be above 0"),
        ({"stop": {"asha": {}, "audit": "200%"}}, "stop.audit: must be a share from 0 to below 1"),
        (
            {"resources": {"workers": 2}, "space": grid(method__name=["moco", "byol"])},
            "space.grid.method.name: encoder.bn_splits: the BN groups must divide evenly over the "
            "workers, for statistics never cross them, got encoder.bn_splits=1, "
            "resources.workers=2; try 2 (with method.name='byol')",
        ),
        (
            {"resources": {"workers": 2}, "base": {"runtime.micro_batches": 8}},
            "base.runtime.micro_batches: the BN groups must divide evenly over the micro-batches, "
            "for statistics never cross them, got encoder.bn_splits=8, runtime.micro_batches=8, "
            "workers=2; try 4, or another encoder.bn_splits",
        ),
        (
            {"base": {"eval.probe": "none"}, "table": {"rows": "preset", "metric": "probe_top1"}},
            "table.metric: probe_top1 needs the linear probe, got eval.probe=none",
        ),
        ({"table": {"rows": "preset", "columns": "preset"}}, "must differ from the rows"),
        ({"table": {"rows": "preset", "metric": "top1"}}, "table.metric: must be 'probe_top1'"),
        (
            {"table": {"rows": "preset", "baseline": {"optim.lr": 5}}},
            "table.baseline: must pick one of the arms, and none has {'optim.lr': 5}",
        ),
        ("[1]", "a sweep must be a mapping of keys, got [1]"),
        ("a: [", "s.yaml:1: not YAML"),
        ("name: a\nname: b\n", "s.yaml:2: name: given twice, first on line 1"),
        ("", "name: must be given"),
    ],
)
def test_a_fault_gets_the_place_the_rule_the_value_and_the_way_out(
    given: Any, sentence: str
) -> None:
    found = faults(given)
    assert any(sentence in fault for fault in found), found
    assert len(found) == 1, found


def test_conditions_in_circles_are_all_named() -> None:
    found = faults(
        search(
            preset={"choice": ["paper"], "when": {"batch_size": 64}},
            batch_size={"choice": [64], "when": {"preset": "paper"}},
        )
    )
    assert len(found) == 2
    assert "space.optuna.domains.preset.when: conditions must not go in circles" in found[1]


def test_a_fault_of_many_cells_is_told_once() -> None:
    space = grid(optim__lr=[0.1, "x"], optim__momentum=[0.1, 0.2], batch_size=[64, 128])
    assert faults({"space": space}) == ["s.yaml:7: space.grid.optim.lr: must be a number, got 'x'"]


def test_of_very_many_cells_the_ends_are_proven() -> None:
    lr = [round(0.001 * n, 3) for n in range(1, 101)]
    space = grid(optim__lr=lr, optim__momentum=[n / 100 for n in range(99)])
    assert len(read({"space": space}).cells()) == 9900
    space["grid"]["optim.momentum"][-1] = 1.0
    assert "optim.momentum: must be less than 1, got 1.0" in faults({"space": space})[0]


def test_a_base_need_not_run_if_no_cell_is_the_base() -> None:
    assert len(read({"base": {"batch_size": 100}, "space": grid(batch_size=[64, 96])}).cells()) == 2


def test_a_missing_file_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Faulty, match=r"none\.yaml: cannot be read: No such file"):
        load_spec(tmp_path / "none.yaml")


# -- overrides


def test_overrides_change_the_sweep_or_its_base() -> None:
    spec = read(
        SEARCH,
        *("seeds=[0, 1, 2]", "epochs=50", "optim.lr=0.1", "base.optim.momentum=0.8"),
        *("stop.asha.factor=4", "budget.hours=2", "name=mine", "ladder.finalists=3"),
        "space.optuna.domains.method.num_neighbours.int=[2, 4]",
    )
    assert (spec.seeds, spec.epochs, spec.name) == ((0, 1, 2), 50, "mine")
    assert spec.stop == StopConfig("asha", grace=0.1, factor=4)
    assert (spec.budget.trials, spec.budget.hours) == (8, 2)
    assert spec.domains["method.num_neighbours"].high == 4
    config = spec.config({}, seed=0)
    assert (config.optim.lr, config.optim.momentum, config.epochs) == (0.1, 0.8, 50)


def test_an_override_can_take_a_section_away() -> None:
    spec = read(SEARCH, "stop=null", "ladder=")
    assert spec.stop is None
    assert spec.ladder is None


def test_an_override_of_a_sweeps_section_replaces_what_it_names() -> None:
    assert read(SEARCH, "stop={median: {grace: 3}}").stop == StopConfig("median", grace=3)


CASES = {
    "space": grid(data__name=["cifar10", "imagenet"]),
    "resources": {
        "gpus_per_worker": 0.25,
        "cases": [{"when": {"data.name": "imagenet"}, "workers": 8, "gpus_per_worker": 1}],
    },
}


def test_runs_of_one_sweep_may_get_what_each_needs() -> None:
    spec = read(CASES)
    small, large = (spec.resources_of(spec.config(c.changes, seed=0)) for c in spec.cells())
    assert (small.workers, small.gpus_per_worker) == (1, 0.25)
    assert (large.workers, large.gpus_per_worker, large.cpus_per_worker) == (8, 1, 1)
    assert spec.resources.kinds() == [small, large]


def test_a_laptop_gives_every_run_the_same() -> None:
    spec = read(CASES, scale="laptop")
    (only,) = spec.resources.kinds()
    assert (only.workers, only.gpus_per_worker) == (1, 0)


def test_a_case_looks_at_keys_that_there_are_and_its_workers_must_share_the_groups() -> None:
    assert faults({"resources": {"cases": [{"when": {"data.nam": "x"}, "workers": 2}]}}) == [
        "s.yaml:5: resources.cases.0.when.data.nam: no such field (did you mean 'data.name'?)"
    ]
    three = {"when": {"data.name": "imagenet"}, "workers": 3}
    (fault,) = faults({**CASES, "resources": {"cases": [three]}})
    assert "got encoder.bn_splits=8, resources.workers=3; try 9" in fault


def test_an_axis_can_be_changed_or_added() -> None:
    sweep = {"space": grid(optim__lr=[0.1])}
    spec = read(sweep, "space.grid.optim.lr=[0.2]", "space.grid.batch_size=[64, 128]")
    assert [dict(c.changes) for c in spec.cells()] == [
        {"optim.lr": 0.2, "batch_size": 64},
        {"optim.lr": 0.2, "batch_size": 128},
    ]


def test_the_sweeps_epochs_override_the_bases() -> None:
    assert read({"base": {"epochs": 100}}, "epochs=5").config({}, seed=0).epochs == 5


def test_an_override_without_effect_gets_the_way_out() -> None:
    assert faults({"space": grid(optim__lr=[0.1, 0.2])}, "optim.lr=0.3") == [
        "--set optim.lr: has no effect, for the sweep varies it; "
        "change its values with --set space.grid.optim.lr=…"
    ]
    one_factor = read({"space": {"one_factor": {"optim.lr": [0.1, 0.2]}}}, "optim.lr=0.3")
    assert one_factor.config({}, seed=0).optim.lr == 0.3


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("optim.lr=fast", "--set optim.lr: must be a number, got 'fast'"),
        ("optim.lrr=1", "--set optim.lrr: no such field (did you mean 'lr'?)"),
        ("seed=3", "--set seed: a sweep has `seeds`"),
        ("data=5", "--set data: must be a mapping of keys, got 5"),
        ("stop.asha.factor=0", "--set stop.asha.factor: must be greater than 1, got 0"),
        ("stop.median.grace=2", "--set stop: must have exactly one of asha, median"),
        ("seeds=[a]", "--set seeds.0: must be an integer, got 'a'"),
    ],
)
def test_what_was_said_on_the_command_line_is_not_blamed_on_the_file(
    override: str, sentence: str
) -> None:
    found = faults(SEARCH, override)
    assert len(found) == 1
    assert found[0].startswith(sentence)


def test_malformed_overrides_get_a_sentence_each() -> None:
    assert faults({}, "lr", "epochs=3", "=") == [
        "an override must look like optim.lr=0.03, got 'lr'",
        "an override must look like optim.lr=0.03, got '='",
    ]


# -- laptop


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_search_space_runs_on_a_laptop(path: Path) -> None:
    spec = load_spec(path, scale="laptop")
    assert spec.scale == "laptop"
    assert len(spec.seeds) <= 3
    assert (spec.budget.trials or 0) <= 12
    resources = spec.resources
    assert (resources.workers, resources.gpus_per_worker, resources.cpus_per_worker) == (1, 0, 1)
    for cell in spec.cells():
        config = spec.config(cell.changes, seed=0)
        assert (config.data.name, config.data.train_size) == ("shapes", 4000)
        lr = cell.changes.get("optim.lr", 0.06)
        assert (config.epochs, config.optim.peak(32)) == (cell.changes.get("epochs", 6), lr)
        assert config.epochs <= 6
        assert config.encoder.width <= 16
        assert config.eval.probe != "paper"


def laptop(given: dict[str, Any], *overrides: str) -> SweepSpec:
    return read(given, *overrides, scale="laptop")


def test_on_a_laptop_all_data_are_shapes_and_are_no_axis() -> None:
    sweep = {"space": grid(data__name=["cifar10", "cifar100"], optim__lr=[0.1, 0.2])}
    assert [dict(c.changes) for c in laptop(sweep).cells()] == [
        {"optim.lr": 0.1},
        {"optim.lr": 0.2},
    ]
    own = laptop(sweep, "data.name=cifar10", "encoder.width=8")
    config = own.config(own.cells()[0].changes, seed=0)
    assert (config.data.name, config.encoder.width, config.data.train_size) == ("cifar10", 8, 4000)


def test_a_laptop_has_the_memory_for_a_whole_batch() -> None:
    assert laptop({"base": {"runtime.micro_batches": 8}}).config({}, seed=0).runtime == (
        laptop({}).config({}, seed=0).runtime
    )


def test_sizes_that_vary_stay_varied_as_far_as_they_differ() -> None:
    space = {
        "zip": {"batch_size": [64, 128, 256, 512], "method.queue_size": [64, 1024, 4096, 2**16]}
    }
    found = [tuple(c.changes.values()) for c in laptop({"space": space}).cells()]
    assert found == [(16, 128), (32, 512), (64, 512)]


@pytest.mark.parametrize(
    ("given", "small"),
    [
        ([200, 800], [3, 6]),
        ([800, 400, 200, 100], [6, 4, 3, 1]),
        ([1, 3], [1, 3]),
        ([100, 200, 300, 400, 500], [1, 2, 3, 4, 6]),
    ],
)
def test_lengths_that_vary_stay_different_and_in_order(given: list[int], small: list[int]) -> None:
    assert [c.changes["epochs"] for c in laptop({"space": grid(epochs=given)}).cells()] == small


@pytest.mark.parametrize("preset", ["paper", "code"])
def test_every_method_has_a_sane_run_on_a_laptop(preset: str) -> None:
    spec = laptop({"base": {"preset": preset}, "space": grid(method__name=list(method_names()))})
    for cell in spec.cells():
        config: Any = spec.config(cell.changes, seed=0)
        full = RunConfig.of({"preset": preset, "method": {"name": config.method.name}})
        assert config.encoder.bn_splits == min(4, full.encoder.bn_splits)
        if getattr(config.method, "queue_size", 0):
            assert config.method.queue_size == 512
            slow = 0.9 if config.method.name == "meanshift" else 0.996
            assert getattr(config.method, "momentum", slow) == slow
        if config.method.name == "swav":
            assert (config.method.num_prototypes, config.method.sinkhorn_epsilon) == (30, 0.02)
        if config.method.name == "ressl":
            assert (config.method.key_temperature, config.optim.weight_decay) == (0.02, 1e-4)


def test_on_a_laptop_some_epochs_come_before_clusters_and_some_after() -> None:
    def method(name: str) -> Any:
        return laptop({"base": {"method": {"name": name}}}).config({}, seed=0).method

    assert method("instdisc").negatives is None
    assert (method("localagg").num_clusters, method("localagg").instdisc_epochs) == (500, 3)
    assert (method("pcl").granularities, method("pcl").instance_epochs) == ((250, 500), 1)


def test_numbers_of_clusters_shrink_where_they_are_given() -> None:
    given = {
        "base": {
            "data": {"name": "imagenet"},
            "method": {"name": "pcl", "negative_prototypes": 300, "instance_epochs": 20},
        },
        "space": grid(method__granularities=[[25000, 50000], [301], [400, 900]], epochs=[100, 200]),
    }
    cells = laptop(given).cells()
    configs: list[Any] = [laptop(given).config(cell.changes, seed=0) for cell in cells]
    found = [(c.method.granularities, c.epochs, c.method.instance_epochs) for c in configs]
    small = [(500, 500), (301,), (400, 500)]
    assert found == [(clusters, epochs, 1) for epochs in (3, 6) for clusters in small]
    assert all(c.method.negative_prototypes == 200 for c in configs)


def test_overrides_come_after_the_scaling() -> None:
    spec = laptop(
        {"epochs": 200, "stop": {"median": {"grace": 50}}, "budget": {"hours": 3}},
        *("epochs=10", "seeds=[0, 1, 2, 3]", "method.queue_size=1000", "batch_size=64"),
    )
    config: Any = spec.config({}, seed=0)
    assert (config.epochs, config.method.queue_size, config.batch_size) == (10, 1000, 64)
    assert (len(spec.seeds), spec.budget.hours) == (4, 3)
    assert spec.stop and spec.stop.grace == 1


def test_what_falls_together_on_a_laptop_is_no_fault() -> None:
    spec = laptop(
        {
            "space": {
                **grid(batch_size=[64, 128, 96], data__name=["cifar10", "stl10"]),
                "exclude": [
                    {"data.name": "stl10", "batch_size": 96},
                    {"batch_size": 96, "epochs": 3},
                ],
            },
            "table": {"rows": "data.name", "baseline": {"data.name": "stl10", "batch_size": 128}},
            **STOP,
            "ladder": {"finalists": 4},
        }
    )
    assert [dict(c.changes) for c in spec.cells()] == [{"batch_size": 16}]
    assert spec.ladder and spec.ladder.finalists == 1


def test_domains_shrink_with_what_they_search() -> None:
    spec = laptop(
        search(
            batch_size={"int": [64, 512], "step": 64},
            encoder__width={"int": [32, 64]},
            data__name={"choice": ["cifar10", "stl10"]},
            optim__lr={"uniform": [0.1, 0.2], "when": {"data.name": "stl10"}},
        )
    )
    assert list(spec.domains) == ["batch_size", "encoder.width", "optim.lr"]
    batch, width = spec.domains["batch_size"], spec.domains["encoder.width"]
    assert (batch.low, batch.high, batch.step, width.choices) == (16, 64, 4, (16,))
    assert spec.wanted("optim.lr", {})


def test_what_is_wrong_stays_wrong_on_a_laptop() -> None:
    found = faults(
        {"base": {"data.name": "cifr", "optim": 3}, "space": grid(encoder__name=["resnet19"])},
        scale="laptop",
    )
    assert len(found) == 3


def test_an_unknown_scale_gets_a_sentence() -> None:
    with pytest.raises(Faulty, match="no scale named 'phone'; there are: full, laptop"):
        spec_of("name: a", file="f", scale="phone")  # type: ignore[arg-type]


# -- no input ends in a traceback


def never_a_traceback(text: str, scale: Scale = "full") -> None:
    try:
        spec_of(text, file="f.yaml", overrides=(), scale=scale)
    except Faulty as faulty:
        assert all(fault.message for fault in faulty.faults)


scales = st.sampled_from(["full", "laptop"])
leaf = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["10%", "cifar10", "moco", "byol", 0, 1, 64, 10**400, "knn_top1", 0.1])
)
WORDS = """
    grid zip one_factor leave_one_out union optuna exclude domains sampler
    uniform log_uniform int choice log step when asha median keep_top grace at
    share audit factor metric finalists per rows columns baseline workers trials
    optim.lr batch_size data.name method.name data method epochs seed preset
    method.queue_size data.holdout eval.knn_every encoder.bn_splits lr name
"""
words = st.sampled_from(WORDS.split()) | st.text(max_size=4)
trees = st.recursive(
    leaf,
    lambda t: st.lists(t, max_size=3) | st.dictionaries(words, t, max_size=3),
    max_leaves=12,
)
sections = st.sampled_from(list(SweepFile.model_fields))
lists = st.lists(leaf, max_size=3)
bounds = st.lists(st.integers(-2, 300) | st.floats(-1, 9), min_size=2, max_size=2)
domain = st.dictionaries(
    st.sampled_from(["uniform", "log_uniform", "int"]), bounds, min_size=1, max_size=1
) | st.fixed_dictionaries(
    {"choice": lists}, optional={"when": st.dictionaries(words, leaf | lists, max_size=2)}
)
axes = st.dictionaries(words, lists, max_size=3)
forms = st.fixed_dictionaries(
    {},
    optional={
        "grid": axes,
        "zip": axes,
        "one_factor": axes,
        "leave_one_out": st.dictionaries(words, st.dictionaries(words, leaf, max_size=2)),
        "optuna": st.fixed_dictionaries({"domains": st.dictionaries(words, domain, max_size=3)}),
        "exclude": st.lists(st.dictionaries(words, leaf | lists, max_size=2), max_size=2),
    },
)
near = st.fixed_dictionaries(
    {"name": st.just("a")},
    optional={
        "base": st.dictionaries(words, trees, max_size=3),
        "space": forms | st.lists(forms, max_size=2).map(lambda parts: {"union": parts}),
        "stop": trees | st.just({"asha": {}}),
        "ladder": trees | st.just({"finalists": 1}),
        "table": trees | st.fixed_dictionaries({"rows": words, "baseline": trees}),
        "budget": trees | st.just({"trials": 4}),
        "epochs": leaf,
        "seeds": lists,
        "resources": trees,
    },
)


@given(trees | st.dictionaries(sections, trees) | near, scales)
@example({"name": "a", "base": {"data": {"holdout": []}}, "stop": {"asha": {}}}, "full")
def test_no_tree_ends_in_a_traceback(tree: object, scale: Scale) -> None:
    never_a_traceback(yaml.safe_dump(tree), scale)


@given(
    st.text("abc:- \n{}[]!&*'1e.%", max_size=40).map(lambda t: f"name: a\nspace:\n  {t}\n")
    | st.text(max_size=30),
    scales,
)
def test_no_text_ends_in_a_traceback(text: str, scale: Scale) -> None:
    never_a_traceback(text, scale)


@given(
    st.lists(
        st.tuples(st.lists(words, min_size=1, max_size=3), trees).map(
            lambda o: f"{'.'.join(o[0])}={json.dumps(o[1], default=str)}"
        )
        | st.tuples(sections, words, leaf).map(lambda o: f"{o[0]}.{o[1]}={o[2]}")
        | st.text(max_size=10),
        max_size=3,
    ),
    scales,
)
def test_no_override_ends_in_a_traceback(overrides: list[str], scale: Scale) -> None:
    try:
        spec_of(SEARCH, file="f.yaml", overrides=overrides, scale=scale)
    except Faulty as faulty:
        assert all(fault.message for fault in faulty.faults)


# -- the search spaces, and the schema they name


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_search_space_is_valid_and_tells_its_story(path: Path) -> None:
    assert load_spec(path).name == path.stem
    text = path.read_text()
    assert text.startswith("# yaml-language-server: $schema=sweep.schema.json\n")
    assert f"ascl-sweep run search_spaces/{path.name}" in text.partition("\nname:")[0]


def test_the_schema_is_up_to_date() -> None:
    written = (SPACES / "sweep.schema.json").read_text()
    expected = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    assert written == expected, "run: ascl-sweep schema > search_spaces/sweep.schema.json"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_search_space_fits_the_schema(path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(json_schema())
    jsonschema.validate(yaml.safe_load(path.read_text()), json_schema())


def test_the_schema_knows_every_key_and_refuses_typos() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    check = jsonschema.Draft202012Validator(json_schema()).is_valid
    assert check({"name": "a", "base": {"data": {"name": "shapes"}, "optim.lr": 0.1}})
    assert check({"name": "a", "stop": {"asha": {"grace": "10%"}}, "seeds": [0, 1]})
    assert not check({"name": "a", "base": {"data": {"nam": "shapes"}}})
    assert not check({"name": "a", "space": {"grid": {"optim.l": [1]}}})
    assert not check({"name": "a", "space": {"grid": {"optim.lr": 1}}})
    assert not check({"name": "a", "space": {"grid": {"optim.lr": [1]}, "zip": {"seed": [1]}}})


def test_reading_a_sweep_loads_neither_ray_nor_optuna_nor_pyarrow() -> None:
    code = (
        "import sys; from ascl_sweep.spec import load_spec\n"
        f"load_spec({str(FILES[0])!r})\n"
        "assert not {'ray', 'optuna', 'pyarrow', 'scipy', 'torchvision'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SPACES.parent)
