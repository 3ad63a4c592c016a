"""What a sweep still needs: which run comes next, which is ended early, which are the finalists.

Decisions only, over what the ledger knows: no Ray, no clock, no disk. A search runs its
configurations with the first seed, scored on the holdout; its finalists then run to full length
with every seed, scored on test. Other sweeps run every cell with every seed.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from ascl.config import RunConfig
from ascl.faults import Faulty
from ascl_sweep.ledger import Ledger, RunRow, Scalar
from ascl_sweep.space import flat
from ascl_sweep.spec import SweepSpec
from ascl_sweep.stopping import Decision, Rule, Stopper

if TYPE_CHECKING:
    from ascl_sweep.proposals import Proposals

OVER = ("done", "stopped", "diverged")  # a search's run in one of these needs no more work
FINAL = ("done", "diverged")  # nor does a run that a table wants, in one of these
SAME_FAILURES = 3  # so many runs that fail alike, and none that does not, end a sweep
REPEATS = 50  # so many proposals in a row that were tried before: the space is used up

Phase = Literal["search", "final"]


@dataclass(frozen=True)
class Task:
    """A run that a sweep wants."""

    run_id: str
    config: RunConfig
    phase: Phase

    @classmethod
    def of(cls, config: RunConfig, phase: Phase) -> "Task":
        return cls(config.identity(), config, phase)


@dataclass(frozen=True)
class Outcome:
    """What came of a configuration."""

    changes: Mapping[str, Any]
    curve: Mapping[int, float]
    """The searched metric, by epoch."""
    state: str
    """`done`, `stopped`, or anything else for a run that has no value."""


@dataclass
class Agenda:
    """The runs of one sweep, from what is known of them to the end.

    `rows` and `curves` are what the ledger has, for all runs it has; told what happens, the agenda
    keeps the curves of its own up to date.
    """

    spec: SweepSpec
    rows: Mapping[str, RunRow]
    curves: dict[str, dict[int, float | None]]
    over: set[str] = field(default_factory=set)
    """Runs that need no more work."""
    running: set[str] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)
    """Errors of the runs that failed since the last one that did not."""

    def __post_init__(self) -> None:
        spec = self.spec
        self.states = {run_id: row.state for run_id, row in self.rows.items()}
        for run_id, row in self.rows.items():
            if row.state in OVER and len(self.curves.get(run_id, ())) > row.epochs:
                curve = self.curves[run_id]  # longer by what an earlier attempt left
                self.curves[run_id] = {e: v for e, v in curve.items() if e <= row.epochs}
        self._tickets: dict[str, int] = {}
        self._tried: dict[str, Mapping[str, Any]] = {}
        """The search's runs, in the order they were tried, and what each changes."""
        self._configs: dict[str, Task] = {}
        self._passed: dict[Phase, int] = {"search": 0, "final": 0}
        """So many of a phase's runs, from its first on, are known to be started or over."""
        self._settled = 0
        """So many of the search's runs, from its first on, are known to be over."""
        self._proposals: Proposals | None = None
        self._used_up = False
        self._final: list[Task] | None = None
        if spec.domains:
            from ascl_sweep import proposals  # Optuna takes a second to load

            for changes in self._own_proposals():
                self._try(changes)
            ended = [run_id for run_id in self._tried if self.states[run_id] in OVER]
            self._proposals = proposals.Proposals(spec, [self._outcome(run_id) for run_id in ended])
        elif spec.is_search:
            for cell in spec.cells():
                self._try(cell.changes)

    def _try(self, changes: Mapping[str, Any]) -> Task:
        """Note a configuration as one of the search's, and what run it comes to."""
        config = self.spec.config(changes, seed=self.spec.seeds[0], phase="search")
        task = Task.of(config, "search")
        self._tried[task.run_id], self._configs[task.run_id] = changes, task
        return task

    def _own_proposals(self) -> Iterator[Mapping[str, Any]]:
        """What this search has tried: not what a sweep of its name tried before it was edited."""
        spec = self.spec
        for row in self.rows.values():
            if spec.name not in row.sweeps:
                continue
            changes: dict[str, Any] = {}
            for key in spec.domains:
                if key in row.config and spec.wanted(key, changes):
                    changes[key] = row.config[key]
            try:
                config = spec.config(changes, seed=spec.seeds[0], phase="search")
            except Faulty:
                continue
            if config.identity() == row.run_id:
                yield changes

    @cached_property
    def _stopper(self) -> Stopper | None:
        """The stopping rule, told what is known; made when first asked, as it loads Ray."""
        rule = stopper(self.spec)
        if rule is not None:
            for run_id in self._tried:
                for epoch, value in sorted(self.curves.get(run_id, {}).items()):
                    rule.decide(run_id, epoch, value)
        return rule

    # ------------------------------------------------------------ what comes next

    def next(self) -> Task | None:
        """A run to start now; None if there is none, or none before others have ended."""
        task = self._next_search() if self.spec.is_search else None
        if task is None and self.search_is_over:
            task = self._first_open("final", self.finals())
        if task is not None:
            self.running.add(task.run_id)
        return task

    @property
    def finished(self) -> bool:
        """Whether nothing is running and nothing is left to start."""
        return (
            not self.running
            and self.search_is_over
            and not any(self._open(task.run_id, FINAL) for task in self.finals())
        )

    @property
    def search_is_over(self) -> bool:
        if not self.spec.is_search:
            return True
        for run_id in islice(self._tried, self._settled, self._trials):
            if self._open(run_id) or run_id in self.running:
                return False
            self._settled += 1  # for good
        return not self.spec.domains or self._used_up or len(self._tried) >= self._trials

    @property
    def hopeless(self) -> str | None:
        """The error that every run so far ended with, if there were enough of them."""
        errors = list(self.failures.values())
        alike = len(errors) >= SAME_FAILURES and len(set(errors)) == 1
        return errors[0] if alike else None

    @property
    def _trials(self) -> int:
        return self.spec.budget.trials or max(1, len(self._tried))

    def allowed(self) -> list[str]:
        """The search's runs that the budget has room for."""
        return list(self._tried)[: self._trials]

    def _open(self, run_id: str, closed: Collection[str] = OVER) -> bool:
        """Whether a run is still to be started; what a search stopped, a table may still want."""
        return (
            run_id not in self.over
            and run_id not in self.running
            and self.states.get(run_id) not in closed
        )

    def _first_open(self, phase: Phase, tasks: Iterable[Task]) -> Task | None:
        """The first of a phase's runs that is to be started.

        Thousands are not looked through for each: those before it stay as they are until a run is
        put back.
        """
        closed = FINAL if phase == "final" else OVER
        for task in islice(tasks, self._passed[phase], None):
            if self._open(task.run_id, closed):
                return task
            self._passed[phase] += 1
        return None

    def _next_search(self) -> Task | None:
        task = self._first_open("search", islice(self._configs.values(), self._trials))
        if task is not None:
            return task
        if self._proposals is None or self._used_up or len(self._tried) >= self._trials:
            return None
        for _ in range(REPEATS):
            ticket, changes = self._proposals.ask()
            config = self.spec.config(changes, seed=self.spec.seeds[0], phase="search")
            task = Task.of(config, "search")
            if task.run_id not in self._tried:
                self._tried[task.run_id] = changes
                self._configs[task.run_id] = task
                self._tickets[task.run_id] = ticket
                if self._open(task.run_id):
                    return task
                self._tell(task.run_id)  # another sweep has run it
            else:
                outcome = self._outcome(task.run_id)  # not run twice: its value is known
                self._proposals.tell(ticket, replace(outcome, changes=changes))
        self._used_up = True
        return None

    def wanted(self) -> list[Task]:
        """The runs that are known to be wanted so far."""
        return [*(self._configs[run_id] for run_id in self.allowed()), *self.finals()]

    def own(self) -> set[str]:
        """The runs known so far that are this sweep's, as its file is now."""
        own = {*self._tried, *(task.run_id for task in self.finals())}
        if not self.search_is_over:
            # Who the finalists are is not known yet; those of an earlier call may be among them.
            own |= {run_id for run_id, row in self.rows.items() if row.phase == "final"}
        return own

    def work_left(self) -> tuple[int, int]:
        """Epochs done, and epochs to come if no run is stopped any more."""
        done = left = 0
        for task in self.wanted():
            known = len(self.curves.get(task.run_id, ()))
            done += known
            closed = FINAL if task.phase == "final" else OVER
            if task.run_id in self.running or self._open(task.run_id, closed):
                left += max(0, task.config.epochs - known)
        if self.spec.is_search and not self.search_is_over:
            epochs = int(self.spec.base_values["epochs"])
            ladder = self.spec.ladder
            finals = ladder.finalists * len(self.spec.seeds) if ladder else 0
            unasked = self._trials - len(self._tried) if self.spec.domains else 0
            left += (finals + max(0, unasked)) * epochs
        return done, left

    # ------------------------------------------------------------ what happens

    def told(self, run_id: str, epoch: int, value: float | None, *, measured: bool) -> Decision:
        """An epoch of a run has come in: whether the run ends here."""
        rule = self._stopper if run_id in self._tried and measured else None
        curve = self.curves.setdefault(run_id, {})
        for later in [e for e in curve if e > epoch]:  # of an attempt that was started over
            del curve[later]
        curve[epoch] = value
        self.failures.clear()
        return rule.decide(run_id, epoch, value) if rule else Decision(stop=False)

    def ended(self, run_id: str, state: str, error: str | None = None) -> None:
        """A run is over, one way or another; `planned` is one that was put off."""
        self.running.discard(run_id)
        self.states[run_id] = state
        if state == "planned":
            self._look_again()
        else:
            self.over.add(run_id)
        if state == "failed":
            self.failures[run_id] = (error or "").replace(run_id, "…")  # as in its file's name
        else:
            self.failures.clear()
        self._tell(run_id)

    def put_off(self, run_id: str) -> None:
        """A run that was next cannot be started now; it stays next."""
        self.running.discard(run_id)

    def put_back(self, run_id: str, error: str | None = None) -> None:
        """A run's worker was lost, or failed with an error: it is to be started again."""
        self.running.discard(run_id)
        self.states[run_id] = "lost"
        self._look_again()
        if error is not None:
            self.failures[run_id] = error.replace(run_id, "…")

    def _look_again(self) -> None:
        """A run that was passed is to be started after all."""
        self._passed = {"search": 0, "final": 0}

    def _tell(self, run_id: str) -> None:
        if self._proposals is None or run_id not in self._tried:
            return
        if run_id in self._tickets:
            self._proposals.tell(self._tickets.pop(run_id), self._outcome(run_id))
        elif self.states.get(run_id) in OVER:  # proposed before a restart, and only now over
            self._proposals.add(self._outcome(run_id))

    def _outcome(self, run_id: str) -> Outcome:
        curve = self.curves.get(run_id, {})
        return Outcome(
            self._tried[run_id],
            {epoch: value for epoch, value in curve.items() if value is not None},
            self.states.get(run_id, "planned"),
        )

    def outcomes(self) -> list[Outcome]:
        """What the search has come to, for an export."""
        return [self._outcome(run_id) for run_id in self._tried]

    # ------------------------------------------------------------ the ladder

    def finals(self) -> Sequence[Task]:
        """The runs that tables are made of; of a search, those of its finalists."""
        if self._final is None:
            if not self.search_is_over:
                return ()
            self._final = list(self._finals())
        return self._final

    def _finals(self) -> Iterator[Task]:
        spec = self.spec
        if spec.is_search:
            arms = [self._tried[run_id] for run_id in self.finalists()] if spec.ladder else []
        else:
            arms = [cell.changes for cell in spec.cells()][: spec.budget.trials]
        # Seed by seed: a sweep that is cut short has every arm with the seeds it got to.
        for seed in spec.seeds:
            for changes in arms:
                yield Task.of(spec.config(changes, seed=seed, phase="final"), "final")

    def finalists(self) -> list[str]:
        """The search's best runs, of each group if the ladder says so.

        Complete runs come first. Where the rule left too few of them, those follow that got
        furthest: all finalists run again from the start, so an early end is no bar.
        """
        ladder = self.spec.ladder
        assert ladder is not None
        ranked = []
        for run_id in self.allowed():
            curve = self._outcome(run_id).curve
            if self.states.get(run_id) in ("done", "stopped") and curve:
                last = max(curve)
                ranked.append((-last, -curve[last], run_id))
        taken: dict[Scalar, int] = {}
        chosen = []
        for _, _, run_id in sorted(ranked):
            values = config_values(self._configs[run_id].config)
            group = values.get(ladder.per) if ladder.per else None
            taken[group] = taken.get(group, 0) + 1
            if taken[group] <= ladder.finalists:
                chosen.append(run_id)
        return chosen


