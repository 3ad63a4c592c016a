"""`ascl-sweep submit`: a sweep on a cluster, driven there and shown here."""

import shlex
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
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
    Overrides,
    ScaleOption,
    app,
    fail,
    interruptible,
    sentences,
    talk,
)
from ascl_sweep.cli.sweep import Concurrency, flags

if TYPE_CHECKING:
    from ascl_sweep.jobs import Jobs, Outcome, Submission
    from ascl_sweep.spec import SweepSpec

OWN_CODES = (0, RUN_FAILED, BAD_INPUT, BUDGET, NO_RESOURCES, INTERRUPTED)
PAUSES = (2, 5, 10, 20, 40)  # seconds between attempts to get a broken line back
LOOK_SECONDS = 5.0  # between looks at the store


@app.command()
def submit(
    files: Files,
    cluster: Annotated[
        Path | None, typer.Option(help="The file that `ray up` was given.", metavar="FILE.yaml")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Or its dashboard, e.g. at the end of an ssh tunnel.",
            metavar="http://127.0.0.1:8265",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="Where results go; provider.results of the cluster file if absent."),
    ] = None,
    overrides: Overrides = None,
    scale: ScaleOption = "full",
    concurrency: Concurrency = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Do not stay to watch once it has started.")
    ] = False,
) -> None:
    """Run sweeps on a cluster, and watch; it goes on if you leave, and called again you are back.

    Uploads nothing but the sweep files: the cluster has the code and the data. `status`, `stop` and
    `report` work from here, with --store.
    """
    with sentences():
        from ascl_sweep.cli.plan import load_specs
        from ascl_sweep.jobs import ClusterFile, check_store, submission_of
        from ascl_sweep.room import NoResources

        if (cluster is None) == (address is None):
            raise ValueError("submit goes to one cluster; say --cluster FILE.yaml or --address URL")
        if address is not None and not address.startswith(("http://", "https://")):
            raise ValueError(
                "--address must be that of a dashboard, e.g. http://127.0.0.1:8265, got "
                f"{address}; where it is not in reach, use --cluster"
            )
        file = ClusterFile.read(cluster) if cluster else None
        specs = load_specs(files, overrides or [], scale)
        changes = [*(overrides or []), *_where_data_lie(specs, file.data if file else None)]
        specs = load_specs(files, changes, scale)
        store = check_store(store or (file.results if file else None))
        words = flags(changes, scale)
        words += ["--concurrency", str(concurrency)] if concurrency else []
        again = ["ascl-sweep", "submit", *map(str, files), *flags(overrides or [], scale)]
        again += ["--cluster", str(cluster)] if cluster else ["--address", str(address)]
        again += ["--concurrency", str(concurrency)] if concurrency else []
        watch = _Watch(
            submission=submission_of(specs, store, words),
            cluster=cluster,
            address=address,
            store=store,
            names=[spec.name for spec in specs],
            again=shlex.join([*again, "--store", store]),
        )
        try:
            outcome = watch.run(detach)
        except NoResources as error:
            fail(f"{error}{watch.state()}", NO_RESOURCES)
        _finish(outcome, watch)


def _where_data_lie(specs: list["SweepSpec"], data: str | None) -> list[str]:
    """What to change so that a cluster finds the datasets; raises ValueError if nobody says."""
    from ascl_sweep.checks.sweeps import datasets_of

    wanted = [pair for spec in specs for pair in datasets_of(spec)]
    found = [(name, root) for name, root in wanted if root.startswith(("/", "~"))]
    lost = [pair for pair in wanted if pair not in found]
    if not lost:
        return []
    if data is None:
        name, root = lost[0]
        raise ValueError(
            f"data.root must be a place on the cluster's nodes, got {root!r} for {name}; add e.g. "
            "--set data.root=~/data, or say provider.data in the cluster file"
        )
    for name, root in found:
        if root != data:
            raise ValueError(
                f"sweeps submitted together must have their data in one place, got {root} for "
                f"{name} and {data} (provider.data) for {lost[0][0]}; submit them one by one, or "
                f"add --set data.root={shlex.quote(data)}"
            )
    return [f"data.root={data}"]


