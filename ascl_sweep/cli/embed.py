"""`ascl-sweep embed`: compute and write the features of runs."""

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from ascl_sweep.cli.common import StoreOption, interruptible, progress_bar, talk
from ascl_sweep.contracts import RunState
from ascl_sweep.errors import UsageError

if TYPE_CHECKING:
    from ascl_sweep.contracts import RunRow
    from ascl_sweep.report.figures.tsne import Embedded
    from ascl_sweep.store.store import Store

SHOWN = 5  # run ids in an error message
CHECKPOINT = "checkpoint.pt"

Split = Literal["test", "train"]
SplitOption = Annotated[
    Split,
    typer.Option(
        "--split",
        help="test: the images that the run is scored on (holdout in a search). train: its "
        "labeled training images.",
    ),
]
RootOption = Annotated[
    Path | None, typer.Option(help="Folder of the datasets. Default: as in the run's config.")
]


def embed(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Run ids or unique prefixes; sweep names (the finished runs of one seed); or "
            "folders written by `ascl-sweep train`.",
            metavar="RUN",
        ),
    ],
    store_address: StoreOption = "results",
    split: SplitOption = "test",
    out: Annotated[
        Path,
        typer.Option(help="Output folder, or output file for one run.", metavar="DIR|FILE.npz"),
    ] = Path("features"),
    root: RootOption = None,
) -> None:
    """Compute the features of runs and write them as NumPy files, e.g. for your own figures.

    Each `<run id>.npz` holds features (float32, images × dimensions), labels, run_id, label and
    split. Read it with numpy.load(file); `ascl-sweep tsne` plots it.
    """
    from ascl_sweep.report.figures.tsne import write

    runs = list_runs(runs, store_address)
    if out.suffix == ".npz" and len(runs) > 1:
        raise UsageError(f"--out must be a folder for several runs, got {out}; try --out features")
    checkpoints = [checkpoint_of(run, store_address) for run in runs]  # fail before slow work
    for checkpoint in checkpoints:
        found = embedded(checkpoint, split, root)
        path = out if out.suffix == ".npz" else out / f"{found.run_id}.npz"
        write(found, path)
        images, size = found.features.shape
        talk.print(
            f"wrote {escape(str(path))}: {images} × {size} features of {found.split}, "
            f"{escape(found.label)}"
        )


def embedded(checkpoint: Path, split: Split, root: Path | None) -> "Embedded":
    """Compute the features of a run and show a progress bar."""
    import torch

    from ascl.eval.features import embed as features_of
    from ascl_sweep.analysis.labels import system
    from ascl_sweep.report.figures.tsne import Embedded

    with interruptible(), progress_bar("batches") as bar:
        task = bar.add_task(f"{checkpoint.parent.name}: reading", total=None)

        def show(phase: str, step: int, steps: int) -> None:
            title = f"{checkpoint.parent.name}: {phase}"
            bar.update(task, description=title, completed=step, total=steps)

        try:
            found = features_of(checkpoint, split, root=root, on_progress=show)
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error).splitlines()[0]) from error
    method = found.config.method
    named = {"method.name": method.name, "method.relabel": getattr(method, "relabel", None)}
    return Embedded(
        run_id=found.config.identity(),
        label=system(named),
        split=found.split,
        features=found.values.numpy(),
        labels=found.labels.numpy(),
    )


def list_runs(names: list[str], store_address: str) -> list[str]:
    """Replace each sweep name by the ids of its runs."""
    from ascl_sweep.store.store import Store

    store = Store(store_address)
    sweeps = store.sweeps()
    runs = [runs_of_sweep(name, store) if name in sweeps else [name] for name in names]
    return [run for each in runs for run in each]


def runs_of_sweep(name: str, store: "Store") -> list[str]:
    """Return the finished runs of a sweep's first finished seed, in the order of the file."""
    from ascl_sweep.analysis.arms import seed_of
    from ascl_sweep.spec.summary import SweepSummary

    sweep = store.sweeps()[name]
    order = {run: index for index, run in enumerate(SweepSummary.of_json(sweep.digest).order)}
    rows = [
        row
        for row in store.runs().values()
        if name in row.sweeps and row.scale == sweep.scale
        if row.phase == "final" and row.state == RunState.DONE
    ]
    if not rows:
        raise UsageError(
            f"no run of {name} has finished yet; resume with `ascl-sweep run --resume {name}`"
        )
    seed = min(map(seed_of, rows))
    chosen = [row.run_id for row in rows if seed_of(row) == seed]
    return sorted(chosen, key=lambda run: (order.get(run, len(order)), run))


def checkpoint_of(run: str, store_address: str) -> Path:
    """Return the checkpoint of a run, given its id or its folder."""
    if (Path(run) / CHECKPOINT).is_file():
        return Path(run) / CHECKPOINT
    if Path(run).is_dir():
        raise UsageError(f"there is no {CHECKPOINT} in {run}; give the folder or id of a run")
    from ascl_sweep.store.address import is_remote
    from ascl_sweep.store.store import Store

    store = Store(store_address)
    row = _row(run, store)
    folder = store.work(row.run_id)
    if is_remote(folder):
        raise UsageError(
            f"the checkpoint of {row.run_id} is in remote storage ({folder}); copy that folder to "
            "this machine and run `ascl-sweep embed COPY`"
        )
    if not (Path(folder) / CHECKPOINT).is_file():
        raise UsageError(
            f"{row.run_id} has no checkpoint in {folder}: {_why_no_checkpoint(row.state)}"
        )
    return Path(folder) / CHECKPOINT


def _row(run: str, store: "Store") -> "RunRow":
    """Return the run with this id or unique prefix of an id."""
    rows = store.runs()
    if not rows:
        raise UsageError(
            f"no run in {store.address}; start runs with `ascl-sweep run FILE` or select another "
            "store with --store"
        )
    if run in rows:
        return rows[run]
    matches = [run_id for run_id in rows if run_id.startswith(run)]
    if len(matches) == 1:
        return rows[matches[0]]
    if matches:
        raise UsageError(
            f"{run!r} is the start of several run ids: {', '.join(matches[:SHOWN])}; "
            "add more characters"
        )
    near = difflib.get_close_matches(run, rows, n=SHOWN, cutoff=0.5)
    others = ", ".join(near or list(rows)[:SHOWN])
    if not near and len(rows) > SHOWN:
        others += f", {len(rows) - SHOWN} more"
    raise UsageError(
        f"no run in {store.address} has an id that begins with {run!r}; "
        f"{'similar ids' if near else 'known ids'}: {others}"
    )


def _why_no_checkpoint(state: RunState) -> str:
    if state == RunState.DONE:
        return (
            "it was deleted (e.g. by `ascl-sweep gc --done`); train the run again with "
            "`ascl-sweep train CONFIG --out DIR` and give DIR instead"
        )
    if state.is_over or state == RunState.FAILED:
        return f"files of {state} runs are not kept; choose a finished run"
    return "the run has not finished an epoch yet; resume with `ascl-sweep run --resume`"
