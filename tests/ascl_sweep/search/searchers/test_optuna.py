"""The Optuna searcher: it is rebuilt from recorded runs, and beats random search."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from scipy.interpolate import RegularGridInterpolator

from ascl_sweep.contracts import RunState
from ascl_sweep.search.searchers.base import Outcome
from ascl_sweep.search.searchers.optuna import OptunaSearcher, export, fits, frozen_trial
from ascl_sweep.spec.sweep import SweepSpec, parse_sweep

TEXT = """
name: it
base: {data: {name: shapes, train_size: 100}, batch_size: 16, encoder: {bn_splits: 2},
       method: {queue_size: 64}, eval: {probe: none, knn_k: 5}}
budget: {trials: 40}
space:
  optuna:
    sampler: SAMPLER
    domains:
      method.relabel: {choice: [none, ascl]}
      method.target_temperature: {log_uniform: [0.01, 0.2], when: {method.relabel: ascl}}
      method.num_neighbours: {int: [1, 9], step: 2, when: {method.relabel: ascl}}
      augment.strength: {uniform: [0.2, 1.0], step: 0.2}
"""


def spec(sampler: str = "tpe") -> SweepSpec:
    return parse_sweep(TEXT.replace("SAMPLER", sampler), file="it.yaml")


def score(changes: Mapping[str, Any]) -> float:
    """A surface like the paper's ablations: ASCL helps near τ' = 0.05 and with small K."""
    value = 0.80 - 0.1 * (changes["augment.strength"] - 0.8) ** 2
    if changes["method.relabel"] == "ascl":
        away = math.log(changes["method.target_temperature"] / 0.05)
        value += 0.06 * math.exp(-(away**2)) - 0.003 * changes["method.num_neighbours"]
    return value


def search(sampler: str, trials: int, known: tuple[Outcome, ...] = ()) -> list[Outcome]:
    the_spec = spec(sampler)
    searcher = OptunaSearcher(the_spec, known)
    outcomes = list(known)
    for _ in range(trials):
        proposal = searcher.ask()
        value = score(proposal.changes)
        outcome = Outcome(proposal.changes, {1: value / 2, 2: value}, RunState.DONE)
        searcher.tell(proposal.ticket, outcome)
        outcomes.append(outcome)
    return outcomes


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random"])
def test_every_proposal_is_inside_its_domains_and_a_valid_run(sampler: str) -> None:
    the_spec = spec(sampler)
    for outcome in search(sampler, 12):
        changes = outcome.changes
        ascl = changes["method.relabel"] == "ascl"
        assert ("method.target_temperature" in changes) == ascl
        if ascl:
            assert 0.01 <= changes["method.target_temperature"] <= 0.2
            assert changes["method.num_neighbours"] in (1, 3, 5, 7, 9)
        assert changes["augment.strength"] in (0.2, 0.4, 0.6, 0.8, 1.0)
        assert the_spec.config(changes, seed=0, phase="search").identity()


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random"])
def test_a_search_is_the_same_each_time(sampler: str) -> None:
    assert search(sampler, 8) == search(sampler, 8)


def test_after_a_restart_the_first_points_are_not_proposed_again() -> None:
    first = search("random", 6)
    again = search("random", 6, tuple(first))
    assert [o.changes for o in again[6:]] != [o.changes for o in first]


RECORDED = """
name: it
base: {data: {name: shapes, train_size: 100}, batch_size: 16, encoder: {bn_splits: 2},
       method: {relabel: ascl, queue_size: 64}, eval: {probe: none, knn_k: 5}}
budget: {trials: 30}
space:
  optuna:
    sampler: SAMPLER
    domains:
      optim.lr: {log_uniform: [0.003, 0.3]}
      method.target_temperature: {log_uniform: [0.01, 0.2]}
      augment.strength: {uniform: [0.2, 1.0]}
