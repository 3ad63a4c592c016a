"""Sweep files: meaning, errors, overrides and the laptop scale."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from ascl.config import RunConfig
from ascl.errors import ConfigError
from ascl.methods import method_names
from ascl_sweep.search.simulate import parse_rule
from ascl_sweep.spec.metrics import METRICS
from ascl_sweep.spec.sections import Stop
from ascl_sweep.spec.sweep import Scale, SweepSpec, json_schema, load_sweep, parse_sweep
from tests.paths import ROOT

SPACES = ROOT / "search_spaces"
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
    return parse_sweep(text, file="s.yaml", overrides=overrides, scale=scale)


def issues(given: Any, *overrides: str, scale: Scale = "full") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(given, *overrides, scale=scale)
    return str(caught.value).splitlines()


def grid(**axes: list[Any]) -> dict[str, Any]:
    return {"grid": {key.replace("__", "."): values for key, values in axes.items()}}


def until(**plan: object) -> dict[str, Any]:
    return {"seeds": {"until": "decided", **plan}}


# -- meaning of a file


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


@pytest.mark.parametrize(
    ("plan", "looks"),
    [
        ({"at_most": 10}, (3, 5, 8, 10)),
        ({"at_most": 8}, (3, 5, 8)),
        ({"at_most": 4}, (3, 4)),
        ({"at_most": 3}, (3,)),
        ({"at_most": 10, "looks": [3, 5, 8]}, (3, 5, 8, 10)),
        ({"at_most": 12, "looks": [6, 12]}, (6, 12)),
    ],
)
def test_the_last_look_of_a_sweep_until_decided_is_at_most(
    plan: dict[str, Any], looks: tuple[int, ...]
) -> None:
    spec = read(until(**plan))
    assert spec.looks == looks
    assert spec.seed_list == tuple(range(plan["at_most"]))
    assert spec.planned_runs == plan["at_most"]


def test_a_list_of_seeds_has_no_looks() -> None:
    spec = read({"seeds": [4, 2]})
    assert spec.seed_list == (4, 2) and spec.looks == ()
    assert read({"seeds": [4, 2]}, "seeds={until: decided, at_most: 4}").looks == (3, 4)


@pytest.mark.parametrize("scale", ["full", "laptop"])
def test_a_run_id_does_not_depend_on_the_form_of_the_seeds(scale: Scale) -> None:
    given = {"space": grid(optim__lr=[0.1, 0.2])}
    listed, looks = (
        read(given | seeds, scale=scale) for seeds in ({"seeds": [0, 1, 2]}, until(at_most=9))
    )
    assert looks.looks == (3, 5, 8, 9)
    for cell in listed.cells():
        ids = [spec.config(cell.changes, seed=2).identity() for spec in (listed, looks)]
        assert ids[0] == ids[1]


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
    again = parse_sweep(spec.text, file=spec.file, overrides=spec.overrides, scale=spec.scale)
    assert again == spec


def test_a_spec_is_frozen() -> None:
    with pytest.raises(ValidationError):
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
    ("stop", "rule", "audit"),
    [
        ({"asha": {}}, "asha:grace=10%,factor=3", 0.05),
        ({"asha": {"grace": "12.5 %", "factor": 4}, "audit": "0%"}, "asha:grace=25,factor=4", 0),
        ({"median": {"grace": 5}, "audit": 0.1}, "median:grace=5", 0.1),
        ({"keep_top": {"share": "12.5%", "at": "20%"}}, "keep_top:share=0.125,at=20%", 0.05),
    ],
)
def test_the_rules_of_stopping(stop: dict[str, Any], rule: str, audit: float) -> None:
    found = read({"stop": stop, "space": grid(optim__lr=[0.1, 0.2])}).stop
    assert found and found.audit == audit
    assert found.scheduler.in_epochs(200) == parse_rule(rule, 200)


def stop(**rule: dict[str, Any]) -> Stop:
    return Stop.model_validate(rule)


def test_a_searched_key_is_required_where_its_condition_holds() -> None:
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
    assert spec.is_active("method.target_temperature", {"method.relabel": "ascl"})
    assert not spec.is_active("method.target_temperature", {"method.relabel": "none"})
    assert not spec.is_active("method.target_temperature", {})


def test_a_table_shows_knn_where_there_is_no_probe() -> None:
    table = {"rows": "optim.lr"}
    for probe, metric in (("cached", "probe_top1"), ("none", "knn_top1")):
        spec = read({"base": {"eval.probe": probe}, "table": table})
        assert spec.table and spec.table.metric == metric


def test_a_sweep_file_takes_every_metric_that_a_report_takes() -> None:
    for name in METRICS:
        spec = read({"table": {"rows": "optim.lr", "metric": name}})
        assert spec.table is not None and spec.table.metric == name


# -- errors


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
    found = issues(text)
    assert found == [
        "s.yaml:1: name: must be 1 to 80 letters, digits, `_`, `-` and `.`, starting with a letter "
        "or digit, got 'my sweep'",
        "s.yaml:2: bas: no such field (did you mean 'base'?)",
        found[2],
        "s.yaml:5: base.optim.lr: must be a number, got 'fast'",
        "s.yaml:8: space.grid.method.num_neighbors: no such field "
        "(did you mean 'method.num_neighbours'?)",
        "s.yaml:9: space.grid.method.target_temperature: must be a number, got '0.2'",
        "s.yaml:9: space.grid.method.target_temperature: must be greater than 0, got -1",
        "s.yaml:10: space.grid.seed: cannot be swept, because every arm runs with the same seeds; "
        "list them in `seeds`",
        "s.yaml:11: seeds: must be a list, got 3; write [3]",
        "s.yaml:12: stop.asha.grace: must be a whole number of epochs or a share of the epochs "
        "such as 10% or 0.1, got 1.5",
        "s.yaml:13: ladder.finalists: must be given",
        "s.yaml:13: ladder.finalist: no such field (did you mean 'finalists'?)",
        "s.yaml:14: resources.gpus_per_worker: must be a fraction of one GPU or a whole number of "
        "GPUs, got 1.5",
        "s.yaml:15: table.rows: no such field (did you mean 'data.name'?), got 'data.nam'",
    ]
    assert found[2].startswith("s.yaml:4: base.data.name: no dataset named 'cifar' (did you mean")


def test_an_error_of_the_space_hides_that_the_baseline_has_no_arm() -> None:
    table = {"rows": "optim.lr", "baseline": {"optim.lr": 0.1}}
    (found,) = issues({"space": grid(optim__rl=[0.1, 0.2]), "table": table})
    assert "space.grid.optim.rl: no such field (did you mean 'optim.lr'?)" in found


@pytest.mark.parametrize("place", ["rows", "columns"])
def test_a_table_is_laid_out_by_keys_that_vary(place: str) -> None:
    space = grid(optim__lr=[0.1, 0.2], data__name=["cifar10", "imagenet"])
    table = {"rows": "optim.lr", place: "method.queue_size"}
    assert read({"space": space, "table": table}).table, "its default follows from the dataset"
    (found,) = issues({"space": space, "table": {"rows": "optim.lr", place: "eval.knn_k"}})
    assert found.endswith(
        f"table.{place}: the sweep does not vary 'eval.knn_k'; it varies data.name, optim.lr"
    )
    assert read({"table": {"rows": "eval.knn_k"}}).table, "a single arm has any row"


def test_a_suggestion_looks_at_the_last_part_of_a_key() -> None:
    (found,) = issues({}, "lr=0.1")
    assert found == "--set lr: no such field (did you mean 'optim.lr'?)"
    (found,) = issues({"space": grid(method__train_size=[100, 200])})
    assert found.endswith("no such field (did you mean 'data.train_size'?)")


def test_a_list_that_is_not_one_is_shown_as_one() -> None:
    assert issues({"seeds": "0,1,2"})[0].endswith("must be a list, got '0,1,2'; write [0, 1, 2]")
    (found,) = issues({"space": {"grid": {"augment.strength": 0.4}}})
    assert found.endswith("augment.strength: must be a list, got 0.4; write [0.4]")


# -- number of runs


@pytest.mark.parametrize(
    ("given", "runs"),
    [
        ({"space": grid(method__num_neighbours=[0, 1, 5])}, 1),
        ({"space": grid(method__num_neighbours=[0, 1, 5], augment__strength=[0.4, 0.8])}, 2),
        ({"space": grid(method__relabel=["none", "ascl"], method__num_neighbours=[1, 5])}, 3),
        (
            {
                "space": grid(method__relabel=["none", "ascl"], method__num_neighbours=[1, 2, 3]),
                "stop": {"asha": {}},
                "ladder": {"finalists": 2, "per": "method.relabel"},
            },
            4 + 1 + 2,
        ),
    ],
)
def test_the_number_of_runs_is_that_of_distinct_configs(given: Any, runs: int) -> None:
    assert read(given).planned_runs == runs


@pytest.mark.parametrize(
    ("values", "ladder", "trials", "arms"),
    [
        ([0.01, 0.02], {"finalists": 1}, 3, 2),  # the base, 0.05, is tried in addition
        ([0.01, 0.02], {"finalists": 2}, 3, 3),
        ([0.01, 0.05], {"finalists": 2}, 2, 2),  # the base is one of the cells
        ([0.01, 0.05], {"finalists": 1}, 2, 2),
        ([0.01, 0.02, 0.05], {"finalists": 1, "per": "method.target_temperature"}, 3, 3),
    ],
)
def test_the_base_counts_as_a_trial_and_as_a_finalist(
    values: list[float], ladder: dict[str, Any], trials: int, arms: int
) -> None:
    space = grid(method__target_temperature=values)
    base = {"method": {"name": "moco", "relabel": "ascl"}}
    spec = read({"base": base, "space": space, "stop": {"asha": {}}, "ladder": ladder})
    assert spec.listed_trials()[0].changes == {}
    assert (spec.num_trials, spec.num_arms) == (trials, arms)
    assert spec.planned_runs == trials + arms * len(spec.seeds)
    before = spec.with_search_seed(0)
    assert not before.tries_base and before.num_trials == len(values)


def test_a_table_of_the_paper_must_be_one() -> None:
    text = "name: s\ntable: {rows: data.name, paper: tau_primes}\n"
    assert read(text).table, "without a list of them, it may be any"
    with pytest.raises(ConfigError) as caught:
        parse_sweep(text, file="s.yaml", paper_tables=["tau_prime", "k"])
    assert str(caught.value) == (
        "s.yaml:2: table.paper: no table of the paper named 'tau_primes' "
        "(did you mean 'tau_prime'?); there are: k, tau_prime"
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
        ({"base": {"seed": 3}}, "base.seed: not allowed in the base; list the seeds"),
        ({"base": {"epochs": 3}, "epochs": 4}, "base.epochs: given twice"),
        ({"base": {"optim.lr": 1, "optim": {"lr": 2}}}, "base.optim.lr: given twice"),
        ({"base": {"data": 5}}, "base.data: must be a mapping of keys, got 5"),
        ({"base": 5}, "base: must be a dictionary, got 5"),
        ({"base": {"batch_size": 100}}, "base.batch_size: must be a multiple of encoder.bn_splits"),
        # axes
        ({"space": grid(data__holdout=[0.1])}, "scored on different images; set it in the base"),
        (
            {"space": grid(data__root=["a", "b"])},
            "the location of the data does not change results",
        ),
        ({"space": grid(runtime__device=["cpu"])}, "request GPUs and CPUs in `resources`"),
        ({"space": grid(runtime__micro_batches=[1, 2])}, "memory use does not change results"),
        ({"space": grid(method=["moco"])}, "space.grid.method: no such field"),
        ({"space": grid(epochs=[2, 4]), **STOP}, "runs of equal length"),
        (search(epochs={"int": [2, 4]}), "runs of equal length"),
        (
            {"space": grid(batch_size=[64, 100])},
            "space.grid.batch_size: must be a multiple of encoder.bn_splits, "
            "got batch_size=100, bn_splits=8; try 96 or 104",
        ),
        (
            {"space": grid(encoder__bn_splits=[8, 7])},
            "space.grid.encoder.bn_splits: batch_size: must be a multiple of encoder.bn_splits, "
            "got batch_size=256, bn_splits=7; try 252 or 259 (with encoder.bn_splits=7)",
        ),
        (
            {"base": {"method.queue_size": 64}, "space": grid(method__name=["moco", "byol"])},
            "space.grid.method.name: method.queue_size: byol has no 'queue_size'; methods that ",
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
            "space.exclude.0: excludes no cell: no cell has a key 'optim.l' (did you mean 'optim.l",
        ),
        (
            {"space": {**grid(optim__lr=[1, 2]), "exclude": [{"optim.lr": 3}]}},
            "space.exclude.0: excludes no cell, got {'optim.lr': 3}; optim.lr is 1, 2",
        ),
        (
            {"space": {**grid(optim__lr=[1, 2]), "exclude": [{"data.name": "cifar10"}]}},
            "space: must have at least one cell, but `exclude` removes all",
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
            "never holds: must be one of paper, code, got ['papr']",
        ),
        (
            search(
                optim__lr={"uniform": [1, 2], "when": {"optim.momentum": 0.9}},
                optim__momentum={"uniform": [0.1, 0.9]},
            ),
            "a condition on a searched key needs a choice or an int, got uniform",
        ),
        # the rest
        ({**search(optim__lr={"uniform": [1, 2]}), "budget": {}}, "budget.trials: must be given"),
        ({"seeds": [1, 1]}, "seeds: must list at least one seed, and each seed once, got [1, 1]"),
        ({"seeds": []}, "seeds: must list at least one seed"),
        (
            {"seeds": [0, 2**31 - 1]},
            "seeds: must not list 2147483647, which is reserved for searches; use another seed",
        ),
        ({"seeds": [-1]}, "seeds.0: must be greater than or equal to 0, got -1"),
        (until(at_most=2), "seeds.at_most: must be greater than or equal to 3, got 2"),
        ({"seeds": {"until": "decided"}}, "seeds.at_most: must be given"),
        (
            {"seeds": {"until": "bored", "at_most": 5}},
            "seeds.until: must be 'decided', got 'bored'",
        ),
        (
            until(at_most=8, looks=[5, 3]),
            "seeds.looks: must be increasing numbers of seeds from 3 on, got [5, 3]; "
            "write [3, 5, 8]",
        ),
        (until(at_most=8, looks=[2, 5]), "seeds.looks: must be increasing numbers of seeds from 3"),
        (
            until(at_most=8, looks=[3, 9]),
            "seeds: looks must not exceed at_most (got 9 and 8); raise at_most or remove the look",
        ),
        (until(at_most=8, look=[3]), "seeds.look: no such field (did you mean 'looks'?)"),
        (
            {**until(at_most=8), "table": {"rows": "optim.lr", "metric": "loss"}},
            "seeds: until: decided needs a metric that is known when a run ends (got 'loss'); "
            "set table.metric to one of knn_top1, probe_top1",
        ),
        ({"ladder": {"finalists": 1}}, "ladder: needs a search, but this sweep"),
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
            "space.grid.data.name: eval.knn_every: must be 1 with `stop`, which needs the kNN "
            "accuracy of every epoch, got 10; set it to 1 in the base (with data.name='imagenet')",
        ),
        ({"stop": {"asha": {"grace": 9}}, "epochs": 9}, "stop.asha.grace: must be below the"),
        (
            {"stop": {"asha": {}, "median": {}}},
            "stop: must have exactly one of asha, keep_top",
        ),
        ({"stop": {"asha": {"factor": 1}}}, "stop.asha.factor: must be greater than 1, got 1"),
        ({"stop": {"keep_top": {"share": "0%"}}}, "stop.keep_top.share: must be above 0"),
        ({"stop": {"asha": {}, "audit": "200%"}}, "stop.audit: must be a share from 0 to below 1"),
        (
            {"resources": {"workers": 2}, "space": grid(method__name=["moco", "byol"])},
            "space.grid.method.name: encoder.bn_splits: must be a multiple of resources.workers, "
            "got encoder.bn_splits=1, resources.workers=2; try 2 (with method.name='byol')",
        ),
        (
            {"resources": {"workers": 2}, "base": {"runtime.micro_batches": 8}},
            "base.runtime.micro_batches: encoder.bn_splits must be a multiple of "
            "runtime.micro_batches on each worker, because BN statistics are computed within a "
            "micro-batch, got encoder.bn_splits=8, runtime.micro_batches=8, workers=2; "
            "try runtime.micro_batches=4, or another encoder.bn_splits",
        ),
        (
            {"base": {"eval.probe": "none"}, "table": {"rows": "preset", "metric": "probe_top1"}},
            "table.metric: probe_top1 needs the linear probe, got eval.probe=none",
        ),
        ({"table": {"rows": "preset", "columns": "preset"}}, "must differ from table.rows, got"),
        ({"table": {"rows": "preset", "metric": "top1"}}, "table.metric: no metric named"),
        (
            {"table": {"rows": "preset", "baseline": {"optim.lr": 5}}},
            "table.baseline: must match one of the arms, but no arm has {'optim.lr': 5}",
        ),
        ("[1]", "a sweep must be a mapping of keys, got [1]"),
        ("a: [", "s.yaml:1: not YAML"),
        ("name: a\nname: b\n", "s.yaml:2: name: given twice, first on line 1"),
        ("", "name: must be given"),
    ],
)
def test_an_error_names_location_rule_value_and_fix(given: Any, sentence: str) -> None:
    found = issues(given)
    assert any(sentence in issue for issue in found), found
    assert len(found) == 1, found


def test_conditions_in_circles_are_all_named() -> None:
    found = issues(
        search(
            preset={"choice": ["paper"], "when": {"batch_size": 64}},
            batch_size={"choice": [64], "when": {"preset": "paper"}},
        )
    )
    assert len(found) == 2
    assert (
        "space.optuna.domains.preset.when: conditions must not depend on each other in a circle"
        in found[1]
    )


def test_an_error_of_many_cells_is_reported_once() -> None:
    space = grid(optim__lr=[0.1, "x"], optim__momentum=[0.1, 0.2], batch_size=[64, 128])
    assert issues({"space": space}) == ["s.yaml:7: space.grid.optim.lr: must be a number, got 'x'"]


def test_of_very_many_cells_the_ends_are_proven() -> None:
    lr = [round(0.001 * n, 3) for n in range(1, 101)]
    space = grid(optim__lr=lr, optim__momentum=[n / 100 for n in range(99)])
    assert len(read({"space": space}).cells()) == 9900
    space["grid"]["optim.momentum"][-1] = 1.0
    assert "optim.momentum: must be less than 1, got 1.0" in issues({"space": space})[0]


def test_a_base_need_not_run_if_no_cell_is_the_base() -> None:
    assert len(read({"base": {"batch_size": 100}, "space": grid(batch_size=[64, 96])}).cells()) == 2


def test_a_missing_file_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load_sweep(tmp_path / "none.yaml")


# -- overrides


def test_overrides_change_the_sweep_or_its_base() -> None:
    spec = read(
        SEARCH,
        *("seeds=[0, 1, 2]", "epochs=50", "optim.lr=0.1", "base.optim.momentum=0.8"),
        *("stop.asha.factor=4", "budget.hours=2", "name=mine", "ladder.finalists=3"),
        "space.optuna.domains.method.num_neighbours.int=[2, 4]",
    )
    assert (spec.seeds, spec.epochs, spec.name) == ((0, 1, 2), 50, "mine")
    assert spec.stop == stop(asha={"grace": 0.1, "factor": 4})
    assert (spec.budget.trials, spec.budget.hours) == (8, 2)
    assert spec.domains["method.num_neighbours"].high == 4
    config = spec.config({}, seed=0)
    assert (config.optim.lr, config.optim.momentum, config.epochs) == (0.1, 0.8, 50)


def test_an_override_can_remove_a_section() -> None:
    spec = read(SEARCH, "stop=null", "ladder=null")
    assert spec.stop is None
    assert spec.ladder is None


@pytest.mark.parametrize("key", [key for key in SweepSpec.model_fields if key != "name"])
def test_a_sweep_key_without_a_value_is_refused(key: str) -> None:
    assert issues(f"name: s\n{key}:\n") == [
        f"s.yaml:2: {key}: no value given; write a value or remove the line"
    ]


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"space": {"grid": None}}, "space.grid"),
        ({"space": {"union": [{"grid": None}]}}, "space.union.0.grid"),
        ({"stop": {"asha": None}}, "stop.asha"),
        ({"budget": {"trials": None}}, "budget.trials"),
        ({"table": {"rows": "optim.lr", "columns": None}}, "table.columns"),
        ({"space": {"grid": None}, "table": {"rows": "optim.lr", "baseline": {"seed": 9}}}, "grid"),
    ],
)
def test_a_key_of_a_section_without_a_value_is_one_error(given: Any, key: str) -> None:
    (found,) = issues(given)
    assert f"{key}: no value given; write a value or remove the line" in found


def test_an_override_without_a_value_is_refused_and_null_is_the_default() -> None:
    assert issues({"epochs": 4}, "epochs=") == [
        "--set epochs: no value given; write a value, or --set epochs=null for the default"
    ]
    assert read({"epochs": 4}, "epochs=null").epochs is None
    assert read("name: s\nepochs:\n", "epochs=4").epochs == 4


def test_a_config_key_whose_default_is_null_may_be_null() -> None:
    assert read({"base": {"data": {"train_size": None}}}).full_epochs == 200
    assert (
        read({"base": {"data.train_size": 5000}}, "data.train_size=").base_values["data.train_size"]
        is None
    )
    assert read({"space": grid(data__train_size=[None, 5000])}).planned_runs == 2
    assert issues({"base": {"epochs": None}}) == [
        "s.yaml:2: base.epochs: must be an integer, got no value"
    ]


def test_an_override_of_a_sweeps_section_replaces_what_it_names() -> None:
    assert read(SEARCH, "stop={median: {grace: 3}}").stop == stop(median={"grace": 3})


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
    assert issues({"resources": {"cases": [{"when": {"data.nam": "x"}, "workers": 2}]}}) == [
        "s.yaml:5: resources.cases.0.when.data.nam: no such field (did you mean 'data.name'?)"
    ]
    three = {"when": {"data.name": "imagenet"}, "workers": 3}
    (issue,) = issues({**CASES, "resources": {"cases": [three]}})
    assert "got encoder.bn_splits=8, resources.workers=3; try 9" in issue


def test_an_axis_can_be_changed_or_added() -> None:
    sweep = {"space": grid(optim__lr=[0.1])}
    spec = read(sweep, "space.grid.optim.lr=[0.2]", "space.grid.batch_size=[64, 128]")
    assert [dict(c.changes) for c in spec.cells()] == [
        {"optim.lr": 0.2, "batch_size": 64},
        {"optim.lr": 0.2, "batch_size": 128},
    ]


def test_the_sweeps_epochs_override_the_bases() -> None:
    assert read({"base": {"epochs": 100}}, "epochs=5").config({}, seed=0).epochs == 5


def test_an_override_without_effect_names_the_fix() -> None:
    assert issues({"space": grid(optim__lr=[0.1, 0.2])}, "optim.lr=0.3") == [
        "--set optim.lr: has no effect because the sweep varies it; "
        "use --set space.grid.optim.lr=… instead"
    ]
    one_factor = read({"space": {"one_factor": {"optim.lr": [0.1, 0.2]}}}, "optim.lr=0.3")
    assert one_factor.config({}, seed=0).optim.lr == 0.3


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("optim.lr=fast", "--set optim.lr: must be a number, got 'fast'"),
        ("optim.lrr=1", "--set optim.lrr: no such field (did you mean 'lr'?)"),
        ("seed=3", "--set seed: not allowed in the base; list the seeds"),
        ("data=5", "--set data: must be a mapping of keys, got 5"),
        ("stop.asha.factor=0", "--set stop.asha.factor: must be greater than 1, got 0"),
        ("stop.median.grace=2", "--set stop: must have exactly one of asha, keep_top"),
        ("seeds=[a]", "--set seeds.0: must be an integer, got 'a'"),
    ],
)
def test_an_error_in_a_command_line_override_does_not_name_the_file(
    override: str, sentence: str
) -> None:
    found = issues(SEARCH, override)
    assert len(found) == 1
    assert found[0].startswith(sentence)


def test_each_malformed_override_is_reported() -> None:
    assert issues({}, "lr", "epochs=3", "=") == [
        "an override must look like optim.lr=0.03, got 'lr'",
        "an override must look like optim.lr=0.03, got '='",
    ]


# -- laptop


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_search_space_runs_on_a_laptop(path: Path) -> None:
    spec = load_sweep(path, scale="laptop")
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
    assert spec.stop == stop(median={"grace": 1})


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
    assert spec.is_active("optim.lr", {})


def test_what_is_wrong_stays_wrong_on_a_laptop() -> None:
    found = issues(
        {"base": {"data.name": "cifr", "optim": 3}, "space": grid(encoder__name=["resnet19"])},
        scale="laptop",
    )
    assert len(found) == 3


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(ConfigError, match="no scale named 'phone'; there are: full, laptop"):
        parse_sweep("name: a", file="f", scale="phone")  # type: ignore[arg-type]


# -- no input ends in a traceback


def never_a_traceback(text: str, scale: Scale = "full") -> None:
    try:
        parse_sweep(text, file="f.yaml", overrides=(), scale=scale)
    except ConfigError as config_error:
        assert all(issue.message for issue in config_error.issues)


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
sections = st.sampled_from(list(SweepSpec.model_fields))
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
@example(["[=1"], "full")
@example(["\0=1", "budget.\0=1"], "full")
def test_no_override_ends_in_a_traceback(overrides: list[str], scale: Scale) -> None:
    try:
        parse_sweep(SEARCH, file="f.yaml", overrides=overrides, scale=scale)
    except ConfigError as config_error:
        assert all(issue.message for issue in config_error.issues)


# -- the search spaces, and the schema they name


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_search_space_is_valid_and_tells_its_story(path: Path) -> None:
    assert load_sweep(path).name == path.stem
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
    assert check({"name": "a", **until(at_most=9, looks=[4])})
    assert not check({"name": "a", **until(at_most=9, look=[4])})
    assert not check({"name": "a", **until(at_most=2)})
    assert not check({"name": "a", "base": {"data": {"nam": "shapes"}}})
    assert not check({"name": "a", "space": {"grid": {"optim.l": [1]}}})
    assert not check({"name": "a", "space": {"grid": {"optim.lr": 1}}})
    assert not check({"name": "a", "space": {"grid": {"optim.lr": [1]}, "zip": {"seed": [1]}}})


def test_reading_a_sweep_loads_neither_ray_nor_optuna_nor_pyarrow() -> None:
    code = (
        "import sys; from ascl_sweep.spec.sweep import load_sweep\n"
        f"load_sweep({str(FILES[0])!r})\n"
        "assert not {'ray', 'optuna', 'pyarrow', 'scipy', 'torchvision'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SPACES.parent)
