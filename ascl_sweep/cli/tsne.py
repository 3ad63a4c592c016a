"""`ascl-sweep tsne`: plot the features of runs side by side."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ascl_sweep.cli.common import StoreOption, talk
from ascl_sweep.cli.embed import (
    RootOption,
    SplitOption,
    checkpoint_of,
    embedded,
    list_runs,
)
from ascl_sweep.errors import UsageError


def tsne(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Runs as for `embed`, or .npz files written by `embed`.", metavar="RUN|FILE.npz"
        ),
    ],
    out: Annotated[Path, typer.Option(help="Image file to write.", metavar="FILE.svg|FILE.png")],
    store_address: StoreOption = "results",
    split: SplitOption = "test",
    root: RootOption = None,
) -> None:
    """Plot the features of runs side by side with t-SNE, colored by class.

    Uses at most 2,000 images: the same for every run, and equally many of each class.
    """
    if out.suffix not in (".svg", ".png"):
        raise UsageError(f"--out must end in .svg or .png, got {out}")
    runs = list_runs(runs, store_address)
    checkpoints = {
        run: checkpoint_of(run, store_address) for run in runs if not run.endswith(".npz")
    }

    from ascl_sweep.report.figures.matplotlib_backend import png, svg
    from ascl_sweep.report.figures.tsne import read, tsne_figure
    from ascl_sweep.store.filesystem import StoreFiles

    for run in runs:
        if run not in checkpoints and not Path(run).is_file():
            raise UsageError(f"there is no file {run}; create it with `ascl-sweep embed RUN`")
    found = [
        embedded(checkpoints[run], split, root) if run in checkpoints else read(Path(run))
        for run in runs
    ]
    with talk.status("t-SNE …"):
        figure = tsne_figure(found)
        content = svg(figure).encode() if out.suffix == ".svg" else png(figure)
    StoreFiles(out.absolute().parent).write(out.name, content)
    talk.print(f"wrote {escape(str(out))}: {escape(figure.caption)}")
