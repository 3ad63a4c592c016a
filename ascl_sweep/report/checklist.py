"""Answers to the checklists of conferences, from the runs of a report, as Markdown.

Every number is computed from the store's rows, which also hold the failed, diverged, stopped and
searched runs. To add a checklist, add a function to `CHECKLISTS`.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from ascl.errors import unknown_name
from ascl_sweep.analysis import labels
from ascl_sweep.analysis.arms import seed_of
from ascl_sweep.analysis.comparison import Arm
from ascl_sweep.analysis.labels import join_names
from ascl_sweep.analysis.search_summary import configuration
from ascl_sweep.contracts import RunRow, RunState
from ascl_sweep.errors import UsageError
from ascl_sweep.report.document import opening
from ascl_sweep.report.formats.markdown import escape, render_texts
from ascl_sweep.report.paper_text import describe_methods, describe_search
from ascl_sweep.report.report import Report, SweepReport
from ascl_sweep.report.sweep_tables import table_precision
from ascl_sweep.report.tables import NONE, mean_sd, significant
from ascl_sweep.text import plural

LISTED = 10  # values of a key that are listed; of more, the range


def render_checklist(name: str, report: Report) -> str:
    """Return the answers to a checklist as Markdown; raise UsageError for an unknown one."""
    if name not in CHECKLISTS:
        raise UsageError(unknown_name("checklist", name, CHECKLISTS))
    return "\n\n".join(CHECKLISTS[name](report)) + "\n"


def _neurips(report: Report) -> Iterator[str]:
    """Answer items 6 to 8 of the NeurIPS paper checklist."""
    names = join_names(found.sweep.name for found in report.sweeps)
    yield "# NeurIPS paper checklist: items 6 to 8"
    yield escape(
        f"Computed from {plural(len(_unique_runs(report)), 'run')} of "
        f"{plural(len(report.sweeps), 'sweep')}: {names}. Runs outside these sweeps, such as "
        "earlier experiments, are not included."
    )
    warning = opening(report)
    if warning:
        yield escape(warning)
    yield "## 6. Experimental setting/details"
    for found in report.sweeps:
        yield from _setting(found)
    yield "## 7. Experiment statistical significance"
    yield from _significance(report)
    yield "## 8. Experiments compute resources"
    yield from _compute(report)


CHECKLISTS: Mapping[str, Callable[[Report], Iterator[str]]] = {"neurips": _neurips}


# ---------------------------------------------------------------- settings and validation


def _setting(found: SweepReport) -> Iterator[str]:
    yield f"### {escape(found.sweep.name)}"
    yield "\n".join(f"- {escape(sentence)}" for sentence in _choices(found))
    spaces = list(_spaces(found))
    if spaces:
        yield render_texts(("hyperparameter", "values or bounds", "how values are chosen"), spaces)
    if found.search is not None and found.table is not None:
        yield from _validation(found)


def _choices(found: SweepReport) -> Iterator[str]:
    seeds = {phase: set[int]() for phase in ("final", "search")}
    for run in found.runs:
        seeds.setdefault(run.phase, set()).add(seed_of(run))
    yield f"Seeds of the tables: {_numbers(seeds['final'] or set(found.digest.seeds))}."
    if found.search is None:
        yield "No hyperparameter search: every configuration of the sweep file is in the table."
        return
    yield f"Seed of the search: {_numbers(seeds['search'])}."
    if found.search.trials:
        yield describe_search(found.search)


def _numbers(values: set[int]) -> str:
    return ", ".join(map(str, sorted(values))) or "none yet"


def _spaces(found: SweepReport) -> Iterator[tuple[str, str, str]]:
    """Yield each varied key with its bounds or values."""
    for key in found.digest.axes:
        distribution = found.digest.distributions.get(key)
        used = dict.fromkeys(
            run.config[key] for run in found.runs if key in run.config and key not in run.idle
        )
        values = [labels.value_label(key, value) for value in used]
        numbers = [v for v in used if isinstance(v, int | float) and not isinstance(v, bool)]
        if distribution is not None:
            bounds, how = _describe_distribution(key, distribution)
            tried = f"; {plural(len(used), 'value')} tried"
            yield labels.name_of(key), bounds + tried, how
        elif len(values) > LISTED and len(numbers) == len(values):
            ends = f"{labels.value_of(min(numbers))} to {labels.value_of(max(numbers))}"
            yield labels.name_of(key), f"{ends} ({len(values)} values)", "listed in the sweep file"
        else:
            yield labels.name_of(key), ", ".join(values) or NONE, "listed in the sweep file"


def _describe_distribution(key: str, text: str) -> tuple[str, str]:
    """Return the bounds of a search space and how it is sampled, from Optuna's JSON."""
    found = json.loads(text)
    given = found["attributes"]
    if "choices" in given:
        choices = [labels.value_label(key, value) for value in given["choices"]]
        return ", ".join(choices), "sampled from the listed values"
    bounds = f"{labels.value_of(given['low'])} to {labels.value_of(given['high'])}"
    kind = "integers" if found["name"] == "IntDistribution" else "numbers"
    step = given.get("step")
    steps = f", step {labels.value_of(step)}" if step and (step != 1 or kind == "numbers") else ""
    scale = "logarithmic" if given.get("log") else "linear"
    return bounds, f"{kind} sampled on a {scale} scale{steps}"


def _validation(found: SweepReport) -> Iterator[str]:
    """Yield the validation score beside the test score of each finalist."""
    assert found.table is not None and found.search is not None
    metric = found.table.metric
    rows = []
    for arm in found.table.arms:
        scores = _holdout_scores(arm, found)
        shown = ", ".join(f"{score:.2f}" for score in scores) or NONE
        mean = mean_sd(arm.mean, arm.sd, table_precision(found.table))
        rows.append((arm.label, shown, str(len(scores)), str(mean), str(arm.n)))
    unit = f" ({metric.unit})" if metric.unit else ""
    yield render_texts(
        ("arm", "validation: online kNN top-1 (%) on the holdout", "n")
        + (f"test: {metric.label}{unit}, mean ± SD", "n"),
        rows,
    )


