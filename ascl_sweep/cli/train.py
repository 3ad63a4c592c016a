"""`ascl-sweep train`: train a single run."""

import json
import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import Progress

from ascl_sweep.cli.common import Overrides, interruptible, kind_of_file, progress_bar, talk
from ascl_sweep.cli.errors import INTERRUPTED, RUN_FAILED, fail
from ascl_sweep.errors import UsageError
from ascl_sweep.text import percent

if TYPE_CHECKING:
    from ascl.metrics import EpochMetrics
    from ascl.progress import OnProgress
    from ascl.train import Run


def train(
    config: Annotated[Path, typer.Argument(help="Config of the run.", metavar="CONFIG.yaml")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Config keys to override, e.g. optim.lr=0.03.", metavar="KEY=VALUE"),
    ] = None,
    more_overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Output folder of the run. Default: runs/<run id>.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the metrics of each epoch as one line of JSON.")
    ] = False,
) -> None:
    """Train a single run. Safe to repeat: an interrupted run resumes after its last epoch."""
    from ascl.config import load_config
    from ascl.errors import ConfigError

    overrides = [*(overrides or []), *(more_overrides or [])]
    try:
        settings = load_config(config, overrides)  # before the slow imports: typos fail fast
    except ConfigError as error:
        if kind_of_file(config) != "sweep":
            raise
        raise UsageError(f"{config} is a sweep file; use `ascl-sweep run {config}`") from error

    import torch

    from ascl.checkpoint import resume, train_in
    from ascl.errors import DivergedError
    from ascl.memory import keep_freed
    from ascl.train import build

    keep_freed()

    folder = out or Path("runs") / settings.identity()
    command = ["ascl-sweep", "train", str(config), *overrides, "--out", str(folder)]
    kept = 0
    try:
        with interruptible(), talk.status("reading data …"):
            run = build(settings)
            note = resume(run, folder)
            kept = run.epoch
        with interruptible(), progress_bar("steps") as bar:
            after = f", resuming after epoch {kept}" if kept else ""
            if note:
                talk.print(escape(note))
            talk.print(f"run [bold]{settings.identity()}[/] in {escape(str(folder))}{after}")
            for metrics in train_in(run, folder, _shown_on(bar, run)):
                kept = metrics.epoch  # yielded after it is on disk
                bar.print(_epoch_line(metrics, settings.epochs))
                if as_json:
                    typer.echo(json.dumps(asdict(metrics)))
    except KeyboardInterrupt:
        saved = f"{kept} of {settings.epochs} epochs are saved"
        talk.print(f"interrupted; {saved}. Resume with:\n  {escape(shlex.join(command))}")
        raise typer.Exit(INTERRUPTED) from None
    except DivergedError as error:
        fail(str(error), RUN_FAILED)
    except torch.OutOfMemoryError as error:
        raise MemoryError(str(error).splitlines()[0]) from error
    talk.print(_summary(run))


def _shown_on(bar: Progress, run: "Run") -> "OnProgress":
    """Return a callback that shows progress, speed and the last epoch's metrics on a bar."""
    steps_in_all = run.config.epochs * run.steps_per_epoch
    task = bar.add_task("", total=steps_in_all, completed=run.epoch * run.steps_per_epoch)
    started = time.perf_counter()

    def show(phase: str, step: int, steps: int) -> None:
        nonlocal started
        parts = [f"epoch {run.epoch + 1}/{run.config.epochs}"]
        if run.history:
            last = run.history[-1]
            parts += [f"loss {last.loss:.3f}", f"kNN {percent(last.knn_top1, 2)}"]
        if phase == "train":
            if step == 1:
                started = time.perf_counter()
            else:
                speed = (step - 1) * run.config.batch_size / (time.perf_counter() - started)
                parts.append(f"{speed:,.0f} images/s")
            bar.update(task, completed=run.epoch * steps + step)
        else:
            parts.append(f"evaluating {phase}" + (f" {step}/{steps}" if steps > 1 else ""))
        bar.update(task, description="  ".join(parts))

    return show


def _epoch_line(metrics: "EpochMetrics", epochs: int) -> str:
    parts = [
        f"epoch {metrics.epoch:>{len(str(epochs))}}/{epochs}",
        f"loss {metrics.loss:.4f}",
        f"kNN {percent(metrics.knn_top1, 2)}",
    ]
    if metrics.test_top1 is not None:
        parts.append(f"classifier {percent(metrics.test_top1, 2)}")
    if metrics.confidence is not None:
        parts.append(f"confidence {metrics.confidence:.3f}")
    if metrics.purity is not None:
        parts.append(f"purity {percent(metrics.purity, 2)}")
    parts.append(f"{metrics.images_per_second:,.0f} images/s")
    return "  ".join(parts)


def _summary(run: "Run") -> str:
    last = run.history[-1]
    parts = [f"kNN {percent(last.knn_top1, 2)}"]
    if last.test_top1 is not None:
        parts.append(f"own classifier {percent(last.test_top1, 2)}")
    if last.probe_top1 is not None:
        best = percent(last.probe_best_top1, 2)
        parts.append(f"linear probe {percent(last.probe_top1, 2)} (best epoch {best})")
    seconds = sum(m.train_seconds + m.eval_seconds for m in run.history)
    scores = f"{', '.join(parts)} on {run.data.scored}"
    return f"done: {scores}, after {last.epoch} epochs in {seconds:.0f} s"
