"""Optuna's part of a search: what to try next, given what the ledger knows.

The study lives in memory and is made anew from recorded runs at each start; it is never the state.
A run that was stopped early is told as pruned at its epoch: told as complete, its early value
would mislead the sampler.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from optuna.trial import FrozenTrial, TrialState, create_trial

from ascl_sweep.agenda import Outcome
from ascl_sweep.domains import Domain
from ascl_sweep.spec import SweepSpec

DIGITS = 6  # significant ones of what is drawn: enough to search by, few enough to read
EXACT = 12  # of what must stay on a grid: 0.6000000000000001 is 0.6


class Proposals:
    """A study over a sweep's domains."""

    def __init__(self, spec: SweepSpec, known: Sequence[Outcome]) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._spec = spec
        self._asked: list[optuna.Trial] = []
        # After a restart a sampler with the same seed would propose its first points again.
        self._study = optuna.create_study(direction="maximize", sampler=sampler(spec, len(known)))
        for outcome in known:
            self.add(outcome)

    def add(self, outcome: Outcome) -> None:
        """Take in a run that was not asked for here; not if the domains were narrowed since."""
        if fits(self._spec, outcome):
            self._study.add_trial(frozen(self._spec, outcome))

    def ask(self) -> tuple[int, dict[str, Any]]:
        """A ticket, and the values of the searched keys."""
        trial = self._study.ask()
        changes: dict[str, Any] = {}
        for key, domain in self._spec.domains.items():
            if self._spec.wanted(key, changes):
                changes[key] = tidy(draw(trial, key, domain), domain)
        self._asked.append(trial)
        return len(self._asked) - 1, changes

    def tell(self, ticket: int, outcome: Outcome) -> None:
        """What came of an answer to `ask`."""
        trial, curve = self._asked[ticket], outcome.curve
        for epoch, value in sorted(curve.items()):
            trial.report(value, epoch)
        state = state_of(outcome)
        last = curve[max(curve)] if state == TrialState.COMPLETE else None
        self._study.tell(trial, last, state=state)


def export(spec: SweepSpec, known: Sequence[Outcome], path: Path) -> None:
    """Write the study to a new sqlite file, for optuna-dashboard."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    try:
        study = optuna.create_study(storage=storage, study_name=spec.name, direction="maximize")
        study.add_trials([frozen(spec, outcome) for outcome in known if fits(spec, outcome)])
    finally:
        storage.engine.dispose()


def sampler(spec: SweepSpec, seed: int) -> optuna.samplers.BaseSampler:
    assert spec.space.optuna is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        match spec.space.optuna.sampler:
            case "tpe":
                # The constant liar keeps runs that train side by side from being alike; groups
                # are for keys that only some configurations have.
                conditional = any(domain.when for domain in spec.domains.values())
                return optuna.samplers.TPESampler(
                    multivariate=True, group=conditional, constant_liar=True, seed=seed
                )
            case "gp":
                return optuna.samplers.GPSampler(seed=seed)
            case "random":
                return optuna.samplers.RandomSampler(seed=seed)


def distribution(domain: Domain) -> BaseDistribution:
    match domain.kind:
        case "choice":
            return CategoricalDistribution(domain.choices)
        case "int":
            return IntDistribution(
                domain.low, domain.high, log=domain.log, step=int(domain.step or 1)
            )
        case "uniform":
            return FloatDistribution(domain.low, domain.high, step=domain.step)
        case "log_uniform":
            return FloatDistribution(domain.low, domain.high, log=True)


def distribution_json(domain: Domain) -> str:
    """As Optuna writes it down."""
    return str(distribution_to_json(distribution(domain)))


def draw(trial: optuna.Trial, key: str, domain: Domain) -> Any:
    """The sampler's choice."""
    match domain.kind:
        case "choice":
            return trial.suggest_categorical(key, domain.choices)
        case "int":
            step = int(domain.step or 1)
            return trial.suggest_int(key, domain.low, domain.high, step=step, log=domain.log)
        case "uniform":
            return trial.suggest_float(key, domain.low, domain.high, step=domain.step)
        case "log_uniform":
            return trial.suggest_float(key, domain.low, domain.high, log=True)


def tidy(value: Any, domain: Domain) -> Any:
    """A drawn number without its last digits, still inside its bounds."""
    if not isinstance(value, float) or domain.kind == "choice":
        return value
    digits = DIGITS if domain.step is None else EXACT
    return min(max(float(f"{value:.{digits}g}"), domain.low), domain.high)


def fits(spec: SweepSpec, outcome: Outcome) -> bool:
    """Whether a run could be proposed by the domains as they are now."""
    try:
        frozen(spec, outcome)
    except ValueError:  # how Optuna refuses a value outside its distribution
        return False
    return True


def frozen(spec: SweepSpec, outcome: Outcome) -> FrozenTrial:
    """A recorded run as Optuna would remember it."""
    params: dict[str, Any] = {}
    for key in spec.domains:
        if key in outcome.changes and spec.wanted(key, params):
            params[key] = outcome.changes[key]
    state, curve = state_of(outcome), outcome.curve
    return create_trial(
        params=params,
        distributions={key: distribution(spec.domains[key]) for key in params},
        intermediate_values=dict(curve),
        value=curve[max(curve)] if state == TrialState.COMPLETE else None,
        state=state,
    )


def state_of(outcome: Outcome) -> TrialState:
    if outcome.state == "done" and outcome.curve:
        return TrialState.COMPLETE
    if outcome.state == "stopped" and outcome.curve:
        return TrialState.PRUNED
    return TrialState.FAIL
