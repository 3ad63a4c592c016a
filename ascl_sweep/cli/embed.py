"""`ascl-sweep embed` and `tsne`: what runs have learnt, as features and as a picture of them."""

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ascl_sweep.cli.app import StoreOption, app, interruptible, sentences, talk

if TYPE_CHECKING:
    from ascl_sweep.figures.tsne import Embedded
    from ascl_sweep.ledger import Ledger, RunRow

SHOWN = 5  # ids in a sentence
CHECKPOINT = "checkpoint.pt"

SplitOption = Annotated[
    str,
    typer.Option(
        "--split",
        help="test: what the run is scored on (of a search its holdout); train: the labelled "
        "images that it was trained on.",
        metavar="test|train",
    ),
]
RootOption = Annotated[
    Path | None, typer.Option(help="Folder that holds the datasets, if not where it was.")
]


@app.command()
def embed(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Ids of runs of the store, as many letters as it takes; sweeps, which are their "
            "complete runs of one seed; or folders of `ascl-sweep train`.",
            metavar="RUN",
        ),
    ],
    store: StoreOption = "results",
    split: SplitOption = "test",
    out: Annotated[
        Path, typer.Option(help="A folder, or for one run a file.", metavar="DIR|FILE.npz")
    ] = Path("features"),
    root: RootOption = None,
) -> None:
    """Write the features that runs' encoders compute, for figures of your own.

    Each `<run id>.npz` holds features (float32, images × dimensions), labels, run_id, label and
    split; read it with numpy.load(file). `ascl-sweep tsne` draws them.
    """
    with sentences():
        from ascl_sweep.figures.tsne import write

        _check_split(split)
        runs = _each_run(runs, store)
        if out.suffix == ".npz" and len(runs) > 1:
            raise ValueError(
                f"--out must be a folder for several runs, got {out}; try --out features"
            )
        checkpoints = [checkpoint_of(run, store) for run in runs]  # all names before any work
        for checkpoint in checkpoints:
            found = embedded(checkpoint, split, root)
            path = out if out.suffix == ".npz" else out / f"{found.run_id}.npz"
            write(found, path)
            images, size = found.features.shape
            talk.print(
                f"wrote {escape(str(path))}: {images} × {size} features of {found.split}, "
                f"{escape(found.label)}"
            )


@app.command()
def tsne(
    runs: Annotated[
        list[str],
        typer.Argument(help="As for `embed`; or files that it wrote.", metavar="RUN|FILE.npz"),
    ],
    out: Annotated[Path, typer.Option(help="The picture.", metavar="FILE.svg|FILE.png")],
    store: StoreOption = "results",
    split: SplitOption = "test",
    root: RootOption = None,
) -> None:
    """Draw runs' features side by side by t-SNE, coloured by class (the paper's figure).

    At most 2,000 images, equally many of each class and the same for every run.
    """
    with sentences():
        _check_split(split)
        if out.suffix not in (".svg", ".png"):
            raise ValueError(f"--out must end in .svg or .png, got {out}")
        runs = _each_run(runs, store)
        checkpoints = {run: checkpoint_of(run, store) for run in runs if not run.endswith(".npz")}

        from ascl_sweep.figures.draw import png, svg
        from ascl_sweep.figures.tsne import read, tsne_figure
        from ascl_sweep.store import Store

        for run in runs:
            if run not in checkpoints and not Path(run).is_file():
                raise ValueError(f"there is no file {run}; write it with `ascl-sweep embed RUN`")
        found = [
            embedded(checkpoints[run], split, root) if run in checkpoints else read(Path(run))
            for run in runs
        ]
        with talk.status("t-SNE …"):
            figure = tsne_figure(found)
            content = svg(figure).encode() if out.suffix == ".svg" else png(figure)
        Store(out.absolute().parent).write(out.name, content)
        talk.print(f"wrote {escape(str(out))}: {escape(figure.caption)}")


def _check_split(split: str) -> None:
    if split not in ("test", "train"):
        raise ValueError(f"--split must be test or train, got {split!r}")


