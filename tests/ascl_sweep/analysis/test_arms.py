"""Arms: equal grouping in `best`, reports and claims; ranking and export."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from ascl.config import load_config
from ascl_sweep.analysis.arms import best_arms, export_yaml, group_into_arms
from ascl_sweep.analysis.table import build_table
from ascl_sweep.contracts import RunRow, Scalar
from ascl_sweep.reproduction.judge import judge_claims
from ascl_sweep.spec.sweep import parse_sweep
from ascl_sweep.store.store import Store
from tests import stores
from tests.ascl_sweep.search.test_study import SEARCH
from tests.conftest import tiny

SPEC = parse_sweep(SEARCH, file="it.yaml")


def row(temperature: float, seed: int, score: float, phase: str, state: str = "done") -> RunRow:
    changes = {"method.target_temperature": temperature}
    config = SPEC.config(changes, seed=seed, phase=phase)  # type: ignore[arg-type]
    return RunRow(
        config.identity(), ("it",), config.flat_values(), phase, "full", state, knn_last_top1=score
    )


def test_a_search_is_won_on_the_holdout_and_not_on_test() -> None:
    rows = [row(0.02, 0, 0.5, "search"), row(0.1, 0, 0.4, "search")]
    rows += [row(0.02, 0, 0.1, "final"), row(0.1, 0, 0.9, "final")]
    best = best_arms(rows, "it", "knn_top1")[0]
    assert best.differs == {"method.target_temperature": 0.02}
    assert (best.mean, best.sd, best.n, best.scored) == (0.5, None, 1, "holdout")


def test_elsewhere_the_mean_over_seeds_decides() -> None:
    rows = [row(0.02, s, v, "final") for s, v in enumerate((0.9, 0.1))]
    rows += [row(0.1, s, v, "final") for s, v in enumerate((0.6, 0.6))]
    rows.append(row(0.05, 0, 1.0, "final", state="stopped"))
    best = best_arms(rows, "it", "knn_top1")[0]
    assert best.differs == {"method.target_temperature": 0.1}
    assert (best.mean, best.n, best.scored) == (pytest.approx(0.6), 2, "test")


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_not_finite_does_not_rank_an_arm(score: float) -> None:
    rows = [row(0.02, s, v, "final") for s, v in enumerate((0.9, 0.8, score))]
    rows += [row(0.1, s, v, "final") for s, v in enumerate((0.6, 0.6, 0.6))]
    rows += [row(0.05, s, score, "final") for s in range(3)]
    ranked = best_arms(rows, "it", "knn_top1")
    assert [(arm.mean, arm.n) for arm in ranked] == [(0.6, 3), (pytest.approx(0.85), 2)]


def test_an_arm_that_was_decided_with_few_seeds_may_be_the_best() -> None:
    """A sweep that runs until decided adds no seeds to a clear winner."""
    rows = [row(0.02, s, 0.9, "final") for s in range(3)]
    rows += [row(0.1, s, 0.6, "final") for s in range(5)]
    rows += [row(0.05, s, 1.0, "final") for s in range(2)]
    ranked = best_arms(rows, "it", "knn_top1", looks=(3, 5))
    assert [arm.n for arm in ranked] == [3, 5, 2]
    assert [arm.n for arm in best_arms(rows, "it", "knn_top1")] == [5, 3, 2]


@pytest.mark.parametrize(
    "changes",
    [
        {"runtime.device": "cpu"},
        {"runtime.micro_batches": 2},
        {"data.root": "/elsewhere"},
        {"preset": "code"},
    ],
)
def test_what_cannot_change_a_number_makes_no_other_arm_anywhere(
    changes: dict[str, Scalar],
) -> None:
    """MoCo and ASCL with two seeds each, of which one has another value of the key."""
    sides = [(stores.MOCO, [88.0, 88.1]), (stores.ASCL, [90.0, 90.2])]
    rows = [row for values, scores in sides for row in stores.arm("neighbours", values, scores)]
    rows = [
        replace(row, config={**row.config, **changes}) if row.config["seed"] == 1 else row
        for row in stores.in_order(rows)
    ]
    assert [len(group.rows) for group in group_into_arms(rows)] == [2, 2]
    assert [arm.n for arm in best_arms(rows, "neighbours", "probe_top1")] == [2, 2]
    table = build_table(stores.sweep("neighbours", (stores.RELABEL,)), rows)
    assert table is not None and [arm.n for arm in table.arms] == [2, 2]
    found = judge_claims(rows, {"neighbours": 0.05}, {}, region=0.5)
    (claim,) = (f for f in found if f.claim.text == "ASCL is better than MoCo at every K")
    assert [duel.result.n for duel in claim.duels] == [2]


def test_an_idle_key_makes_no_other_arm_anywhere() -> None:
    rows = stores.arm("it", stores.MOCO, [88.0, 88.1])
    rows[1] = replace(rows[1], config={**rows[1].config, stores.NEIGHBOURS: 10})
    assert len(group_into_arms(rows)) == len(best_arms(rows, "it", "probe_top1")) == 1


def test_search_and_final_runs_of_one_configuration_are_one_arm_for_best_only() -> None:
    rows = [row(0.02, 0, 0.5, "search"), row(0.02, 0, 0.6, "final")]
    assert len(group_into_arms(rows)) == 2
    assert len(group_into_arms(rows, ignore=("data.holdout",))) == 1


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of knn_top1, probe_top1, got 'loss'"):
        best_arms([], "it", "loss")


def test_the_winner_can_be_trained_on_all_of_train(tmp_path: Path) -> None:
    best = best_arms([row(0.02, 0, 0.5, "search")], "it", "knn_top1")[0]
    export_yaml(best, tmp_path / "best.yaml")
    config = load_config(tmp_path / "best.yaml")
    changes = {"method.target_temperature": 0.02}
    assert config.identity() == SPEC.config(changes, seed=0, phase="final").identity()


def test_every_system_has_a_config_that_the_store_keeps_and_best_returns(
    system: str, tmp_path: Path
) -> None:
    config = tiny(system, data={"holdout": 0.0})
    values = config.flat_values()
    assert all(isinstance(value, Scalar) for value in values.values())
    done = RunRow(config.identity(), ("it",), values, "final", "full", "done", probe_top1=0.5)
    with Store(str(tmp_path / "store")).writer() as writer:
        writer.put_run(done)
    found = Store(str(tmp_path / "store")).runs().values()
    export_yaml(best_arms(found, "it", "probe_top1")[0], tmp_path / "best.yaml")
    assert load_config(tmp_path / "best.yaml").identity() == config.identity()
