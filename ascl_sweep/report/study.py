"""Optuna's view of a search that is over, made from ledger rows: importances, and its own plots.

Apart from `proposals`, which proposes: this needs no sweep file and so no PyTorch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import json_to_distribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState, create_trial

from ascl_sweep import labels
from ascl_sweep.ledger import RunRow

FEW = 4  # complete trials below which an importance says nothing
MOST = 200  # trials of a plot that has a line, or a row of a matrix, for each
CONTOURS = 3  # keys that are held against each other: a plot for each pair, twice


def study_of(distributions: Mapping[str, str], rows: Sequence[RunRow]) -> optuna.Study:
    """The search's runs as trials; what was stopped early is pruned at its epoch."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    drawn = {key: json_to_distribution(text) for key, text in distributions.items()}
    study = optuna.create_study(direction="maximize")
    for row in rows:
        score = row.knn_last_top1
        params = {k: row.config[k] for k in drawn if k in row.config and k not in row.idle}
        fits = all(drawn[k]._contains(drawn[k].to_internal_repr(v)) for k, v in params.items())
        if score is None or row.state not in ("done", "stopped") or not fits:
            continue
        done = row.state == "done"
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


def importances(distributions: Mapping[str, str], rows: Sequence[RunRow]) -> dict[str, float]:
    """What share of a search's success hangs on each key (PED-ANOVA), largest first.

    Over the keys that every complete trial has; empty where there are too few trials to say.
    """
    study = study_of(distributions, rows)
    complete = [t for t in study.trials if t.state == TrialState.COMPLETE]
    common = [k for k in distributions if all(k in trial.params for trial in complete)]
    varied = [k for k in common if len({trial.params[k] for trial in complete}) > 1]
    if len(complete) < FEW or not varied:
        return {}
    found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(), params=varied)
    return dict(found)


# ---------------------------------------------------------------- its own plots


def plots(
    distributions: Mapping[str, str], rows: Sequence[RunRow], ranked: Sequence[str] = ()
) -> dict[str, str]:
    """Optuna's own figures of a search, in plotly's JSON by title; none of too few trials.

    `ranked` are titles of keys, those that weigh most first.
    """
    from optuna import visualization  # loads plotly, which importances do not need

    scores = {r.run_id: r.knn_last_top1 for r in rows if r.state == "done"}
    complete = {run_id: score for run_id, score in scores.items() if score is not None}
    if len(complete) < FEW:
        return {}
    best = set(sorted(complete, key=lambda run_id: -complete[run_id])[:MOST])
    shown = _for_people(study_of(distributions, [r for r in rows if r.run_id in best]).trials)
    history = _for_people([create_trial(value=score) for score in complete.values()])
    found = {"Optimisation history": _json(visualization.plot_optimization_history, history)}
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


def _for_people(trials: Sequence[FrozenTrial]) -> optuna.Study:
    """Trials with their scores in percent and their keys as people call them."""
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
    """A figure without the colours and titles that are the page's to choose."""
    figure = plot(study, target_name="online kNN top-1 (%)", **options)
    figure.update_layout(template=None, title=None, plot_bgcolor=None, width=None)
    figure.for_each_annotation(lambda annotation: annotation.update(font=None))
    return str(figure.to_json())
