"""`ascl-sweep train` and `fetch`: one run, and the data for it."""

import json
import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ascl_sweep.cli.app import INTERRUPTED, RUN_FAILED, app, fail, interruptible, sentences, talk

if TYPE_CHECKING:
    from ascl.train import EpochMetrics, OnProgress, Run


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="The run's YAML file.", metavar="CONFIG.yaml")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Keys to change, e.g. optim.lr=0.03.", metavar="KEY=VALUE"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; runs/<its id> by default.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each epoch's metrics on stdout, a line each.")
    ] = False,
) -> None:
    """Train one run; called again, it goes on where it was."""
    with sentences():
        from ascl.config import load_config

        settings = load_config(config, overrides or [])  # before the slow imports: a typo is cheap

        import torch

        from ascl.checkpoint import resume, train_in
        from ascl.memory import keep_freed
        from ascl.train import Diverged, build

        keep_freed()

        folder = out or Path("runs") / settings.identity()
        command = ["ascl-sweep", "train", str(config), *(overrides or []), "--out", str(folder)]
        kept = 0
        try:
            with interruptible(), talk.status("reading data …"):
                run = build(settings)
                resume(run, folder)
                kept = run.epoch
            with interruptible(), _bar("steps") as bar:
                after = f", going on after epoch {kept}" if kept else ""
                talk.print(f"run [bold]{settings.identity()}[/] in {escape(str(folder))}{after}")
                for metrics in train_in(run, folder, _shown_on(bar, run)):
                    kept = metrics.epoch  # yielded once it is on disk
                    bar.print(_epoch_line(metrics, settings.epochs))
                    if as_json:
                        typer.echo(json.dumps(asdict(metrics)))
        except KeyboardInterrupt:
            saved = f"{kept} of {settings.epochs} epochs are kept"
            talk.print(f"interrupted; {saved}. Go on with:\n  {escape(shlex.join(command))}")
            raise typer.Exit(INTERRUPTED) from None
        except Diverged as error:
            fail(str(error), RUN_FAILED)
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error).splitlines()[0]) from error
        talk.print(_summary(run))


@app.command()
def fetch(
    dataset: Annotated[str, typer.Argument(help="Name of the dataset.")],
    root: Annotated[Path, typer.Option(help="Folder that holds the datasets.")] = Path("data"),
    decode: Annotated[
        bool,
        typer.Option(
            "--decode", help="Keep ImageNet's pixels beside its files: more disk, faster epochs."
        ),
    ] = False,
) -> None:
    """Download a dataset and check it."""
    with sentences():
        from ascl.data import fetch as fetch_data

        if decode:
            _decode(dataset, root)
        else:
            fetch_data(dataset, root)
        talk.print(f"{dataset} is ready for data.root={escape(str(root))}")


def _decode(dataset: str, root: Path) -> None:
    from ascl.data import decode

    try:
        with interruptible(), _bar("pictures") as bar:
            task = bar.add_task(f"decoding {dataset}", total=None)
            decode(dataset, root, lambda done, of: bar.update(task, completed=done, total=of))
    except KeyboardInterrupt:
        again = shlex.join(["ascl-sweep", "fetch", dataset, "--root", str(root), "--decode"])
        talk.print(f"interrupted; whole shards are kept. Go on with:\n  {escape(again)}")
        raise typer.Exit(INTERRUPTED) from None


def _bar(unit: str) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        console=talk,
        transient=True,
    )


def _shown_on(bar: Progress, run: "Run") -> "OnProgress":
    """Progress within an epoch, on the bar: where it is, how fast, and how the last epoch went."""
    steps_in_all = run.config.epochs * run.steps_per_epoch
    task = bar.add_task("", total=steps_in_all, completed=run.epoch * run.steps_per_epoch)
    started = time.perf_counter()

    def show(phase: str, step: int, steps: int) -> None:
        nonlocal started
        parts = [f"epoch {run.epoch + 1}/{run.config.epochs}"]
        if run.history:
            last = run.history[-1]
            parts += [f"loss {last.loss:.3f}", f"kNN {_percent(last.knn_top1)}"]
        if phase == "train":
            if step == 1:
                started = time.perf_counter()
            else:
                speed = (step - 1) * run.config.batch_size / (time.perf_counter() - started)
                parts.append(f"{speed:,.0f} images/s")
            bar.update(task, completed=run.epoch * steps + step)
        else:
            parts.append(f"measuring {phase}" + (f" {step}/{steps}" if steps > 1 else ""))
        bar.update(task, description="  ".join(parts))

    return show


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f}%"


def _epoch_line(metrics: "EpochMetrics", epochs: int) -> str:
    parts = [
        f"epoch {metrics.epoch:>{len(str(epochs))}}/{epochs}",
        f"loss {metrics.loss:.4f}",
        f"kNN {_percent(metrics.knn_top1)}",
    ]
    if metrics.test_top1 is not None:
        parts.append(f"classifier {_percent(metrics.test_top1)}")
    if metrics.confidence is not None:
        parts.append(f"confidence {metrics.confidence:.3f}")
    if metrics.purity is not None:
        parts.append(f"purity {_percent(metrics.purity)}")
    parts.append(f"{metrics.images_per_second:,.0f} images/s")
    return "  ".join(parts)


def _summary(run: "Run") -> str:
    last = run.history[-1]
    parts = [f"kNN {_percent(last.knn_top1)}"]
    if last.test_top1 is not None:
        parts.append(f"its own classifier {_percent(last.test_top1)}")
    if last.probe_top1 is not None:
        best = _percent(last.probe_best_top1)
        parts.append(f"linear probe {_percent(last.probe_top1)} (best epoch {best})")
    seconds = sum(m.train_seconds + m.eval_seconds for m in run.history)
    scores = f"{', '.join(parts)} on {run.data.scored}"
    return f"done: {scores}, after {last.epoch} epochs in {seconds:.0f} s"
