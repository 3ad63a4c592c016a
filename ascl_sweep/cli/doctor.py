"""`ascl-sweep doctor`: whether sweeps can run here, or on a cluster, and what to mend."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from ascl_sweep.cli.app import (
    NO_RESOURCES,
    AsJson,
    Overrides,
    ScaleOption,
    app,
    data,
    fail,
    sentences,
    talk,
)

if TYPE_CHECKING:
    from ascl_sweep.checks import Check


@app.command()
def doctor(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Sweep files: their datasets and resources too.", metavar="[FILE]..."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Every node of a Ray cluster, not this machine.", metavar="auto|ray://…|HOST:PORT"
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Try to write there: a folder, or s3://…, gs://…")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--data", help="Look whether this dataset is there.")
    ] = None,
    root: Annotated[Path, typer.Option(help="Folder that holds the datasets.")] = Path("data"),
    overrides: Overrides = None,
    scale: ScaleOption = "full",
    start_ray: Annotated[
        bool, typer.Option("--ray", help="Also start a private Ray and its dashboard.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look whether sweeps can run, and say what must be mended: a line each, ok or fix."""
    with sentences():
        from ascl_sweep.checks.here import check_here
        from ascl_sweep.checks.machine import Wants
        from ascl_sweep.checks.probes import check_cluster
        from ascl_sweep.checks.sweeps import datasets_of
        from ascl_sweep.cli.look import load_specs
        from ascl_sweep.knock import Door

        if address is not None and start_ray:
            raise ValueError("--ray starts a private Ray, and --address asks one that is there")
        if address not in (None, "auto"):
            Door.of(address)  # a typo is no fault of the cluster
        specs = load_specs(files or [], overrides or [], scale)
        wanted = [pair for spec in specs for pair in datasets_of(spec)]
        if dataset is not None:
            from ascl.datasets import dataset_spec

            dataset_spec(dataset)  # a typo is no fault of the machine
            wanted.append((dataset, str(root)))
        places = ((name, _absolute(place)) for name, place in wanted)
        wants = Wants(tuple(dict.fromkeys(places)), store)
        checks = (
            check_here(specs, wants, store=store or "results", start_ray=start_ray)
            if address is None
            else check_cluster(address, specs, wants, lambda text: talk.print(escape(text)))
        )
        found = []
        for check in checks:
            found.append(check)
            if not as_json:
                _show(check)
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in found]))
    bad = [check.what for check in found if not check.ok]
    if bad:
        fail(f"{', '.join(bad)} must be mended first", NO_RESOURCES)


def _absolute(root: str) -> str:
    """A root as the driver will hand it to workers; ~ is each machine's own."""
    return root if root.startswith("~") else str(Path(root).absolute())


def _show(check: "Check") -> None:
    mark = "[green]ok [/]" if check.ok else "[red]fix[/]"
    way_out = "" if check.ok or not check.way_out else f"; {check.way_out}"
    data.print(f"{mark} {escape(f'{check.what}: {check.found}{way_out}')}", soft_wrap=True)
