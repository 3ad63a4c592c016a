"""`ascl-sweep paper`: run all sweeps of the paper and write one report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ascl.errors import AsclError, unknown_name
from ascl_sweep.cli.common import (
    Address,
    Concurrency,
    DryRun,
    Overrides,
    Scale,
    StoreOption,
    UntilDecided,
    Wait,
    Yes,
    load_specs,
    override_words,
    warn,
)
from ascl_sweep.cli.run import Ways, start
from ascl_sweep.errors import AsclSweepError, UsageError

if TYPE_CHECKING:
    from ascl_sweep.report.figures.model import Figure
    from ascl_sweep.store.store import Store

# Sweeps that share runs with others come first; those that need the most hardware come last.
SWEEPS = (
    *("neighbours", "tau_prime", "learning_speed", "tsne", "augmentation", "small_datasets"),
    *("byol", "paper_vs_code", "joint", "beyond", "imagenet"),
)


def paper(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Sweeps of the paper to run. Default: all.", metavar="SWEEP"),
    ] = None,
    scale: Annotated[
        Literal["paper", "laptop"],
        typer.Option(help="paper: as published. laptop: small data and network, on a CPU."),
    ] = "paper",
    store_address: StoreOption = "results",
    out: Annotated[Path, typer.Option(help="Output folder of the report.", metavar="DIR")] = Path(
        "paper-report"
    ),
    spaces: Annotated[Path, typer.Option(help="Folder of the sweep files.", metavar="DIR")] = Path(
        "search_spaces"
    ),
    address: Address = None,
    concurrency: Concurrency = None,
    overrides: Overrides = None,
    until_decided: UntilDecided = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = False,
) -> None:
    """Reproduce every table and figure of the paper and report which claims hold.

    Safe to repeat: finished runs are not trained again. If the sweeps are interrupted, the report
    covers the runs that have finished.
    """
    from ascl_sweep.store.store import Store

    for name in names or ():
        if name not in SWEEPS:
            raise UsageError(unknown_name("sweep of the paper", name, SWEEPS))
    chosen = [name for name in SWEEPS if name in (names or SWEEPS)]
    if not spaces.is_dir():
        raise UsageError(
            f"the paper's sweep files are not in {spaces}; run the command in a clone of the "
            "project, or give their folder with --spaces"
        )
    files = [spaces / f"{name}.yaml" for name in chosen]
    size: Scale = "full" if scale == "paper" else "laptop"
    specs = load_specs(files, overrides or [], size, until_decided=until_decided)
    words = ["paper", *(names or [])]
    words += override_words(overrides, "full", until_decided=until_decided)
    words += ["--scale", scale, "--out", str(out), "--spaces", str(spaces)]
    ways = Ways(address, concurrency, wait, dry_run=dry_run, ask=not yes)
    start(
        *(specs, store_address, ways, words),
        then=lambda: _report(Store(store_address), chosen, out),
    )


def _report(store: "Store", names: list[str], out: Path) -> None:
    """Write the report on all finished runs, as HTML and as Markdown with figures."""
    from ascl_sweep.cli.report import draw, put
    from ascl_sweep.report.formats.base import Target, load_formats
    from ascl_sweep.report.report import build_report
    from ascl_sweep.reproduction.section import PAPER

    known = [name for name in names if name in store.sweeps()]
    if not known:
        return
    made = build_report(store, known, extensions=[PAPER])
    figure = _features(store) if "tsne" in known else None
    more = {"tsne": (figure,)} if figure else {}
    pictures = draw(made, store, out / "figures", more)
    formats, target = load_formats(), Target(store, out, pictures, more)
    put(out / "report.md", formats["md"].render(made, target))
    put(out / "report.html", formats["html"].render(made, target))


def _features(store: "Store") -> "Figure | None":
    """Return the paper's t-SNE figure; None if runs are unfinished or checkpoints are missing."""
    from ascl_sweep.cli.embed import checkpoint_of, embedded, runs_of_sweep
    from ascl_sweep.report.figures.tsne import tsne_figure

    try:
        checkpoints = [checkpoint_of(run, store.address) for run in runs_of_sweep("tsne", store)]
        return tsne_figure([embedded(found, "test", None) for found in checkpoints])
    except (AsclError, AsclSweepError) as error:
        warn(f"t-SNE figure skipped: {error}")
        return None
