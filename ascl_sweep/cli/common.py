"""Consoles, options and sweep loading shared by all commands. stdout is data, stderr is messages.

Commands import heavy modules inside their functions, so `--help` loads neither torch nor ray.
"""

import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ascl_sweep.errors import UsageError
from ascl_sweep.text import printable

if TYPE_CHECKING:
    from ascl_sweep.contracts import SweepRow
    from ascl_sweep.spec.sweep import SweepSpec
    from ascl_sweep.store.store import LeaseHolder, Store


class _PrintableConsole(Console):
    """Console that drops control characters: messages may quote logs and the rows of a store."""

    def render_str(self, text: str, **options: Any) -> Text:
        rendered = super().render_str(text, **options)
        rendered.plain = printable(rendered.plain)  # if done first, it could create a markup tag
        return rendered


talk = _PrintableConsole(stderr=True, highlight=False, soft_wrap=True)
data = _PrintableConsole(highlight=False)

Files = Annotated[list[Path], typer.Argument(help="Sweep files (YAML).", metavar="FILE")]
Names = Annotated[
    list[str] | None,
    typer.Argument(help="Names of sweeps in the store. Default: all.", metavar="SWEEP"),
]
StoreOption = Annotated[
    str, typer.Option("--store", help="Folder or URL (s3://…, gs://…) of the results.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Override a key, e.g. --set optim.lr=0.03. Repeatable.", metavar="KEY=VALUE"
    ),
]
Scale = Literal["full", "laptop"]
ScaleOption = Annotated[
    Scale, typer.Option("--scale", help="laptop: small data and network, minutes on a CPU.")
]
UntilDecided = Annotated[
    bool,
    typer.Option(
        "--until-decided",
        help="Start with 3 seeds and add seeds only where a comparison is undecided; up to 10 "
        "seeds per arm, or more if `seeds` lists more.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]
Address = Annotated[
    str | None,
    typer.Option(help="Ray cluster: auto, HOST:PORT or ray://… Default: a private local Ray."),
]
Concurrency = Annotated[
    int | None, typer.Option(min=1, help="Maximum number of parallel runs. Default: all that fit.")
]
Wait = Annotated[
    bool,
    typer.Option("--wait", help="Wait while another driver uses the store, instead of failing."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Start without asking for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and exit.")]


MOST_SEEDS = 10
"""Largest number of seeds with `--until-decided`, if a sweep does not list more."""


def load_specs(
    files: list[Path], overrides: list[str], scale: Scale, *, until_decided: bool = False
) -> list["SweepSpec"]:
    """Read sweep files; raises ConfigError with the issues of all files.

    `until_decided` replaces listed seeds by a plan of looks; files with such a plan keep theirs.
    """
    from ascl.errors import ConfigError, Issue
    from ascl_sweep.reproduction.compare import TABLES
    from ascl_sweep.spec.sweep import load_sweep

    specs: list[SweepSpec] = []
    issues: list[Issue] = []
    for file in files:
        try:
            spec = load_sweep(file, overrides, scale, paper_tables=TABLES)
            if until_decided and not spec.looks:
                most = max(MOST_SEEDS, len(spec.seed_list))
                seeds = f"seeds={{until: decided, at_most: {most}}}"
                spec = load_sweep(file, [*overrides, seeds], scale, paper_tables=TABLES)
            specs.append(spec)
        except ConfigError as config_error:
            problem = _wrong_sweep_file(file)
            issues += [Issue("", problem)] if problem else config_error.issues
    for name, count in Counter(spec.name for spec in specs).items():
        if count > 1:
            raise UsageError(
                f"sweep names must be unique, got {name!r} in {count} files; rename one (`name:`), "
                "or run the files separately"
            )
    if issues:
        raise ConfigError(issues)
    return specs


def _wrong_sweep_file(file: Path) -> str | None:
    """Return the problem with a file that is not a sweep file; None if it looks like one."""
    if not file.exists():
        return f"{file}: no such file; give a sweep file"
    if file.is_file() and not file.read_bytes().strip():
        return f"{file}: the file is empty; a sweep file needs at least `name` and `space`"
    if kind_of_file(file) == "config":
        return f"{file} is the config of one run; use `ascl-sweep train {file}`"
    return None


def kind_of_file(file: Path) -> Literal["sweep", "config"] | None:
    """Tell a sweep file from the config of a run by the keys that only one of them has."""
    from ascl.config import RunConfig
    from ascl.errors import ConfigError
    from ascl.yaml_io import read_yaml
    from ascl_sweep.spec.sweep import SweepSpec

    try:
        given, _ = read_yaml(file)
    except ConfigError:
        return None
    keys = {str(key).split(".")[0] for key in given} if isinstance(given, Mapping) else set()
    of_sweep = bool(keys & (SweepSpec.model_fields.keys() - RunConfig.model_fields.keys()))
    of_config = bool(keys & (RunConfig.model_fields.keys() - SweepSpec.model_fields.keys()))
    if of_sweep == of_config:
        return None
    return "sweep" if of_sweep else "config"


def check_store(store: "Store", address: str, *, will_write: bool) -> None:
    """Raise UsageError if a local store is not a folder, or cannot be created or written to."""
    folder = store.folder
    if folder is None:
        return
    if folder.exists():
        if not folder.is_dir():
            raise UsageError(f"--store {address} is a file; give a folder or URL")
        if will_write and not os.access(folder, os.W_OK | os.X_OK):
            raise UsageError(f"--store {address} is not writable; choose another --store")
        return
    if not will_write:
        return
    parent = next(path for path in folder.parents if path.exists())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".ascl-sweep-", dir=parent))
    except OSError as error:
        raise UsageError(
            f"--store {address} cannot be created: {error.strerror} ({parent}); choose another "
            "--store"
        ) from error


def select_sweeps(store: "Store", names: Iterable[str] | None) -> dict[str, "SweepRow"]:
    """Return the named sweeps of a store, or all; raises UsageError if there is none."""
    return store.select_sweeps(store.sweeps(), names)


def recorded_specs(store: "Store", names: Iterable[str] | None) -> list["SweepSpec"]:
    """Return the specs of a store's sweeps as they were last run."""
    from ascl_sweep.spec.sweep import parse_sweep

    return [
        parse_sweep(r.text, file=r.file, overrides=r.overrides, scale=r.scale)  # type: ignore[arg-type]
        for r in select_sweeps(store, names).values()
    ]


def override_words(
    overrides: list[str] | None, scale: str, *, until_decided: bool = False
) -> list[str]:
    """Return the command-line options for these overrides and this scale."""
    words = [word for override in overrides or [] for word in ("--set", override)]
    words += ["--until-decided"] if until_decided else []
    return words + (["--scale", scale] if scale != "full" else [])


def warn(message: str) -> None:
    talk.print(f"[yellow]warning:[/] {escape(message)}")


def note_wait(driver: "LeaseHolder") -> None:
    """Report a driver that no longer renews its lease."""
    talk.print(
        f"the last driver of the store did not end properly ({escape(str(driver))}); waiting up to "
        "90 seconds until its lease expires"
    )


def progress_bar(unit: str) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        console=talk,
        transient=True,
        disable=not talk.is_terminal,
    )


@contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP (a closed terminal) like Ctrl-C."""

    def interrupt(signum: int, frame: object) -> NoReturn:
        if signum == signal.SIGHUP:  # both shell and kernel send it; handle the first
            signal.signal(signum, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {
        s: signal.signal(s, interrupt)
        for s in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(s) != signal.SIG_IGN  # nohup ignores SIGHUP
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
