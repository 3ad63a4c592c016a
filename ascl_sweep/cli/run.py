"""`ascl-sweep run`: run or resume sweeps."""

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.markup import escape

from ascl_sweep.cli.common import (
    Address,
    Concurrency,
    DryRun,
    Overrides,
    ScaleOption,
    StoreOption,
    UntilDecided,
    Wait,
    Yes,
    check_store,
    load_specs,
    override_words,
    recorded_specs,
    talk,
    warn,
)
from ascl_sweep.cli.errors import (
    BUDGET,
    INTERRUPTED,
    NO_RESOURCES,
    REMOTE_STORE_FIX,
    RUN_FAILED,
    driver_log,
    fail,
    logger,
    os_error_text,
    set_up_logging,
)
from ascl_sweep.contracts import RunState
from ascl_sweep.errors import UsageError
from ascl_sweep.executors import executor_names
from ascl_sweep.runtime.callbacks import logger_names
from ascl_sweep.runtime.signals import handle_signals
from ascl_sweep.text import plural

if TYPE_CHECKING:
    from ascl_sweep.runtime.controller import End
    from ascl_sweep.runtime.executor import Executor
    from ascl_sweep.runtime.sweeps import PreparedSweeps
    from ascl_sweep.spec.sweep import SweepSpec
    from ascl_sweep.store.store import Store


class Retry(StrEnum):
    """States of runs to retry. Failed runs are retried anyway; the value is accepted."""

    FAILED = "failed"
    DIVERGED = "diverged"


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """End the command cleanly if a signal arrives before a sweep runs."""
    with handle_signals():
        try:
            yield
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


@dataclass(frozen=True)
class Ways:
    """Options for running sweeps."""

    address: str | None = None
    concurrency: int | None = None
    wait: bool = False
    executor: str = "ray"
    loggers: tuple[str, ...] = ()
    retry: tuple[RunState, ...] = ()
    """Runs in these states are retried."""
    dry_run: bool = False
    ask: bool = False
    """Whether to ask for confirmation if stdin is a terminal."""

    def words(self) -> list[str]:
        """Return the command-line options that resume these sweeps; `retry` is not among them."""
        words = [word for name in self.loggers for word in ("--log", name)]
        words += ["--executor", self.executor] if self.executor != "ray" else []
        words += ["--address", self.address] if self.address else []
        return words + (["--concurrency", str(self.concurrency)] if self.concurrency else [])


@_exit_on_signals()
def run(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="Sweep files; with --resume, names of sweeps in the store.",
            metavar="FILE|SWEEP",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume the named sweeps of the store, or all of them."),
    ] = False,
    retry: Annotated[
        list[Retry] | None,
        typer.Option(
            "--retry",
            help="diverged: retry these runs too. Failed runs are always retried.",
        ),
    ] = None,
    store_address: StoreOption = "results",
    executor: Annotated[
        str,
        typer.Option(
            help="ray, or local: one run at a time in this process, for debugging.",
            metavar="|".join(executor_names()),
        ),
    ] = "ray",
    address: Address = None,
    concurrency: Concurrency = None,
    overrides: Overrides = None,
    scale: ScaleOption = "full",
    until_decided: UntilDecided = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = False,
    log: Annotated[
        list[str] | None,
        typer.Option(
            "--log",
            help="Also send results to this logger. Repeatable.",
            metavar="|".join(logger_names()),
        ),
    ] = None,
) -> None:
    """Run sweeps: train every run that is not in the store yet. Safe to repeat.

    Finished runs are skipped and interrupted runs resume after their last epoch. The first Ctrl-C
    (or SIGTERM, SIGHUP, SIGUSR1) waits for running epochs to finish, for up to two median epochs or
    one minute, whichever is longer; the second one stops at once.
    """
    from ascl_sweep.store.store import Store

    ways = Ways(
        address=address,
        concurrency=concurrency,
        wait=wait,
        executor=executor,
        loggers=tuple(log or ()),
        retry=tuple(map(RunState, retry or ())),
        dry_run=dry_run,
        ask=not yes,
    )
    if resume:
        if overrides or scale != "full" or until_decided:
            raise UsageError(
                "--resume runs sweeps as recorded and takes no --set, --scale or --until-decided; "
                "to change a sweep, run its file instead"
            )
        store = Store(store_address)
        store.sweeps()
        store.check_readable()
        specs = recorded_specs(store, targets)
        words = ["--resume", *(targets or [])]
    elif targets:
        _refuse_sweep_names(targets, store_address)
        paths = [Path(target) for target in targets]
        specs = load_specs(paths, overrides or [], scale, until_decided=until_decided)
        words = [*targets, *override_words(overrides, scale, until_decided=until_decided)]
    else:
        raise UsageError(
            "no sweep file given; try `ascl-sweep run FILE`, or `ascl-sweep run --resume` to "
            "resume the sweeps in the store"
        )
    start(specs, store_address, ways, ["run", *words])


def _refuse_sweep_names(targets: list[str], store_address: str) -> None:
    """Raise UsageError if a target is not a file but a sweep of the store."""
    from ascl_sweep.store.store import Store

    missing = [target for target in targets if not Path(target).exists()]
    known = Store(store_address).sweeps() if missing else {}
    for name in missing:
        if name in known:
            raise UsageError(
                f"{name}: no such file; give a sweep file, or `ascl-sweep run --resume {name}` "
                f"for the sweep in {store_address}"
            )


