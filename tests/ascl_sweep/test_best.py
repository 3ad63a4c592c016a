"""The best arm: by the holdout where there was a search, else by the mean over seeds."""

from dataclasses import replace
from pathlib import Path

import pytest

from ascl.config import load_config
from ascl_sweep.agenda import config_values
from ascl_sweep.best import best_arms, export_yaml
from ascl_sweep.ledger import Ledger, RunRow, Scalar
from ascl_sweep.spec import spec_of
from tests.ascl_sweep.test_agenda import SEARCH
from tests.conftest import tiny

SPEC = spec_of(SEARCH, file="it.yaml")


def row(temperature: float, seed: int, score: float, phase: str, state: str = "done") -> RunRow:
    changes = {"method.target_temperature": temperature}
    config = SPEC.config(changes, seed=seed, phase=phase)  # type: ignore[arg-type]
    return RunRow(
        config.identity(), ("it",), config_values(config), phase, "full", state, knn_last_top1=score
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


def test_how_a_run_fitted_in_memory_makes_no_other_arm() -> None:
    rows = [row(0.02, seed, 0.5, "final") for seed in (0, 1)]
    rows[1] = replace(rows[1], config={**rows[1].config, "runtime.micro_batches": 2})
    (best,) = best_arms(rows, "it", "knn_top1")
    assert (best.n, best.differs) == (2, {})


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of knn_top1, probe_top1, got 'loss'"):
        best_arms([], "it", "loss")


def test_the_winner_can_be_trained_on_all_of_train(tmp_path: Path) -> None:
    best = best_arms([row(0.02, 0, 0.5, "search")], "it", "knn_top1")[0]
    export_yaml(best, tmp_path / "best.yaml")
    config = load_config(tmp_path / "best.yaml")
    changes = {"method.target_temperature": 0.02}
    assert config.identity() == SPEC.config(changes, seed=0, phase="final").identity()


def test_every_system_has_a_config_that_the_ledger_can_hold_and_best_can_give_back(
    system: str, tmp_path: Path
) -> None:
    config = tiny(system, data={"holdout": 0.0})
    values = config_values(config)
    assert all(isinstance(value, Scalar) for value in values.values())
    done = RunRow(config.identity(), ("it",), values, "final", "full", "done", probe_top1=0.5)
    with Ledger(str(tmp_path / "store")).writer() as writer:
        writer.put_run(done)
    found = Ledger(str(tmp_path / "store")).runs().values()
    export_yaml(best_arms(found, "it", "probe_top1")[0], tmp_path / "best.yaml")
    assert load_config(tmp_path / "best.yaml").identity() == config.identity()