def embedded(checkpoint: Path, split: str, root: Path | None) -> "Embedded":
    """Compute a run's features, with a bar."""
    import torch

    from ascl.embed import embed as features_of
    from ascl_sweep.figures.tsne import Embedded
    from ascl_sweep.labels import system

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=talk,
        transient=True,
        disable=not talk.is_terminal,
    )
    with interruptible(), bar:
        task = bar.add_task(f"{checkpoint.parent.name}: reading", total=None)

        def show(phase: str, step: int, steps: int) -> None:
            title = f"{checkpoint.parent.name}: {phase}"
            bar.update(task, description=title, completed=step, total=steps)

        try:
            found = features_of(checkpoint, split, root=root, on_progress=show)  # type: ignore[arg-type]
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


# ---------------------------------------------------------------- finding a run


def _each_run(names: list[str], store: str) -> list[str]:
    """Runs as they were named, and of a sweep its own."""
    from ascl_sweep.ledger import Ledger

    ledger = Ledger(store)
    sweeps = ledger.sweeps()
    return [
        run for name in names for run in (runs_of_sweep(name, ledger) if name in sweeps else [name])
    ]


def runs_of_sweep(name: str, ledger: "Ledger") -> list[str]:
    """A sweep's complete runs of its first complete seed, in the order of its file."""
    from ascl_sweep.digest import Digest
    from ascl_sweep.report.arms import seed_of

    sweep = ledger.sweeps()[name]
    order = {run: place for place, run in enumerate(Digest.of_json(sweep.digest).order)}
    rows = [
        row
        for row in ledger.runs().values()
        if name in row.sweeps and row.scale == sweep.scale
        if row.phase == "final" and row.state == "done"
    ]
    if not rows:
        raise ValueError(f"no run of {name} is complete yet; go on with `ascl-sweep resume {name}`")
    seed = min(map(seed_of, rows))
    chosen = [row.run_id for row in rows if seed_of(row) == seed]
    return sorted(chosen, key=lambda run: (order.get(run, len(order)), run))


def checkpoint_of(run: str, store: str) -> Path:
    """Where a run's checkpoint lies, by its id or its folder."""
    if (Path(run) / CHECKPOINT).is_file():
        return Path(run) / CHECKPOINT
    if Path(run).is_dir():
        raise ValueError(f"there is no {CHECKPOINT} in {run}; name a run's folder, or its id")
    from ascl_sweep.ledger import Ledger

    ledger = Ledger(store)
    row = _row(run, ledger)
    place = ledger.work(row.run_id)
    if "://" in place:
        raise ValueError(
            f"{row.run_id} lies in {place}, which is no folder of this machine; copy that folder "
            "here and call `ascl-sweep embed COPY`"
        )
    if not (Path(place) / CHECKPOINT).is_file():
        raise ValueError(f"{row.run_id} has no checkpoint in {place}: {_why_not(row)}")
    return Path(place) / CHECKPOINT


def _row(run: str, ledger: "Ledger") -> "RunRow":
    """The one run whose id begins so."""
    rows = ledger.runs()
    if not rows:
        raise ValueError(
            f"there is no run in {ledger.address}; start some with `ascl-sweep run FILE`, or say "
            "where with --store"
        )
    fitting = [run_id for run_id in rows if run_id.startswith(run)]
    if run in rows or len(fitting) == 1:
        return rows[run if run in rows else fitting[0]]
    if fitting:
        raise ValueError(
            f"{run!r} must begin the id of one run, and there are {_listed(fitting)}; add letters"
        )
    near = difflib.get_close_matches(run, rows, n=SHOWN, cutoff=0.5)
    others = f"near it: {_listed(near)}" if near else f"there are: {_listed(list(rows))}"
    raise ValueError(f"no run in {ledger.address} has an id that begins with {run!r}; {others}")


def _listed(ids: list[str]) -> str:
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return f"{', '.join(ids[:SHOWN])}{more}"


def _why_not(row: "RunRow") -> str:
    match row.state:
        case "planned" | "running" | "lost":
            return (
                "it has finished no epoch yet; go on with `ascl-sweep resume`, or name another run"
            )
        case "done":
            return (
                "it was deleted (`ascl-sweep gc --done` does that); train the run again with "
                "`ascl-sweep train CONFIG --out DIR` and name DIR; the config of a sweep's best is "
                "written by `ascl-sweep best --export CONFIG`"
            )
        case state:
            return f"files of {state} runs are not kept; name a complete run"
