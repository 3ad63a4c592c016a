"""Typer app: all commands by help panel, in the order of `--help`."""

import inspect
import signal
from collections.abc import Callable
from typing import Annotated

import typer

from ascl_sweep import __version__
from ascl_sweep.cli import (
    best,
    compact,
    doctor,
    embed,
    export,
    fetch,
    gc,
    paper,
    plan,
    renamed,
    repair,
    report,
    run,
    schema,
    simulate,
    status,
    stop,
    submit,
    train,
    tsne,
    validate,
)
from ascl_sweep.cli.errors import handle_errors, set_debug
from ascl_sweep.cli.parsing import Command, Group

PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Run": (run.run, plan.plan, status.status, stop.stop, best.best),
    "Report": (report.report, tsne.tsne, embed.embed),
    "Train": (train.train, fetch.fetch),
    "Cluster": (submit.submit, doctor.doctor),
    "Store": (compact.compact, gc.gc, repair.repair, export.export),
    "Reproduce": (paper.paper,),
    "Author sweeps": (validate.validate, schema.schema, simulate.simulate),
}
OLD_NAMES: dict[str, Callable[..., None]] = {
    "resume": renamed.resume,
    "retry": renamed.retry,
    "replay": renamed.replay,
}

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run ablations and hyperparameter sweeps for self-supervised learning.",
)


def _help_text(command: Callable[..., None]) -> str:
    """Join the lines of each paragraph of the docstring: Typer would keep its line breaks."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


for _panel, _commands in PANELS.items():
    for _command in _commands:
        _add = app.command(cls=Command, help=_help_text(_command), rich_help_panel=_panel)
        _add(handle_errors(_command))
for _name, _command in OLD_NAMES.items():
    app.command(_name, cls=Command, hidden=True)(handle_errors(_command))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ascl-sweep {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks and write debug messages to the log.")
    ] = False,
) -> None:
    set_debug(debug)


def main() -> None:
    """Entry point of the `ascl-sweep` script."""
    try:
        app()
    finally:  # another Ctrl-C while Python exits would print a traceback
        signal.signal(signal.SIGINT, signal.SIG_IGN)
