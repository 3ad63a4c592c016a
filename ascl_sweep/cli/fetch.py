"""`ascl-sweep fetch`: download a dataset."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ascl_sweep.cli.common import interruptible, progress_bar, talk
from ascl_sweep.cli.errors import INTERRUPTED


def fetch(
    dataset: Annotated[
        str,
        typer.Argument(
            help="cifar10, cifar100, stl10, tiny_imagenet or imagenet.", metavar="DATASET"
        ),
    ],
    root: Annotated[Path, typer.Option(help="Folder of the datasets.")] = Path("data"),
    decode: Annotated[
        bool,
        typer.Option(
            "--decode", help="Store ImageNet's decoded pixels on disk: more space, faster epochs."
        ),
    ] = False,
) -> None:
    """Download a dataset and verify it."""
    from ascl.data import subset

    if not decode:
        subset.fetch(dataset, root)
    else:
        try:
            with interruptible(), progress_bar("images") as bar:
                task = bar.add_task(f"decoding {dataset}", total=None)
                subset.decode(
                    *(dataset, root),
                    lambda done, of: bar.update(task, completed=done, total=of),
                )
        except KeyboardInterrupt:
            again = shlex.join(["ascl-sweep", "fetch", dataset, "--root", str(root), "--decode"])
            talk.print(f"interrupted; complete shards are saved. Resume with:\n  {escape(again)}")
            raise typer.Exit(INTERRUPTED) from None
    talk.print(f"{dataset} is ready for data.root={escape(str(root))}")
