"""`ascl-sweep paper`: the whole paper as sweeps, and one report on it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from ascl.faults import unknown_name
from ascl_sweep.cli.app import Overrides, StoreOption, app, sentences, talk
from ascl_sweep.cli.sweep import Address, Concurrency, Wait, Ways, Yes, flags, start

if TYPE_CHECKING:
    from ascl_sweep.figures.panels import Figure
    from ascl_sweep.ledger import Ledger

# Those first whose cells others share; last what few machines can run.
SWEEPS = (
    *("neighbours", "tau_prime", "learning_speed", "tsne", "augmentation", "small_datasets"),
    *("byol", "paper_vs_code", "joint", "beyond", "imagenet"),
)
SCALES = {"paper": "full", "laptop": "laptop"}


@app.command()
def paper(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Some of its sweeps; all if absent.", metavar="SWEEP"),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="paper: as published, on GPUs; laptop: small data and nets, on a CPU.",
            metavar="paper|laptop",
        ),
    ] = "paper",
    store: StoreOption = "results",
    out: Annotated[
        Path, typer.Option(help="Folder that the report is written to.", metavar="DIR")
    ] = Path("paper-report"),
    spaces: Annotated[Path, typer.Option(help="Folder of the sweep files.", metavar="DIR")] = Path(
        "search_spaces"
    ),
    address: Address = None,
    concurrency: Concurrency = None,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    yes: Yes = False,
    wait: Wait = False,
) -> None:
    """Run every table and figure of the paper, and write one report that judges its claims.

    Called again it goes on and trains nothing twice; a report on what there is comes anyway.
    """
    with sentences():
        from ascl_sweep.cli.plan import load_specs
        from ascl_sweep.ledger import Ledger

        if scale not in SCALES:
            raise ValueError(f"--scale must be paper or laptop, got {scale!r}")
        for name in names or ():
            if name not in SWEEPS:
                raise ValueError(unknown_name("sweep of the paper", name, SWEEPS))
        chosen = [name for name in SWEEPS if name in (names or SWEEPS)]
        if not spaces.is_dir():
            raise ValueError(
                f"the paper's sweep files are not in {spaces}; call it in a clone of the project, "
                "or say where they are with --spaces"
            )
        specs = load_specs(
            [spaces / f"{name}.yaml" for name in chosen], overrides or [], SCALES[scale]
        )
        words = ["paper", *(names or []), *flags(overrides or [], "full"), "--scale", scale]
        words += ["--out", str(out), "--spaces", str(spaces)]
        start(
            specs,
            store,
            Ways(address, concurrency, wait),
            words,
            dry_run=dry_run,
            ask=not yes,
            then=lambda: _report(Ledger(store), chosen, out),
        )


def _report(ledger: "Ledger", names: list[str], out: Path) -> None:
    """Write the report on what there is: a page, and the same as Markdown with its figures."""
    from ascl_sweep.cli.report import draw, put
    from ascl_sweep.report.page import page
    from ascl_sweep.report.render import markdown
    from ascl_sweep.report.report import report_of

    known = [name for name in names if name in ledger.sweeps()]
    if not known:
        return
    made = report_of(ledger, known)
    figure = _features(ledger) if "tsne" in known else None
    more = {"tsne": (figure,)} if figure else {}
    pictures = draw(made, ledger, out / "figures", more)
    put(out / "report.md", markdown(made, pictures, out))
    put(out / "report.html", page(made, ledger, more))


def _features(ledger: "Ledger") -> "Figure | None":
    """The paper's t-SNE figure, where its runs are complete and their checkpoints at hand."""
    from ascl_sweep.cli.embed import checkpoint_of, embedded, runs_of_sweep
    from ascl_sweep.figures.tsne import tsne_figure

    try:
        checkpoints = [checkpoint_of(run, ledger.address) for run in runs_of_sweep("tsne", ledger)]
        return tsne_figure([embedded(found, "test", None) for found in checkpoints])
    except ValueError as error:
        talk.print(f"[yellow]warning:[/] no t-SNE: {escape(str(error))}")
        return None
