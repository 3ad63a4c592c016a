"""Hyperparameter importance and Optuna's plots of a search, from the rows of the store.

This module needs no sweep file and therefore no PyTorch, unlike `search.searchers.optuna`.
"""

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import optuna
from optuna.distributions import json_to_distribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState, create_trial

from ascl_sweep.analysis import labels
from ascl_sweep.analysis.search_summary import IMPORTANCE_TRIALS
from ascl_sweep.contracts import RunRow, RunState

FEW = 4  # complete trials that plots need at least
PERMUTATIONS = 100
QUANTILE = 0.95  # of the importances by chance, which an importance must exceed
MOST = 200  # trials in a plot with one line or point per trial
CONTOURS = 3  # keys in the contour plot, which has a panel for each ordered pair


def study_of(distributions: Mapping[str, str], rows: Sequence[RunRow]) -> optuna.Study:
    """Build an Optuna study from a search's runs; runs stopped early become pruned trials."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    drawn = {key: json_to_distribution(text) for key, text in distributions.items()}
    study = optuna.create_study(direction="maximize")
    for row in rows:
        score = row.knn_last_top1
        params = {k: row.config[k] for k in drawn if k in row.config and k not in row.idle}
        if score is None or row.state not in (RunState.DONE, RunState.STOPPED):
            continue
        done = row.state == RunState.DONE
        with suppress(ValueError):  # Optuna refuses values outside the current distributions
            study.add_trial(
                create_trial(
                    params=params,
                    distributions={key: drawn[key] for key in params},
                    value=score if done else None,
                    intermediate_values={row.epochs: score},
                    state=TrialState.COMPLETE if done else TrialState.PRUNED,
                    user_attrs={"run_id": row.run_id},
                )
            )
    return study


def importances(
    distributions: Mapping[str, str], rows: Sequence[RunRow]
) -> dict[str, float] | None:
    """Return the PED-ANOVA importance of each key that exceeds chance, largest first.

    PED-ANOVA divides 100% between the keys even if none matters. A key is therefore returned only
    if its importance exceeds the 95% quantile of the largest importance of any key for permuted
    scores. Only keys that every complete trial has are included.

    Returns:
        Shares of the total over all keys; None with fewer than ten complete trials.
    """
    study = study_of(distributions, rows)
    complete = [t for t in study.trials if t.state == TrialState.COMPLETE]
    if len(complete) < IMPORTANCE_TRIALS:
        return None
    common = [k for k in distributions if all(k in trial.params for trial in complete)]
    varied = [k for k in common if len({trial.params[k] for trial in complete}) > 1]
    if not varied:
        return {}
    scores, rng = [trial.value or 0.0 for trial in complete], random.Random(0)
    only = optuna.create_study(direction="maximize")
    only.add_trials(complete)
    found = _ped_anova(only, scores, varied)
    chance = []
    for _ in range(PERMUTATIONS):
        rng.shuffle(scores)
        chance.append(_ped_anova(only, scores, varied))
    total = sum(found.values())
    # The largest importance of each permutation, so that all keys together have one error rate.
    cut = float(np.quantile([max(one.values()) for one in chance], QUANTILE))
    above = {key: value / total for key, value in found.items() if value > cut}
    return dict(sorted(above.items(), key=lambda item: -item[1]))


def _ped_anova(study: optuna.Study, scores: Sequence[float], keys: list[str]) -> dict[str, float]:
    """Return the importance of each key, not divided by the total, for these scores of trials."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `normalize` is experimental, and targets are minimized
        return dict(
            get_param_importances(
                study,
                evaluator=PedAnovaImportanceEvaluator(),
                params=keys,
                target=lambda trial: -scores[trial.number],
                normalize=False,
            )
        )


# ---------------------------------------------------------------- Optuna's plots


def plots(
    distributions: Mapping[str, str], rows: Sequence[RunRow], ranked: Sequence[str] = ()
) -> dict[str, str]:
    """Return Optuna's plots of a search as plotly JSON, by title; empty with too few trials.

    `ranked` lists titles of keys, most important first.
    """
    from optuna import visualization  # imports plotly, which importances do not need

    scores = {r.run_id: r.knn_last_top1 for r in rows if r.state == RunState.DONE}
    complete = {run_id: score for run_id, score in scores.items() if score is not None}
    if len(complete) < FEW:
        return {}
    best = set(sorted(complete, key=lambda run_id: -complete[run_id])[:MOST])
    shown = _display_study(study_of(distributions, [r for r in rows if r.run_id in best]).trials)
    history = _display_study([create_trial(value=score) for score in complete.values()])
    found = {"Optimization history": _json(visualization.plot_optimization_history, history)}
    title_of = {labels.name_of(key): labels.title_of(key) for key in distributions}
    drawn = [k for k in title_of if shown.trials and all(k in t.params for t in shown.trials)]
    drawn.sort(key=lambda name: [*ranked, title_of[name]].index(title_of[name]))
    which = "" if len(best) == len(complete) else f", the best {MOST} of {len(complete)} trials"
    if drawn:
        found[f"Parallel coordinates{which}"] = _json(visualization.plot_parallel_coordinate, shown)
        found[f"Slices{which}"] = _json(visualization.plot_slice, shown)
    if len(drawn) > 1:
        few = drawn[:CONTOURS]
        contours = _json(visualization.plot_contour, shown, params=few)
        found[f"Contours of {', '.join(few)}{which}"] = contours
    return found


def _display_study(trials: Sequence[FrozenTrial]) -> optuna.Study:
    """Build a study with scores in percent and display names of keys."""
    study = optuna.create_study(direction="maximize")
    for trial in trials:
        assert trial.value is not None
        study.add_trial(
            create_trial(
                params={labels.name_of(k): v for k, v in trial.params.items()},
                distributions={labels.name_of(k): d for k, d in trial.distributions.items()},
                value=100 * trial.value,
            )
        )
    return study


def _json(plot: Callable[..., Any], study: optuna.Study, **options: Any) -> str:
    """Render a plot as JSON without colors and titles, which the page sets."""
    figure = plot(study, target_name="online kNN top-1 (%)", **options)
    figure.update_layout(template=None, title=None, plot_bgcolor=None, width=None)
    figure.for_each_annotation(lambda annotation: annotation.update(font=None))
    return str(figure.to_json())