def _holdout_scores(arm: Arm, found: SweepReport) -> list[float]:
    """Return the holdout scores of the complete trials of the arm's configuration."""
    assert found.search is not None
    own = {run.run_id for run in found.runs if configuration(run) == configuration(arm)}
    trials = [trial for trial in found.search.trials if trial.run_id in own]
    return [t.score for t in trials if t.state == RunState.DONE and t.score is not None]


# ---------------------------------------------------------------- error bars


def _significance(report: Report) -> Iterator[str]:
    tables = [found.table for found in report.sweeps if found.table is not None]
    arms = [arm for table in tables for arm in table.arms]
    spread = [arm for arm in arms if arm.n > 1]
    if not arms:
        yield "**Answer: No.** No run of a table is finished yet."
        return
    if spread:
        yield (
            f"**Answer: Yes.** {len(spread)} of {plural(len(arms), 'arm')} have a standard "
            "deviation over 2 or more seeds. What varies and how intervals are computed:"
        )
    else:
        yield f"**Answer: No.** Each of {plural(len(arms), 'arm')} has at most one finished seed."
    for table in tables:
        yield f"### {escape(table.sweep)}"
        yield escape(describe_methods(table))


# ---------------------------------------------------------------- compute


def _unique_runs(report: Report) -> list[RunRow]:
    """Return the runs of all sweeps; a run of several sweeps is listed once."""
    return list({run.run_id: run for found in report.sweeps for run in found.runs}.values())


def _compute(report: Report) -> Iterator[str]:
    runs = _unique_runs(report)
    started = [run for run in runs if run.epochs or run.device_hours]
    if not started:
        yield "**Answer: No.** No run has used a device yet."
        return
    done = [run for run in runs if run.state == RunState.DONE]
    in_tables = [run for run in done if run.phase == "final"]
    total, reported = _hours(runs), _hours(in_tables)
    yield (
        f"**Answer: Yes.** The runs took {_hour_text(total)} device-hours in total (n = "
        f"{len(started)} started runs). The finished runs of the tables account for "
        f"{_hour_text(reported)} of them (n = {len(in_tables)}); searched, stopped, failed, "
        f"diverged and unfinished runs took the other {_hour_text(total - reported)} "
        f"(n = {len(started) - len(in_tables)})."
    )
    yield "\n".join(f"- {escape(sentence)}" for sentence in _resources(started))
    yield "Runs and device-hours by sweep, phase and state (a run of several sweeps is in each):"
    yield render_texts(_COMPUTE_HEAD, [row for found in report.sweeps for row in _by_state(found)])
    yield "All runs, each counted once:"
    yield render_texts(_COMPUTE_HEAD[1:], list(_state_rows(runs)))


_COMPUTE_HEAD = (
    *("sweep", "phase", "state", "runs", "device-hours", "per run: median (range)", "epochs"),
    *("peak memory (GB)", "devices"),
)


def _by_state(found: SweepReport) -> Iterator[tuple[str, ...]]:
    for row in _state_rows(found.runs):
        yield (found.sweep.name, *row)


def _state_rows(runs: Sequence[RunRow]) -> Iterator[tuple[str, ...]]:
    for phase in ("search", "final"):
        for state in RunState:
            own = [run for run in runs if run.phase == phase and run.state == state]
            if own:
                yield phase, str(state), *_compute_cells(own)
    if runs:
        yield "all", "all", *_compute_cells(runs)


def _compute_cells(runs: Sequence[RunRow]) -> tuple[str, ...]:
    hours = [run.device_hours for run in runs]
    memory = [run.peak_memory_gb for run in runs if run.peak_memory_gb is not None]
    each = f"{_hour_text(median(hours))} ({_hour_text(min(hours))} to {_hour_text(max(hours))})"
    peak = f"{significant(max(memory))} (n = {len(memory)})" if memory else NONE
    devices = Counter(run.device or "unknown" for run in runs)
    return (
        str(len(runs)),
        _hour_text(sum(hours)),
        each,
        str(sum(run.epochs for run in runs)),
        peak,
        ", ".join(f"{device} ({count})" for device, count in devices.items()),
    )


def _resources(runs: Sequence[RunRow]) -> Iterator[str]:
    for device in dict.fromkeys(run.device for run in runs):
        own = [run for run in runs if run.device == device]
        hours = _hour_text(_hours(own))
        yield f"{device or 'Unknown device'}: {hours} device-hours (n = {len(own)} runs)."
    workers = Counter(run.workers for run in runs)
    listed = ", ".join(f"{plural(k, 'device')} (n = {workers[k]})" for k in sorted(workers))
    yield f"Devices per run: {listed}."
    memory = [run.peak_memory_gb for run in runs if run.peak_memory_gb is not None]
    if memory:
        most = significant(max(memory))
        yield f"Peak memory of one device: {most} GB (maximum, n = {len(memory)} runs)."
    seconds = sum(run.train_seconds for run in runs), sum(run.eval_seconds for run in runs)
    if any(seconds):
        train, evaluate = (_hour_text(value / 3600) for value in seconds)
        yield f"Wall time of these runs: {train} h of training, {evaluate} h of evaluation."


def _hours(runs: Sequence[RunRow]) -> float:
    return sum(run.device_hours for run in runs)


def _hour_text(hours: float) -> str:
    return significant(hours) if hours > 1e-9 else "0"
