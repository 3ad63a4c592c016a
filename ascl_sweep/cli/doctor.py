"""`ascl-sweep doctor`: whether sweeps can run here, or on a cluster, and what to mend."""

import json
from collections.abc import Iterator
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
from ascl_sweep.labels import one_line

if TYPE_CHECKING:
    from ascl_sweep.checks import Check
    from ascl_sweep.checks.machine import Wants
    from ascl_sweep.spec import SweepSpec

NAMED = 3  # of the things to mend, on the last line


@app.command()
def doctor(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Sweep files: their datasets and room for their runs.", metavar="FILE"),
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
    root: Annotated[Path | None, typer.Option(help="Folder that holds it; data if absent.")] = None,
    overrides: Overrides = None,
    scale: ScaleOption = "full",
    start_ray: Annotated[
        bool, typer.Option("--ray", help="Also start a private Ray, its dashboard and its token.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look whether sweeps can run, and say what must be mended: a line each, ok or fix.

    Python and packages, GPUs, disk and memory; with --address on every node,
    with versions that must be equal, clocks, free GPUs, dashboard and token.
    The exit code is 4 if a sweep would fail.
    """
    with sentences():
        from ascl_sweep.address import refuse_password
        from ascl_sweep.checks.here import check_here
        from ascl_sweep.checks.machine import Wants
        from ascl_sweep.checks.probes import check_cluster
        from ascl_sweep.cli.plan import load_specs
        from ascl_sweep.knock import Door

        if address is not None and start_ray:
            raise ValueError("--ray starts a private Ray, and --address asks one that is there")
        if address not in (None, "auto"):
            Door.of(address)  # a typo is no fault of the cluster
        if not files and (overrides or scale != "full"):
            raise ValueError("--set and --scale change what sweep files say, and none is named")
        if root is not None and dataset is None:
            raise ValueError(
                "--root is where --data is looked for, and none is named; where sweep files look "
                "is changed by --set data.root=…"
            )
        if store is not None and not store.strip():
            raise ValueError("--store must be a folder or an address, got nothing")
        refuse_password(store or "")
        if store is not None and "://" not in store:
            store = str(Path(store).absolute())  # ours, and not one of each node's own
        checks: Iterator[Check]
        if (unable := _unable()) is not None:
            checks = iter([*check_here([], Wants(), store="results", start_ray=False), unable])
        else:
            specs = load_specs(files or [], overrides or [], scale)
            wants = _wants(specs, dataset, root or Path("data"), store)
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
        rest = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        fail(f"{', '.join(bad[:NAMED])}{rest} must be mended first", NO_RESOURCES)


def _unable() -> "Check | None":
    """Why we cannot even read a sweep file, if a package is missing or damaged."""
    from ascl_sweep.checks import Check

    try:
        import ascl_sweep.spec  # noqa: F401
    except (ImportError, OSError) as error:  # so says PyTorch of a library that it lacks
        why = f"does not load: {one_line(error)}"
        return Check("our own code", why, False, "see the lines above")
    return None


def _wants(specs: list["SweepSpec"], dataset: str | None, root: Path, store: str | None) -> "Wants":
    """What sweeps, and the options, ask of each machine."""
    from ascl.datasets import dataset_spec
    from ascl_sweep.checks.machine import Wants
    from ascl_sweep.checks.sweeps import datasets_of

    wanted = [pair for spec in specs for pair in datasets_of(spec)]
    if dataset is not None:
        dataset_spec(dataset)  # a typo is no fault of the machine
        wanted.append((dataset, str(root)))
    places = ((name, _absolute(place)) for name, place in wanted)
    return Wants(tuple(dict.fromkeys(places)), store)


def _absolute(root: str) -> str:
    """A root as the driver will hand it to workers; ~ is each machine's own."""
    return root if root.startswith("~") else str(Path(root).absolute())


def _show(check: "Check") -> None:
    mark = "[green]ok [/]" if check.ok else "[red]fix[/]"
    way_out = "" if check.ok or not check.way_out else f"; {check.way_out}"
    data.print(f"{mark} {escape(f'{check.what}: {check.found}{way_out}')}", soft_wrap=True)
