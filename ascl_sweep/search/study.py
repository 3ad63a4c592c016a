"""Study: the state machine of one sweep, over its searcher and its scheduler.

The study decides which run comes next, which run stops early and which configs become finalists.
It does no I/O and uses neither Ray nor a clock. A search runs the base and then its configs with a
seed of its own, scored on the holdout. It then completes a few of the runs that it stopped, as
audits. Its finalists, which include the base, run to full length with every seed, scored on test.
Other sweeps run every cell with every seed. A sweep that runs until decided starts with the seeds
of its first look; when these runs have ended, the arms of undecided comparisons get more seeds.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, pairwise

from ascl.config import RunConfig
from ascl.errors import ConfigError
from ascl_sweep.analysis.looks import LookStatus, looks_of
from ascl_sweep.contracts import Phase, RunRow, RunState
from ascl_sweep.search.schedulers.base import GO, Decision, Stopper, audit_rank
from ascl_sweep.search.searchers.base import Outcome, Searcher, build_searcher
from ascl_sweep.spec.sections import SEARCH_SEED
from ascl_sweep.spec.selection import RankedTrial, choose_finalists
from ascl_sweep.spec.summary import SeedPlan, SweepSummary, summarize_sweep
from ascl_sweep.spec.sweep import SweepSpec

SAME_FAILURES = 3  # a sweep ends after this many consecutive runs fail with the same error
AUDITS = 2  # runs that a search audits at least, if its scheduler stops that many
DECIDED = 0.5  # share of the open comparisons that a look decides, for the expected cost
REPEATS = 50  # the space is exhausted after this many consecutive repeated proposals


@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep, before it starts."""

    run_id: str
    config: RunConfig
    phase: Phase

    @classmethod
    def of(cls, config: RunConfig, phase: Phase) -> "PlannedRun":
        return cls(config.identity(), config, phase)


def is_closed(state: RunState, phase: Phase) -> bool:
    """Whether a run in this state needs no more work."""
    return state.is_final if phase == "final" else state.is_over


def chance_of_seeds(looks: int, comparisons: int) -> float:
    """Return the chance that an arm needs more seeds after some looks at its open comparisons."""
    return 1 - (1 - (1 - DECIDED) ** looks) ** comparisons


def own_proposals(spec: SweepSpec, rows: Mapping[str, RunRow]) -> Iterator[Mapping[str, object]]:
    """Yield earlier proposals of a search, but not those from before an edit of its file."""
    for row in rows.values() if spec.domains else ():
        if spec.name not in row.sweeps:
            continue
        changes: dict[str, object] = {}
        for key in spec.domains:
            if key in row.config and spec.is_active(key, changes):
                changes[key] = row.config[key]
        try:
            run_id = spec.run_id(changes)
        except ConfigError:
            continue
        if run_id == row.run_id:
            yield changes


