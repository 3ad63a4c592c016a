"""Searcher that draws configs with Optuna.

The Optuna study lives in memory and is rebuilt from the store's runs at each start. A run that was
stopped early is reported as pruned: if it were reported as complete, its early value would mislead
the sampler.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ascl_sweep.contracts import RunState
from ascl_sweep.search.searchers.base import Outcome, Proposal
from ascl_sweep.spec.domains import Domain, DomainSpace

if TYPE_CHECKING:  # Optuna takes a second to import, and parsing a sweep does not need it
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, TrialState

    from ascl_sweep.spec.sweep import SweepSpec

DIGITS = 6  # significant digits of drawn values, to keep them readable
EXACT = 12  # significant digits of values on a `step` grid: 0.6000000000000001 is 0.6


class OptunaSpace(DomainSpace):
    """Search with Optuna: draw configs from domains. Requires `budget.trials`."""

    sampler: Literal["tpe", "gp", "random"] = "tpe"
    """Optuna sampler: tpe (Parzen estimator), gp (Gaussian process) or random. Default: tpe."""


class OptunaSearcher:
    """An Optuna study over the domains of a sweep."""

    adaptive = True

    def __init__(self, spec: "SweepSpec", known: Sequence[Outcome]) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._spec = spec
        self._asked: list[optuna.Trial] = []
        # With a fixed seed, a restarted sampler would propose its first points again.
        sampler = build_sampler(spec, len(known))
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        for outcome in known:
            self.add(outcome)

    def add(self, outcome: Outcome) -> None:
        """Record a run that was not proposed here, unless it is outside the current domains."""
        if fits(self._spec, outcome):
            self._study.add_trial(frozen_trial(self._spec, outcome))

    def ask(self) -> Proposal:
        trial = self._study.ask()
        changes: dict[str, object] = {}
        for key, domain in self._spec.domains.items():
            if self._spec.is_active(key, changes):
                changes[key] = round_inside(draw(trial, key, domain), domain)
        self._asked.append(trial)
        return Proposal(len(self._asked) - 1, changes)

    def tell(self, ticket: int, outcome: Outcome) -> None:
        trial, curve = self._asked[ticket], outcome.curve
        for epoch, value in sorted(curve.items()):
            trial.report(value, epoch)
        self._study.tell(trial, final_value(outcome), state=trial_state(outcome))


Config, build = OptunaSpace, OptunaSearcher


def export(spec: "SweepSpec", known: Sequence[Outcome], path: Path) -> None:
    """Write the study to a new SQLite file for optuna-dashboard."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    try:
        study = optuna.create_study(storage=storage, study_name=spec.name, direction="maximize")
        study.add_trials([frozen_trial(spec, outcome) for outcome in known if fits(spec, outcome)])
    finally:
        storage.engine.dispose()


def build_sampler(spec: "SweepSpec", seed: int) -> "optuna.samplers.BaseSampler":
    import optuna

    assert isinstance(spec.space.form, OptunaSpace)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        match spec.space.form.sampler:
            case "tpe":
                # The constant liar keeps parallel proposals apart; groups handle conditional keys.
                conditional = any(domain.when for domain in spec.domains.values())
                return optuna.samplers.TPESampler(
                    multivariate=True, group=conditional, constant_liar=True, seed=seed
                )
            case "gp":
                return optuna.samplers.GPSampler(seed=seed)
            case "random":
                return optuna.samplers.RandomSampler(seed=seed)


def distribution(domain: Domain) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if domain.kind == "choice":
        choices: Any = domain.choices  # Optuna 5.0 accepts lists as choices, but its types do not
        return CategoricalDistribution(choices)
    if domain.kind == "int":
        step = int(domain.step or 1)
        return IntDistribution(int(domain.low), int(domain.high), log=domain.log, step=step)
    log = domain.kind == "log_uniform"
    return FloatDistribution(domain.low, domain.high, log=log, step=domain.step)


def distribution_json(domain: Domain) -> str:
    """Return Optuna's JSON of a domain."""
    from optuna.distributions import distribution_to_json

    return str(distribution_to_json(distribution(domain)))


def draw(trial: "optuna.Trial", key: str, domain: Domain) -> object:
    """Draw a value of a key with the trial's sampler."""
    if domain.kind == "choice":
        choices: Any = domain.choices
        return trial.suggest_categorical(key, choices)
    if domain.kind == "int":
        step = int(domain.step or 1)
        return trial.suggest_int(key, int(domain.low), int(domain.high), step=step, log=domain.log)
    log = domain.kind == "log_uniform"
    return trial.suggest_float(key, domain.low, domain.high, step=domain.step, log=log)


def round_inside(value: object, domain: Domain) -> object:
    """Round a drawn number without leaving its bounds."""
    if not isinstance(value, float) or domain.kind == "choice":
        return value
    digits = DIGITS if domain.step is None else EXACT
    return min(max(float(f"{value:.{digits}g}"), domain.low), domain.high)


def fits(spec: "SweepSpec", outcome: Outcome) -> bool:
    """Whether a run lies inside the current domains."""
    try:
        frozen_trial(spec, outcome)
    except ValueError:  # Optuna raises it for a value outside a distribution
        return False
    return True


def frozen_trial(spec: "SweepSpec", outcome: Outcome) -> "FrozenTrial":
    """Convert a recorded run to an Optuna trial."""
    from optuna.trial import create_trial

    params: dict[str, object] = {}
    for key in spec.domains:
        if key in outcome.changes and spec.is_active(key, params):
            params[key] = outcome.changes[key]
    return create_trial(
        params=params,
        distributions={key: distribution(spec.domains[key]) for key in params},
        intermediate_values=dict(outcome.curve),
        value=final_value(outcome),
        state=trial_state(outcome),
    )


def trial_state(outcome: Outcome) -> "TrialState":
    from optuna.trial import TrialState

    if outcome.state == RunState.DONE and outcome.curve:
        return TrialState.COMPLETE
    if outcome.state == RunState.STOPPED and outcome.curve:
        return TrialState.PRUNED
    return TrialState.FAIL


def final_value(outcome: Outcome) -> float | None:
    complete = outcome.state == RunState.DONE and outcome.curve
    return outcome.curve[max(outcome.curve)] if complete else None
