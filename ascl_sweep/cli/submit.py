"""`ascl-sweep submit`: run sweeps as a job on a Ray cluster and stream the driver's output."""

import shlex
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.markup import escape

from ascl_sweep.cli.common import (
    Concurrency,
    Files,
    Overrides,
    ScaleOption,
    UntilDecided,
    interruptible,
    load_specs,
    override_words,
    talk,
    warn,
)
from ascl_sweep.cli.errors import (
    BAD_INPUT,
    BUDGET,
    INTERNAL,
    INTERRUPTED,
    NO_RESOURCES,
    RUN_FAILED,
    fail,
)
from ascl_sweep.errors import ClusterError, ResourceError, UsageError

if TYPE_CHECKING:
    from ascl_sweep.executors.ray.jobs import JobDetails, Jobs
    from ascl_sweep.executors.ray.submission import Submission
    from ascl_sweep.spec.sweep import SweepSpec

OWN_CODES = (0, RUN_FAILED, BAD_INPUT, BUDGET, NO_RESOURCES, INTERNAL, INTERRUPTED)
ATTEMPTS, PAUSE_SECONDS = 6, 15.0  # to reconnect after the connection is lost


def submit(
    files: Files,
    cluster: Annotated[
        Path | None, typer.Option(help="Cluster file passed to `ray up`.", metavar="FILE.yaml")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Dashboard URL of the cluster, instead of --cluster.",
            metavar="http://127.0.0.1:8265",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="Folder or URL (s3://…, gs://…) of the results. Default: provider.results of the "
            "cluster file."
        ),
    ] = None,
    overrides: Overrides = None,
    scale: ScaleOption = "full",
    until_decided: UntilDecided = False,
    concurrency: Concurrency = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Exit once the job is submitted.")
    ] = False,
) -> None:
    """Submit sweeps to a Ray cluster and stream the driver's output.

    Ctrl-C detaches and the sweeps keep running. Repeat the command to reattach.

    Only the sweep files are uploaded: code and datasets must be on the cluster. `status`, `stop`
    and `report` work from this machine with --store.
    """
    from ascl_sweep.executors.ray.address import exposes_token
    from ascl_sweep.executors.ray.submission import ClusterFile, build_submission, check_store

    if (cluster is None) == (address is None):
        raise UsageError("submit needs one cluster; give --cluster FILE.yaml or --address URL")
    if address is not None and not address.startswith(("http://", "https://")):
        raise UsageError(
            "--address must be a dashboard URL such as http://127.0.0.1:8265, got "
            f"{address}; if the dashboard is not reachable from here, use --cluster"
        )
    file = ClusterFile.read(cluster) if cluster else None
    given = overrides or []
    specs = load_specs(files, given, scale, until_decided=until_decided)
    if changes := data_overrides(specs, file.data if file else None):
        specs = load_specs(files, [*given, *changes], scale, until_decided=until_decided)
    store = check_store(store or (file.results if file else None))
    limit = ["--concurrency", str(concurrency)] if concurrency else []
    again = ["ascl-sweep", "submit", *map(str, files)]
    again += override_words(given, scale, until_decided=until_decided)
    again += ["--cluster", str(cluster)] if cluster else ["--address", str(address)]
    words = override_words([*given, *changes], scale, until_decided=until_decided)
    watch = _Watch(
        submission=build_submission(specs, store, [*words, *limit]),
        cluster=cluster,
        address=address,
        store=store,
        again=shlex.join([*again, *limit, "--store", store]),
    )
    try:
        if address is not None and exposes_token(address):
            warn(
                f"the token is sent unencrypted to {address}; use --cluster, or forward the "
                "dashboard's port over SSH and give --address http://127.0.0.1:PORT"
            )
        with interruptible():
            info = watch.run(detach)
    except (ClusterError, ResourceError) as error:
        fail("; ".join(filter(None, [str(error), watch.how_to_reattach()])), NO_RESOURCES)
    except KeyboardInterrupt:
        talk.print(f"disconnected; {escape(watch.how_to_reattach() or 'no job was submitted')}")
        raise typer.Exit(INTERRUPTED) from None
    _finish(info, watch, [spec.name for spec in specs])


