"""The command line's app, and what its commands share. stdout is data, stderr is talk.

Commands import what they need when they run: `--help` loads neither torch nor ray.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from ascl_sweep import __version__

if TYPE_CHECKING:
    from ascl_sweep.ledger import Ledger, SweepRow

RUN_FAILED, BAD_INPUT, BUDGET, NO_RESOURCES, INTERRUPTED = 1, 2, 3, 4, 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Ablations and hyperparameter sweeps for self-supervised learning.",
)
talk = Console(stderr=True, highlight=False, soft_wrap=True)
data = Console(highlight=False)

Files = Annotated[list[Path], typer.Argument(help="Sweep files.", metavar="FILE")]
Names = Annotated[
    list[str] | None,
    typer.Argument(help="Sweeps of the store; all if absent.", metavar="SWEEP"),
]
StoreOption = Annotated[
    str, typer.Option("--store", help="Where results are kept: a folder, or s3://…, gs://…")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Change a key: --set epochs=5 --set optim.lr=0.03.", metavar="KEY=VALUE"
    ),
]
ScaleOption = Annotated[
    str,
    typer.Option(
        "--scale", help="laptop: small data and net, minutes on a CPU.", metavar="full|laptop"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


def sweeps_in(ledger: "Ledger", names: list[str] | None) -> dict[str, "SweepRow"]:
    """The store's sweeps of these names, or all; raises ValueError if there is none."""
    from ascl.faults import unknown_name

    known = ledger.sweeps()
    if not known:
        raise ValueError(
            f"there is no sweep in {ledger.address}; start one with `ascl-sweep run FILE`, "
            "or say where with --store"
        )
    for name in names or []:
        if name not in known:
            raise ValueError(unknown_name("sweep", name, known))
    return {name: known[name] for name in names or known}


def main() -> None:
    """Entry point of the `ascl-sweep` script."""
    app()


def fail(message: str, code: int) -> NoReturn:
    """Say what is wrong, one sentence a line, and exit."""
    talk.print(f"[bold red]error:[/] {escape(message)}")
    raise typer.Exit(code)


@contextmanager
def sentences() -> Iterator[None]:
    """Turn what a user or a machine can cause into a sentence and an exit code."""
    try:
        yield
    except ValueError as error:  # our own checks: config, data, checkpoint
        fail(str(error), BAD_INPUT)
    except MemoryError as error:
        fail(f"out of memory: {error}; try a smaller batch_size or encoder.width", NO_RESOURCES)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fail(f"{where}{error.strerror or error}", NO_RESOURCES)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ascl-sweep {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a polite kill (SIGTERM) and a closed terminal (SIGHUP) end things as Ctrl-C does."""

    def interrupt(signum: int, frame: object) -> NoReturn:
        if signum == signal.SIGHUP:  # shell and kernel both send it: once is enough
            signal.signal(signum, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {
        s: signal.signal(s, interrupt)
        for s in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(s) != signal.SIG_IGN  # as nohup wants it
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