@dataclass
class Study:
    """The runs of one sweep and their progress.

    `rows` and `curves` come from the store and cover all of its runs. The study updates the curves
    of its own runs. The controller updates the rows before it reports the end of a run, because the
    looks of a sweep that runs until decided read the scores from them.
    """

    spec: SweepSpec
    rows: Mapping[str, RunRow]
    curves: dict[str, dict[int, float | None]]
    seed_plan: SeedPlan | None = None
    """The seeds and their changes; None if they were never changed."""
    other_scales: Mapping[str, SeedPlan] = field(default_factory=dict)
    """The last plan of the seeds at each other scale."""
    states: dict[str, RunState] = field(init=False)
    """State of each run. A run that fails is not retried before the next start."""
    running: dict[str, PlannedRun] = field(init=False, default_factory=dict)
    failures: dict[str, str] = field(init=False, default_factory=dict)
    """Errors of the runs that failed since the last success."""

    def __post_init__(self) -> None:
        # Runs that had not ended when the store was last written start again.
        over = {run_id for run_id, row in self.rows.items() if row.state.is_over}
        self.states = {
            run_id: row.state if run_id in over else RunState.LOST
            for run_id, row in self.rows.items()
        }
        for run_id in over:
            epochs = self.rows[run_id].epochs
            if len(self.curves.get(run_id, ())) > epochs:  # from an earlier, longer attempt
                curve = self.curves[run_id]
                self.curves[run_id] = {e: v for e, v in curve.items() if e <= epochs}
        self._tried: dict[str, Mapping[str, object]] = {}
        """The search's runs in the order of their proposals: run id → changes to the base."""
        self._searches: dict[str, PlannedRun] = {}
        self._tickets: dict[str, int] = {}
        self._passed: dict[Phase, int] = {"search": 0, "final": 0}
        """Per phase, the number of leading runs that are known to have started or ended."""
        self._settled = 0
        """The number of leading runs of the search that are known to have ended."""
        self._final: list[PlannedRun] | None = None
        self._look_due = False
        """Whether a run has ended since the final runs were last checked."""
        self.last_look: LookStatus | None = None
        """State of the looks when the final runs were last extended."""
        self._searcher: Searcher | None = None
        """None when there is nothing more to propose."""
        self._audits_chosen = False
        """Whether the trials are over and `_reopen_for_audit` has chosen runs."""
        if self.spec.is_search:
            self.spec = self.spec.with_search_seed(self._find_search_seed())
            self._start_search()

    def _find_search_seed(self) -> int:
        """Return the seed of this search's runs in the store, or else the reserved seed.

        Older versions searched with the first seed of the table; such a search keeps its seed.
        """
        name = self.spec.name
        own = [r for r in self.rows.values() if r.phase == "search" and name in r.sweeps]
        for seed in dict.fromkeys(int(row.config.get("seed") or 0) for row in own):
            spec = self.spec.with_search_seed(seed)
            listed = (spec.run_id(cell.changes) in self.rows for cell in spec.cells())
            if seed != SEARCH_SEED and (any(listed) or any(own_proposals(spec, self.rows))):
                return seed
        return SEARCH_SEED

    def _start_search(self) -> None:
        if self.spec.tries_base:
            self._try(self.spec.base_trial.changes)
        for changes in own_proposals(self.spec, self.rows):
            self._try(changes)
        ended = [i for i in self._tried if i in self.states and self.states[i].is_over]
        searcher = build_searcher(self.spec, [self._outcome(run_id) for run_id in ended])
        if searcher.adaptive:
            self._searcher = searcher
            return
        while (proposal := searcher.ask()) is not None:
            self._try(proposal.changes)

    def _try(self, changes: Mapping[str, object]) -> PlannedRun:
        """Record a config as part of the search and return its run."""
        run = self._search_run(changes)
        self._tried[run.run_id], self._searches[run.run_id] = changes, run
        return run

    def _search_run(self, changes: Mapping[str, object]) -> PlannedRun:
        return PlannedRun.of(self.spec.first_config(changes), "search")

    @cached_property
    def _stopper(self) -> Stopper | None:
        """The scheduler with all known values; None without `stop`."""
        stop = self.spec.stop
        if stop is None:
            return None
        stopper = Stopper(stop.scheduler, self.spec.full_epochs, stop.audit)
        for run_id in self._tried:
            if run_id in self.rows and self.rows[run_id].audit:
                stopper.audit_run(run_id, self.rows[run_id].stopped_because or "")
        for run_id in self._tried:
            for epoch, value in sorted(self.curves.get(run_id, {}).items()):
                stopper.decide(run_id, epoch, value)
        return stopper

    # ------------------------------------------------------------ next run

    def next_run(self) -> PlannedRun | None:
        """Return a run to start now; None if there is none until other runs have ended."""
        run = self._next_search() if self.spec.is_search else None
        if run is None and self.search_is_over:
            run = self._first_open("final", self.finals())
        if run is not None:
            self.running[run.run_id] = run
        return run

    @property
    def finished(self) -> bool:
        """Whether nothing is running and nothing is left to start."""
        return (
            not self.running
            and self.search_is_over
            and not any(self._is_open(run) for run in self.finals())
        )

    @property
    def search_is_over(self) -> bool:
        if not self.spec.is_search:
            return True
        for _ in range(2):  # the second time for the audits that are now due
            for run in islice(self._searches.values(), self._settled, self._trials):
                if self._is_open(run) or run.run_id in self.running:
                    return False
                self._settled += 1  # ended runs stay ended
            if self._searcher is not None and len(self._tried) < self._trials:
                return False
            if not self._reopen_for_audit():
                break
        return True

    def _reopen_for_audit(self) -> bool:
        """Once all trials are over, reopen stopped runs if too few are audited; return whether.

        The runs with the smallest `audit_rank` are chosen, so the audited runs are a random sample
        of those that the scheduler stopped, and a restart chooses the same ones.
        """
        if self._audits_chosen:
            return False
        self._audits_chosen = True
        stop, allowed = self.spec.stop, [run.run_id for run in self._allowed()]
        stopped = [run_id for run_id in allowed if self.states.get(run_id) is RunState.STOPPED]
        if not stopped or stop is None or not stop.audit or self.spec.is_older_search:
            return False
        stopper = self._stopper
        assert stopper is not None
        missing = AUDITS - sum(stopper.is_audited(run_id) for run_id in allowed)
        chosen = sorted(stopped, key=audit_rank)[: max(0, missing)]
        for run_id in chosen:
            row = self.rows.get(run_id)
            stopper.audit_run(run_id, (row.stopped_because if row else None) or "")
            self.states[run_id] = RunState.LOST
        self._settled, self._passed["search"] = 0, 0
        return bool(chosen)

    @property
    def hopeless(self) -> str | None:
        """The common error if enough consecutive runs failed with the same error; else None."""
        errors = list(self.failures.values())
        alike = len(errors) >= SAME_FAILURES and len(set(errors)) == 1
        return errors[0] if alike else None

    @property
    def _trials(self) -> int:
        return self.spec.budget.trials or max(1, len(self._tried))

    def _allowed(self) -> list[PlannedRun]:
        """The search's runs within `budget.trials`."""
        return list(self._searches.values())[: self._trials]

    def _is_open(self, run: PlannedRun) -> bool:
        """Whether a run must still be started. A final run restarts even if a search stopped it."""
        state = self.states.get(run.run_id, RunState.PLANNED)
        return (
            not is_closed(state, run.phase)
            and state is not RunState.FAILED
            and run.run_id not in self.running
        )

    def _first_open(self, phase: Phase, runs: Iterable[PlannedRun]) -> PlannedRun | None:
        """Return the first run of a phase that must be started.

        `_passed` avoids scanning thousands of runs each time: earlier runs need no check until a
        run is requeued.
        """
        for run in islice(runs, self._passed[phase], None):
            if self._is_open(run):
                return run
            self._passed[phase] += 1
        return None

    def _next_search(self) -> PlannedRun | None:
        run = self._first_open("search", islice(self._searches.values(), self._trials))
        if run is not None or self._searcher is None or len(self._tried) >= self._trials:
            return run
        for _ in range(REPEATS):
            proposal = self._searcher.ask()
            if proposal is None:
                break
            run = self._search_run(proposal.changes)
            if run.run_id in self._tried:  # do not run a config twice
                outcome = replace(self._outcome(run.run_id), changes=proposal.changes)
                self._searcher.tell(proposal.ticket, outcome)
                continue
            self._try(proposal.changes)
            self._tickets[run.run_id] = proposal.ticket
            if self._is_open(run):
                return run
            self._tell(run.run_id)  # another sweep has already run it
        self._searcher = None
        return None

    def wanted(self) -> list[PlannedRun]:
        """Return the runs of the sweep that are known so far."""
        return [*self._allowed(), *self.finals()]

    def own(self) -> set[str]:
        """Return the ids of the known runs that belong to the current version of the sweep."""
        own = {*self._tried, *(run.run_id for run in self.finals())}
        if self.search_is_over and self.spec.looks:
            # Seeds of later looks may be there from an earlier plan, or from a look that a retried
            # run has reopened.
            own |= {run.run_id for runs in self._arm_runs for run in runs}
        if not self.search_is_over:
            # Finalists are not known yet; final runs of an earlier start may be among them.
            own |= {run_id for run_id, row in self.rows.items() if row.phase == "final"}
        return own

    def work_left(self) -> tuple[int, int]:
        """Return the epochs done, and the epochs left if no more runs are stopped early."""
        done = left = 0
        for run in self.wanted():
            known = len(self.curves.get(run.run_id, ()))
            done += known
            if run.run_id in self.running or self._is_open(run):
                left += max(0, run.config.epochs - known)
        if self.spec.is_search and not self.search_is_over:
            # Seeds of later looks do not count, because they may not be needed.
            seeds = self.spec.looks[0] if self.spec.looks else len(self.spec.seed_list)
            finals = self.spec.num_arms * seeds
            unasked = self._trials - len(self._tried) if self._searcher else 0
            left += (finals + max(0, unasked)) * self.spec.full_epochs
        return done, left

    # ------------------------------------------------------------ events

    def on_epoch(self, run_id: str, epoch: int, value: float | None, *, measured: bool) -> Decision:
        """Record an epoch of a run; decide whether the run stops."""
        stopper = self._stopper if run_id in self._tried and measured else None
        curve = self.curves.setdefault(run_id, {})
        for later in [e for e in curve if e > epoch]:  # left from an attempt that was restarted
            del curve[later]
        curve[epoch] = value
        self.failures.clear()
        return stopper.decide(run_id, epoch, value) if stopper else GO

    def on_end(self, run_id: str, state: RunState, error: str | None = None) -> None:
        """Record the end of a run. A run in state `planned` (deferred) or `lost` starts again."""
        run = self.running.pop(run_id, None)
        self.states[run_id] = state
        self._look_due = True
        if run is None or self._is_open(run):
            self._passed = {"search": 0, "final": 0}  # the run may precede the scan position
        if state is RunState.FAILED or (state is RunState.LOST and error is not None):
            self.failures[run_id] = (error or "").replace(run_id, "…")  # part of file names
        elif state is not RunState.LOST:
            self.failures.clear()
        if state is not RunState.LOST:
            self._tell(run_id)

    def observe(self, run_id: str, state: RunState) -> None:
        """Record that another sweep of the same controller has ended a run."""
        if run_id in self.running:
            return
        self.states[run_id] = state
        self._look_due = True
        self._passed = {"search": 0, "final": 0}
        if state.is_over:
            self._tell(run_id)

    def defer(self, run_id: str) -> None:
        """Return a run from `next_run` that cannot start now; the run stays next in line."""
        del self.running[run_id]

    def requeue(self, run_id: str, error: str | None = None) -> None:
        """Start a run again because its worker was lost or failed with an error."""
        self.on_end(run_id, RunState.LOST, error)

    def _tell(self, run_id: str) -> None:
        """Report the outcome of a run to the searcher."""
        if self._searcher is None or run_id not in self._tried:
            return
        if run_id in self._tickets:
            self._searcher.tell(self._tickets.pop(run_id), self._outcome(run_id))
        elif self.states[run_id].is_over:  # proposed before a restart, ended after it
            self._searcher.add(self._outcome(run_id))

    def _outcome(self, run_id: str) -> Outcome:
        curve = self.curves.get(run_id, {})
        return Outcome(
            self._tried[run_id],
            {epoch: value for epoch, value in curve.items() if value is not None},
            self.states.get(run_id, RunState.PLANNED),
        )

    def outcomes(self) -> list[Outcome]:
        """Return the outcomes of the search for an export."""
        return [self._outcome(run_id) for run_id in self._tried]

    # ------------------------------------------------------------ finalists

    def finals(self) -> Sequence[PlannedRun]:
        """Return the runs that tables show; for a search, the runs of its finalists once known.

        If the sweep runs until decided, these are the runs up to the next look.
        """
        if self._final is None:
            if not self.search_is_over:
                return ()
            self._final = self._make_finals()
        elif self._look_due and self.spec.looks and self._all_ended(self._final):
            self._final = self._make_finals()
            self._passed["final"] = 0
        self._look_due = False
        return self._final

    def _all_ended(self, runs: Iterable[PlannedRun]) -> bool:
        return not any(run.run_id in self.running or self._is_open(run) for run in runs)

    def _make_finals(self) -> list[PlannedRun]:
        self.last_look = status = self.look_status()
        # Seed by seed, so that an interrupted sweep has the same seeds for every arm.
        finals: dict[str, PlannedRun] = {}
        for place in range(len(self.spec.seed_list)):
            for runs in self._arm_runs:
                if status is None or place < status.wanted[runs[0].run_id]:
                    # Cells that differ in keys without effect are one run.
                    finals.setdefault(runs[place].run_id, runs[place])
        return list(finals.values())

    @cached_property
    def _arm_runs(self) -> list[list[PlannedRun]]:
        """The runs of every arm by seed; of a search, once it is over."""
        spec = self.spec
        if spec.is_search:
            arms = [self._tried[run_id] for run_id in self.finalists()] if spec.ladder else []
        else:
            arms = [cell.changes for cell in spec.cells()][: spec.budget.trials]
        return [
            [
                PlannedRun.of(spec.config(changes, seed=seed, phase="final"), "final")
                for seed in spec.seed_list
            ]
            for changes in arms
        ]

    # ------------------------------------------------------------ looks

    @cached_property
    def digest(self) -> SweepSummary:
        """The metadata of the sweep for reports."""
        return summarize_sweep(self.spec, self.seed_plan, self.other_scales)

    def look_status(self) -> LookStatus | None:
        """Return the state of the planned looks; None if there are none, or no final runs yet.

        It depends only on the rows, so a restarted sweep continues with the same runs.
        """
        if not self.spec.looks or not self.search_is_over or not self._arm_runs:
            return None
        first = self.spec.looks[0]
        rows = {}
        for runs in self._arm_runs:
            for place, run in enumerate(runs):
                if place < first or run.run_id in self.rows:
                    rows[run.run_id] = self._row_of(run)
        return looks_of(self.digest, list(rows.values()))

    def _row_of(self, run: PlannedRun) -> RunRow:
        """Return the row of a planned run, with the config keys of this version."""
        config, idle = run.config.flat_values(), tuple(run.config.idle_keys())
        if run.run_id in self.rows:
            return replace(self.rows[run.run_id], config=config, idle=idle, phase=run.phase)
        return RunRow(run.run_id, (self.spec.name,), config, run.phase, self.spec.scale, idle=idle)

    def later_finals(self) -> Iterator[tuple[PlannedRun, float]]:
        """Yield the runs that the looks after the next one may need, each with its chance.

        The chance assumes that each look decides half of the open comparisons, independently. An
        arm gets more seeds as long as one of its comparisons is open.
        """
        status = self.look_status()
        if status is None or status.following is None:
            return
        looks = self.spec.looks[self.spec.looks.index(status.following) :]
        comparisons = Counter(run_id for pair in status.open for run_id in pair)
        seen: set[str] = set()
        for number, (before, count) in enumerate(pairwise(looks), start=1):
            for runs in self._arm_runs:
                for run in runs[before:count]:
                    m = comparisons[runs[0].run_id]
                    if m and run.run_id not in seen:
                        seen.add(run.run_id)
                        yield run, chance_of_seeds(number, m)

    def finalists(self) -> list[str]:
        """Return the best runs of the search, with `ladder.per` of each group, and the base's run.

        If there are too few complete runs, stopped runs follow: finalists train again from the
        start, so a stopped run may be one.
        """
        ladder = self.spec.ladder
        assert ladder is not None
        trials = []
        for run in self._allowed():
            outcome = self._outcome(run.run_id)
            if outcome.state in (RunState.DONE, RunState.STOPPED) and outcome.curve:
                last = max(outcome.curve)
                group = run.config.flat_values().get(ladder.per) if ladder.per else None
                done = outcome.state is RunState.DONE
                trials.append(RankedTrial(run.run_id, done, last, outcome.curve[last], group))
        base = self.spec.run_id({}) if self.spec.tries_base else None
        return choose_finalists(trials, ladder.finalists, base)