def data_overrides(specs: list["SweepSpec"], data: str | None) -> list[str]:
    """Return the overrides that set data.root on a cluster; raises UsageError if it is unknown."""
    from ascl_sweep.doctor.checks import datasets_of

    wanted = [pair for spec in specs for pair in datasets_of(spec)]
    relative = [(name, root) for name, root in wanted if not root.startswith(("/", "~"))]
    if not relative:
        return []
    if data is None:
        name, root = relative[0]
        raise UsageError(
            f"data.root must be an absolute path (or ~/…) on the cluster's nodes, got {root!r} for "
            f"{name}; add e.g. --set data.root=~/data, or set provider.data in the cluster file"
        )
    for name, root in wanted:
        if (name, root) not in relative and root != data:
            raise UsageError(
                f"sweeps submitted together must have their data in one folder, got {root} for "
                f"{name} and {data} (provider.data) for {relative[0][0]}; submit them one by one, "
                f"or add --set data.root={shlex.quote(data)}"
            )
    return [f"data.root={data}"]


@dataclass
class _Watch:
    """One call of `submit`, which reconnects to the cluster when the connection is lost."""

    submission: "Submission"
    cluster: Path | None
    address: str | None
    store: str
    again: str
    """The command that reattaches to the job."""
    requested: bool = False
    """Whether the job may have been submitted."""
    job: str | None = None
    shown: int = 0
    """Characters of the job's log that were printed."""

    def run(self, detach: bool) -> "JobDetails | None":
        """Submit or find the job and stream its log; returns None with `detach`."""
        from ascl_sweep.executors.ray.forward import Unreachable, forward_dashboard
        from ascl_sweep.executors.ray.jobs import Jobs

        talk.print(f"connecting to {escape(str(self.cluster or self.address))} …")
        failures = 0
        while True:
            before = self.shown
            try:
                with (
                    forward_dashboard(self.cluster)
                    if self.cluster
                    else nullcontext(str(self.address))
                ) as address:
                    return self._follow(Jobs(address), detach)
            except Unreachable as error:
                failures = failures + 1 if self.shown == before else 1
                if self.job is None or failures > ATTEMPTS:
                    raise
                wait = f"the sweep keeps running; reconnecting in {PAUSE_SECONDS:g} s …"
                talk.print(f"{escape(str(error))}; {wait}")
                time.sleep(PAUSE_SECONDS)

    def _follow(self, jobs: "Jobs", detach: bool) -> "JobDetails | None":
        from ascl_sweep.executors.ray.jobs import is_of_driver

        if self.job is None:
            self.requested = True
            self.job, found = jobs.start(self.submission)
            state = "is already running; its log from the start:" if found else "is submitted"
            talk.print(f"job {self.job} {state}")
        if detach:
            return None
        for text in jobs.follow(self.job, after=self.shown):
            self.shown += len(text)
            for line in filter(is_of_driver, text.splitlines()):
                talk.print(escape(line))
        return jobs.get_info(self.job)

    def how_to_reattach(self) -> str:
        """Return how to watch, stop and reattach to the job; empty if no job was submitted."""
        if self.job is None:
            attach = f"the job may have been submitted; to attach to it, run\n  {self.again}"
            return attach if self.requested else ""
        at = f"--store {shlex.quote(self.store)}"
        return (
            f"the sweep keeps running; watch it with\n  ascl-sweep status --watch {at}\n"
            f"stop it with\n  ascl-sweep stop {at}\n(or `ray job stop {self.job}` on the head node "
            f"if it has not started yet), and reattach with\n  {self.again}"
        )


def _finish(info: "JobDetails | None", watch: _Watch, names: list[str]) -> NoReturn:
    """Exit with the exit code of the driver."""
    if info is None:
        talk.print(escape(watch.how_to_reattach()))
        raise typer.Exit(0)
    code, resume = info.driver_exit_code, f"resume from this machine with:\n  {watch.again}"
    if code == 0:
        store = shlex.quote(watch.store)
        talk.print(escape(f"see `ascl-sweep report {' '.join(names)} --store {store}`"))
    elif code in OWN_CODES:
        talk.print(escape(resume))
    elif info.status == "STOPPED":
        talk.print(f"job {watch.job} was stopped on the cluster; {escape(resume)}")
        code = INTERRUPTED
    else:
        lines = (info.message or "").strip().splitlines() or ["Ray gives no reason"]
        why = lines[0].rstrip(".") if code is None else f"the driver exited with code {code}"
        fail(f"job {watch.job} failed: {why}; fix the cause, then {resume}", NO_RESOURCES)
    raise typer.Exit(code)