"""


def recorded_surface() -> Callable[[Mapping[str, Any]], float]:
    """kNN of 75 real runs over three keys, interpolated linearly."""
    record = json.loads((Path(__file__).parent / "surface.json").read_text())
    lr, temperature, strength = record["axes"].values()
    surface = RegularGridInterpolator(
        (np.log(lr), np.log(temperature), strength), np.array(record["knn_top1"])
    )

    def value(changes: Mapping[str, Any]) -> float:
        logs = (math.log(changes[k]) for k in ("optim.lr", "method.target_temperature"))
        return float(surface([*logs, changes["augment.strength"]])[0])

    return value


def test_optuna_beats_random_on_a_recorded_surface() -> None:
    surface = recorded_surface()
    won, starts, trials = 0, 12, 30
    means: dict[str, list[float]] = {"tpe": [], "random": []}
    for start in range(starts):
        best = {}
        for sampler, found in means.items():
            the_spec = parse_sweep(RECORDED.replace("SAMPLER", sampler), file="it.yaml")
            # Each start has a different number of known runs, and so a different seed.
            before = OptunaSearcher(
                parse_sweep(RECORDED.replace("SAMPLER", "random"), file="it.yaml"), ()
            )
            drawn = [before.ask().changes for _ in range(start)]
            known = [Outcome(changes, {1: surface(changes)}, RunState.DONE) for changes in drawn]
            searcher = OptunaSearcher(the_spec, known)
            values = []
            for _ in range(trials):
                proposal = searcher.ask()
                values.append(surface(proposal.changes))
                outcome = Outcome(proposal.changes, {1: values[-1]}, RunState.DONE)
                searcher.tell(proposal.ticket, outcome)
            best[sampler] = max(values)
            found.append(sum(values[trials // 2 :]) / (trials - trials // 2))
        won += best["tpe"] > best["random"]
    # The mean of the later half measures what was learned; the best value depends on luck.
    assert all(tpe > chance for tpe, chance in zip(*means.values(), strict=True)), means
    assert won >= 0.6 * starts, won


def test_a_stopped_run_is_pruned_at_its_epoch_and_not_complete() -> None:
    changes = {"method.relabel": "none", "augment.strength": 0.2}
    trial = frozen_trial(spec(), Outcome(changes, {1: 0.2, 2: 0.3}, RunState.STOPPED))
    assert trial.state == optuna.trial.TrialState.PRUNED
    assert trial.intermediate_values == {1: 0.2, 2: 0.3}
    assert (
        frozen_trial(spec(), Outcome(changes, {}, RunState.FAILED)).state
        == optuna.trial.TrialState.FAIL
    )
    done = frozen_trial(spec(), Outcome(changes, {1: 0.2, 2: 0.3}, RunState.DONE))
    assert done.state == optuna.trial.TrialState.COMPLETE and done.value == 0.3


def test_an_export_is_a_study_that_optuna_opens(tmp_path: Path) -> None:
    outcomes = search("random", 5)
    export(spec(), outcomes, tmp_path / "study.db")
    study = optuna.load_study(study_name="it", storage=f"sqlite:///{tmp_path / 'study.db'}")
    assert [t.params for t in study.trials] == [dict(o.changes) for o in outcomes]
    assert study.best_value == max(o.curve[2] for o in outcomes)


def test_runs_outside_narrowed_domains_are_excluded() -> None:
    inside = Outcome({"method.relabel": "none", "augment.strength": 0.2}, {1: 0.5}, RunState.DONE)
    outside = Outcome({"method.relabel": "none", "augment.strength": 3.0}, {1: 0.5}, RunState.DONE)
    other = Outcome({"method.relabel": "hard", "augment.strength": 0.2}, {1: 0.5}, RunState.DONE)
    assert [fits(spec(), outcome) for outcome in (inside, outside, other)] == [True, False, False]
    OptunaSearcher(spec(), [inside, outside, other]).ask()


def test_values_on_a_fine_grid_stay_on_it() -> None:
    text = TEXT.replace("SAMPLER", "random").replace("step: 0.2}", "step: 0.00123456789}")
    fine = parse_sweep(text, file="it.yaml")
    searcher = OptunaSearcher(fine, ())
    for _ in range(5):
        assert fits(fine, Outcome(searcher.ask().changes, {1: 0.5}, RunState.DONE))