@dataclass
class _Watch:
    """One call of `submit`, over as many lines to the cluster as it takes."""

    submission: "Submission"
    cluster: Path | None
    address: str | None
    store: str
    names: list[str]
    again: str
    """The command that comes back to it."""
    job: str | None = None
    asked: str | None = None
    """The id that was asked for: until it is `job`, nobody has confirmed it."""
    shown: int = 0
    """Characters of the job's log."""
    losses: int = 0
    """How often the line was lost since it last brought something."""

    def run(self, detach: bool) -> "Outcome | None":
        """Start the job, or find it, and show its lines to the end; None if we left before."""
        from ascl_sweep.jobs import Unreachable, reached

        talk.print(f"connecting to {escape(str(self.cluster or self.address))} …")
        try:
            with interruptible(), _panel(self.store, self.names):
                while True:
                    try:
                        with reached(self.cluster, self.address) as jobs:
                            return self._attend(jobs, detach)
                    except Unreachable as error:
                        if self.job is None or self.losses == len(PAUSES):
                            raise
                        pause = PAUSES[self.losses]
                        self.losses += 1
                        talk.print(
                            f"{escape(str(error))}; the sweep does without it; back in {pause} s …"
                        )
                        time.sleep(pause)
        except KeyboardInterrupt:
            talk.print(escape(f"you leave{self.state() or ' before anything was started'}"))
            raise typer.Exit(INTERRUPTED) from None

    def _attend(self, jobs: "Jobs", detach: bool) -> "Outcome | None":
        if self.job is None:
            self.job, found = jobs.start(self.submission, self._asking)
            if found:
                talk.print(f"{self.job} is running already; this is what it said")
            else:
                talk.print(f"submitted as job {self.job}")
        if detach:
            outcome = jobs.started(self.job)
            return outcome if outcome.over else None
        from ascl_sweep.jobs import ours

        for text in jobs.follow(self.job, after=self.shown):
            self.losses = 0 if text else self.losses
            self.shown += len(text)
            for line in filter(ours, text.splitlines()):
                talk.print(escape(line))
        return jobs.outcome(self.job)

    def _asking(self, job: str | None) -> None:
        self.asked = job

    def state(self) -> str:
        """What becomes of the sweep without us, and the ways to it; empty if there is none."""
        if self.job is not None:
            return f"; the sweep goes on{self.ways()}"
        if self.asked is not None:
            return f"; the sweep may have been started as job {self.asked}{self.ways()}"
        return ""

    def ways(self) -> str:
        """How to watch, to stop and to come back, a line each."""
        at = f"--store {shlex.quote(self.store)}"
        end = f"ray job stop {self.job or self.asked}"
        if self.cluster is not None:
            end = shlex.join(["ray", "exec", str(self.cluster), end])
        else:
            end = f"RAY_AUTH_MODE=token {end} --address {shlex.quote(str(self.address))}"
        return (
            f"; watch it with\n  ascl-sweep status --watch {at}\nstop it with\n"
            f"  ascl-sweep stop {at}\nor, as long as `status` shows no driver yet, with\n"
            f"  {end}\nand come back to it with\n  {self.again}"
        )


@contextmanager
def _panel(store: str, names: list[str]) -> Iterator[None]:
    """Below the lines of a terminal what `status` shows, if this machine can read the store."""
    if not talk.is_terminal:
        yield
        return
    from rich.live import Live

    from ascl_sweep.cli.look import status_of, status_picture

    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            with suppress(ValueError, OSError):  # nothing is there yet, or it is not ours to read
                shown = status_picture(status_of(store, names))
                if not over.is_set():
                    live.update(shown, refresh=True)

    with Live(console=talk, auto_refresh=False, transient=True) as live:
        # Not waited for at the end: a store that does not answer would hold us up.
        threading.Thread(target=look, daemon=True).start()
        try:
            yield
        finally:
            over.set()


def _finish(outcome: "Outcome | None", watch: _Watch) -> NoReturn:
    """The driver's exit code is ours."""
    if outcome is None:
        talk.print(f"the sweep goes on without you{escape(watch.ways())}")
        raise typer.Exit(0)
    at = f"--store {shlex.quote(watch.store)}"
    go_on = f"go on from here with:\n  {watch.again}"
    if outcome.code == 0:
        talk.print(f"see `ascl-sweep report {escape(' '.join(watch.names))} {escape(at)}`")
        raise typer.Exit(0)
    if outcome.code in OWN_CODES:
        talk.print(escape(go_on))
        raise typer.Exit(outcome.code)
    if outcome.status == "STOPPED":
        talk.print(f"job {watch.job} was stopped on the cluster; {escape(go_on)}")
        raise typer.Exit(INTERRUPTED)
    lines = outcome.message.strip().splitlines() or ["Ray does not say why"]
    why = lines[0] if outcome.code is None else f"the driver ended with code {outcome.code}"
    fail(f"job {watch.job} failed: {why.rstrip('.')}; mend the cause, then {go_on}", NO_RESOURCES)