def config_values(config: RunConfig) -> dict[str, Scalar]:
    """A config by its dotted keys, as the ledger's columns are named; a list as its JSON text."""
    values = flat(config.model_dump(mode="json"))
    return {k: json.dumps(v) if isinstance(v, list) else v for k, v in values.items()}


def idle_keys(config: RunConfig) -> tuple[str, ...]:
    """Keys whose values, as the others stand, cannot change the run's numbers.

    Not words and zeros: `relabel: none` and K = 0 are idle too, but they are what makes others so.
    """
    return tuple(
        f"{section}.{name}"
        for section in config.SECTIONS
        for name in sorted(getattr(config, section).inert())
        if (value := getattr(getattr(config, section), name)) and not isinstance(value, str)
    )


def stopper(spec: SweepSpec) -> Stopper | None:
    """The sweep's stopping rule, with nothing told yet."""
    stop = spec.stop
    if stop is None:
        return None
    epochs = int(spec.base_values["epochs"])
    rule = Rule(
        stop.rule,
        grace=stop.grace_epochs(epochs),
        factor=stop.factor,
        share=stop.share,
        at=stop.at_epochs(epochs),
        audit=stop.audit,
    )
    return Stopper(rule, epochs)


def curves_of(ledger: Ledger) -> dict[str, dict[int, float | None]]:
    """The searched metric of every run, by epoch."""
    table = ledger.epochs_table(["run_id", "epoch", "knn_top1"])
    if "knn_top1" not in table.column_names:
        return {}
    curves: dict[str, dict[int, float | None]] = {}
    columns = (table.column(name).to_pylist() for name in ("run_id", "epoch", "knn_top1"))
    for run_id, epoch, value in zip(*columns, strict=True):
        curves.setdefault(run_id, {})[epoch] = value
    return curves