@_exit_on_signals()
def start(
    specs: list["SweepSpec"],
    store_address: str,
    ways: Ways,
    words: list[str],
    then: Callable[[], None] | None = None,
) -> None:
    """Print the plan, run the sweeps and exit with the matching code.

    Args:
        specs: The sweeps, run one after the other.
        store_address: Folder or URL of the results.
        ways: How to run the sweeps.
        words: The command and arguments that resume these sweeps.
        then: Called after the sweeps have ended, but not if an error aborted them.
    """
    from ascl_sweep.cli.plan import note_replaced, plan_lines
    from ascl_sweep.doctor.machine import require_here
    from ascl_sweep.executors import make_executor
    from ascl_sweep.runtime.callbacks.logger import check_loggers
    from ascl_sweep.runtime.sweeps import prepare_sweeps
    from ascl_sweep.store.store import Store

    store = Store(store_address)
    check_store(store, store_address, will_write=True)
    check_loggers(ways.loggers, store.address)
    executor = make_executor(ways.executor, ways.address)
    set_up_logging(driver_log(store))
    again = shlex.join(["ascl-sweep", *words, "--store", store_address, *ways.words()])
    prepared = prepare_sweeps(specs, store, retry=ways.retry)
    plan = prepared.plan()
    for line in plan_lines(plan):
        talk.print(line)
    note_replaced(prepared, store_address)
    if ways.dry_run:
        return
    if ways.address is None and plan.epochs:
        require_here(specs)
    if ways.ask and sys.stdin.isatty() and talk.is_terminal and plan.epochs:
        try:
            agreed = typer.confirm("Start?", default=True, err=True)
        except typer.Abort:
            agreed = False
        if not agreed:
            raise typer.Exit(INTERRUPTED)
    if prepared.reset:
        talk.print(f"retrying {plural(len(prepared.reset), 'run')}")
    end = _run(prepared, executor, ways, again)
    for problem in store.problems:
        logger.warning(problem)
        warn(problem)
    if then is not None:
        then()
    _finish(end, prepared, again)


def _run(prepared: "PreparedSweeps", executor: "Executor", ways: Ways, again: str) -> "End":
    from ascl_sweep.runtime.callbacks.base import Callbacks
    from ascl_sweep.runtime.callbacks.console import ConsoleCallback
    from ascl_sweep.runtime.callbacks.event_log import EventLog
    from ascl_sweep.runtime.controller import End, SweepFailed
    from ascl_sweep.runtime.sweeps import run_sweeps

    display = ConsoleCallback(talk)
    try:
        return run_sweeps(
            *(prepared, executor, Callbacks([display, EventLog()])),
            concurrency=ways.concurrency,
            wait=ways.wait,
            loggers=ways.loggers,
        )
    except SweepFailed as error:
        display.close()
        fail(
            f"all runs fail with the same error, so the sweep was stopped: {error}\n"
            f"fix the cause, then resume with:\n  {again}",
            RUN_FAILED,
        )
    except OSError as error:
        display.close()
        fail(
            f"{os_error_text(error)}; epochs that are not saved will be recovered from the "
            "checkpoints of the runs or trained again; "
            f"{_store_fix(prepared.store)}, then resume with:\n  {again}",
            NO_RESOURCES,
        )
    except KeyboardInterrupt:
        return End.INTERRUPTED
    finally:
        display.close()


def _store_fix(store: "Store") -> str:
    """Tell the user how to make a store writable again."""
    return "free disk space" if store.folder else REMOTE_STORE_FIX


def _finish(end: "End", prepared: "PreparedSweeps", again: str) -> NoReturn:
    """Report how the sweeps ended and how to resume them."""
    from ascl_sweep.runtime.controller import End

    names = [spec.name for spec in prepared.specs]
    rows = [row for row in prepared.history.rows.values() if set(row.sweeps) & set(names)]
    counts = Counter(row.state for row in rows)
    summary = ", ".join(f"{n} {state}" for state, n in sorted(counts.items())) or "no runs"
    talk.print(f"{escape(', '.join(names))}: {summary}")
    if end is End.DONE:
        raise typer.Exit(0)
    failed = [row for row in rows if row.state == RunState.FAILED]
    for row in failed[:5] if end is End.FAILED else ():
        talk.print(f"[red]{row.run_id}[/] {escape(row.error or '')}  ({escape(row.log or '')})")
    reason, code = {
        End.FAILED: (f"{plural(len(failed), 'run')} failed; fix the cause, then", RUN_FAILED),
        End.BUDGET: ("the budget is used up;", BUDGET),
        End.NO_DISK: (f"{_store_fix(prepared.store)}, then", NO_RESOURCES),
        End.STOPPED: ("ended by `ascl-sweep stop`;", INTERRUPTED),
        End.INTERRUPTED: ("interrupted, finished epochs are saved;", INTERRUPTED),
    }[end]
    talk.print(f"{reason} resume with:\n  {escape(again)}")
    raise typer.Exit(code)
