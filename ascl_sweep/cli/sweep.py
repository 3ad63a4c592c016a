"""`ascl-sweep run`, `resume`, `retry` and `stop`: sweeps, from start to end."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.markup import escape

from ascl_sweep.cli.app import (
    BAD_INPUT,
    BUDGET,
    INTERRUPTED,
    NO_RESOURCES,
    RUN_FAILED,
    Files,
    Names,
    Overrides,
    ScaleOption,
    StoreOption,
    app,
    fail,
    sentences,
    sweeps_in,
    talk,
)

if TYPE_CHECKING:
    from ascl_sweep.driver import End
    from ascl_sweep.ledger import Ledger
    from ascl_sweep.spec import SweepSpec

Address = Annotated[
    str | None, typer.Option(help="A Ray cluster, e.g. auto; a private local Ray if absent.")
]
Concurrency = Annotated[
    int | None, typer.Option(min=1, help="Runs at once; all that fit if absent.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait while another driver uses the store.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before starting.")]


@dataclass(frozen=True)
class Ways:
    """How sweeps are to be run."""

    address: str | None = None
    concurrency: int | None = None
    wait: bool = False
    loggers: tuple[str, ...] = ()


@app.command()
def run(
    files: Files,
    store: StoreOption = "results",
    address: Address = None,
    concurrency: Concurrency = None,
    overrides: Overrides = None,
    scale: ScaleOption = "full",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    yes: Yes = False,
    wait: Wait = False,
    log: Annotated[
        list[str] | None, typer.Option("--log", help="Also to tensorboard, wandb or mlflow.")
    ] = None,
) -> None:
    """Run what the sweeps want and the store lacks; called again, it goes on."""
    with sentences():
        from ascl_sweep.cli.plan import load_specs

        specs = load_specs(files, overrides or [], scale)
        words = ["run", *map(str, files), *flags(overrides or [], scale)]
        words += [word for name in log or [] for word in ("--log", name)]
        ways = Ways(address, concurrency, wait, tuple(log or []))
        start(specs, store, ways, words, dry_run=dry_run, ask=not yes)


@app.command()
def resume(
    names: Names = None,
    store: StoreOption = "results",
    address: Address = None,
    concurrency: Concurrency = None,
    wait: Wait = False,
) -> None:
    """Go on with sweeps that the store knows; all of them if none is named."""
    with sentences():
        specs = _recorded(store, names)
        words = ["resume", *(names or [])]
        start(specs, store, Ways(address, concurrency, wait), words)


@app.command()
def retry(
    names: Names = None,
    failed: Annotated[bool, typer.Option("--failed", help="Runs that failed.")] = False,
    diverged: Annotated[bool, typer.Option("--diverged", help="Runs that diverged.")] = False,
    store: StoreOption = "results",
    address: Address = None,
    concurrency: Concurrency = None,
) -> None:
    """Try runs again that came to nothing, and go on with their sweeps."""
    with sentences():
        if not failed and not diverged:
            fail("say which runs to try again: --failed, --diverged or both", BAD_INPUT)
        from ascl_sweep.ledger import Ledger

        ledger = Ledger(store)
        chosen = sweeps_in(ledger, names)
        states = {"failed": failed, "diverged": diverged}
        again = [
            row
            for row in ledger.runs().values()
            if states.get(row.state) and set(row.sweeps) & chosen.keys()
        ]
        if not again:
            talk.print("nothing to try again")
            return
        with ledger.writer() as writer:
            for row in again:
                writer.put_run(replace(row, state="planned", error=None))
        wanted = {name for row in again for name in row.sweeps} & chosen.keys()
        talk.print(f"trying {len(again)} runs again")
        specs = _recorded(store, sorted(wanted))
        start(specs, store, Ways(address, concurrency), ["resume", *sorted(wanted)])


@app.command()
def stop(store: StoreOption = "results") -> None:
    """Ask the driver of a store to stop: each run finishes its epoch, and is kept."""
    with sentences():
        from ascl_sweep.ledger import Ledger

        ledger = Ledger(store)
        driver = ledger.driver()
        if driver is None:
            fail(f"no sweep is running in {store}; see `ascl-sweep status`", BAD_INPUT)
        ledger.request_stop()
        talk.print(
            f"asked process {driver.pid} on {escape(driver.host)} to stop; "
            "it does once each run has finished its epoch"
        )


def _recorded(store: str, names: list[str] | None) -> list["SweepSpec"]:
    """The specs of sweeps as they were last run."""
    from ascl_sweep.ledger import Ledger
    from ascl_sweep.spec import spec_of

    rows = sweeps_in(Ledger(store), names)
    return [
        spec_of(r.text, file=r.file, overrides=r.overrides, scale=r.scale)  # type: ignore[arg-type]
        for r in rows.values()
    ]


def flags(overrides: list[str], scale: str) -> list[str]:
    flags = [word for override in overrides for word in ("--set", override)]
    return flags + (["--scale", scale] if scale != "full" else [])


def start(
    specs: list["SweepSpec"],
    store: str,
    ways: Ways,
    words: list[str],
    *,
    dry_run: bool = False,
    ask: bool = False,
    then: Callable[[], None] | None = None,
) -> None:
    """Run sweeps, with a look at the plan first; the exit code says how they ended.

    `then` is done before that, however they ended.
    """
    from ascl_sweep.cli.plan import plan_lines, plan_of
    from ascl_sweep.ledger import Ledger

    ledger = Ledger(store)
    again = ["ascl-sweep", *words, "--store", store]
    again += ["--address", ways.address] if ways.address else []
    again += ["--concurrency", str(ways.concurrency)] if ways.concurrency else []
    plan = plan_of(specs, ledger)
    for line in plan_lines(plan):
        talk.print(line)
    if dry_run:
        return
    if ask and sys.stdin.isatty() and talk.is_terminal and plan.epochs:
        try:
            agreed = typer.confirm("Start?", default=True, err=True)
        except typer.Abort:
            agreed = False
        if not agreed:
            raise typer.Exit(INTERRUPTED)
    end = _run(specs, ledger, ways, again)
    for problem in ledger.problems:
        talk.print(f"[yellow]warning:[/] {escape(problem)}")
    if then is not None:
        then()
    _finish(end, ledger, [spec.name for spec in specs], shlex.join(again))


def _run(specs: list["SweepSpec"], ledger: "Ledger", ways: Ways, again: list[str]) -> "End":
    from ascl_sweep.driver import End, SweepFailed
    from ascl_sweep.live import Display
    from ascl_sweep.loggers import check_loggers
    from ascl_sweep.room import NoResources
    from ascl_sweep.search import run_sweeps

    check_loggers(ways.loggers, ledger.address)
    display = Display(talk)
    try:
        return run_sweeps(specs, ledger, display, **asdict(ways))
    except NoResources as error:
        display.close()
        fail(str(error), NO_RESOURCES)
    except SweepFailed as error:
        display.close()
        fail(
            f"every run fails alike, so the sweep was ended: {error}\n"
            f"mend it, then go on with:\n  {shlex.join(again)}",
            RUN_FAILED,
        )
    except OSError as error:
        display.close()
        where = f"{error.filename}: " if error.filename else ""
        fail(
            f"{where}{error.strerror or error}; what was not recorded is recovered from the runs' "
            f"own checkpoints; {_way_out(ledger)}, then go on with:\n  {shlex.join(again)}",
            NO_RESOURCES,
        )
    except KeyboardInterrupt:
        return End.INTERRUPTED
    finally:
        display.close()


def _way_out(ledger: "Ledger") -> str:
    """What to do about a store that cannot be written."""
    return "see that the store answers" if ledger.far else "make room on the disk"


def _finish(end: "End", ledger: "Ledger", names: list[str], again: str) -> NoReturn:
    """Say how it ended, and how to go on."""
    from collections import Counter

    from ascl.patience import PATIENCE, patiently
    from ascl_sweep.driver import End

    def waiting(error: OSError) -> None:
        talk.print(escape(f"{ledger.address}: {error}; waiting for it"))

    seconds = PATIENCE if ledger.far else 0
    found = patiently(ledger.runs, seconds=seconds, on_wait=waiting)
    rows = [row for row in found.values() if set(row.sweeps) & set(names)]
    counts = Counter(row.state for row in rows)
    summary = ", ".join(f"{n} {state}" for state, n in sorted(counts.items())) or "no runs"
    talk.print(f"{escape(', '.join(names))}: {summary}")
    go_on = f"go on with:\n  {escape(again)}"
    match end:
        case End.DONE:
            raise typer.Exit(0)
        case End.FAILED:
            failed = [row for row in rows if row.state == "failed"]
            for row in failed[:5]:
                talk.print(
                    f"[red]{row.run_id}[/] {escape(row.error or '')}  ({escape(row.log or '')})"
                )
            talk.print(f"{len(failed)} runs failed; mend the cause, then {go_on}")
            raise typer.Exit(RUN_FAILED)
        case End.BUDGET:
            talk.print(f"the budget is used up; {go_on}")
            raise typer.Exit(BUDGET)
        case End.NO_DISK:
            talk.print(f"{_way_out(ledger)}, then {go_on}")
            raise typer.Exit(NO_RESOURCES)
        case End.STOPPED:
            talk.print(f"stopped as asked; {go_on}")
            raise typer.Exit(INTERRUPTED)
        case End.INTERRUPTED:
            talk.print(f"interrupted, nothing is lost; {go_on}")
            raise typer.Exit(INTERRUPTED)
