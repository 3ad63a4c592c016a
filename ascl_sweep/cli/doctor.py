"""`ascl-sweep doctor`: check that sweeps can run on this machine or on a cluster."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from ascl_sweep.cli.common import AsJson, Overrides, ScaleOption, data, load_specs, talk
from ascl_sweep.cli.errors import NO_RESOURCES, fail
from ascl_sweep.errors import UsageError

if TYPE_CHECKING:
    from ascl_sweep.doctor.checks import Wants
    from ascl_sweep.spec.sweep import SweepSpec

NAMED = 3  # failed checks that the last line names


def doctor(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Sweep files: also check their datasets and resources.", metavar="FILE"
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Check every node of this Ray cluster instead of this machine.",
            metavar="auto|ray://…|HOST:PORT",
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Check that this folder or URL (s3://…) is writable.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--data", help="Check that this dataset is present.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder of the --data dataset. Default: data.")
    ] = None,
    overrides: Overrides = None,
    scale: ScaleOption = "full",
    start_ray: Annotated[
        bool, typer.Option("--ray", help="Also start a private Ray and check its dashboard.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check that sweeps can run here or on a cluster. Prints one ok or fix line per check.

    Checks Python, packages, GPUs, disk and shared memory. With --address, checks every node, and
    also that versions match and that the dashboard requires a token. Exits with code 4 if a check
    fails.
    """
    from ascl_sweep.doctor.checks import Wants
    from ascl_sweep.doctor.cluster import check_cluster
    from ascl_sweep.doctor.machine import check_this_machine
    from ascl_sweep.executors.ray.address import parse_address
    from ascl_sweep.store.address import is_remote, refuse_password

    if address is not None and start_ray:
        raise UsageError("--ray starts a private Ray and cannot be combined with --address")
    if address not in (None, "auto"):
        parse_address(address)  # raises UsageError for a typo
    if not files and (overrides or scale != "full"):
        raise UsageError("--set and --scale need a sweep file; add one, or remove the options")
    if root is not None and dataset is None:
        raise UsageError(
            "--root needs --data; to change the data folder of sweep files, use --set data.root=…"
        )
    if store is not None and not store.strip():
        raise UsageError("--store must be a folder or a URL, got an empty string")
    refuse_password(store or "")
    if store is not None and not is_remote(store):
        store = str(Path(store).absolute())  # the same path on every node
    try:
        specs = load_specs(files or [], overrides or [], scale)
        wants = _wants(specs, dataset, root or Path("data"), store)
    except ImportError:  # the check of packages reports the reason
        specs, wants = [], Wants(store=store)
    if address is None:
        checks = check_this_machine(specs, wants, start_ray=start_ray)
    else:
        checks = check_cluster(address, specs, wants, lambda text: talk.print(escape(text)))
    found = []
    for check in checks:
        found.append(check)
        if not as_json:
            mark = "[green]ok [/]" if check.ok else "[red]fix[/]"
            fix = f"; {check.way_out}" if check.way_out and not check.ok else ""
            data.print(f"{mark} {escape(f'{check.what}: {check.found}{fix}')}", soft_wrap=True)
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in found]))
    if bad := [check.what for check in found if not check.ok]:
        rest = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        fail(f"{', '.join(bad[:NAMED])}{rest} must be fixed first", NO_RESOURCES)


def _wants(specs: list["SweepSpec"], dataset: str | None, root: Path, store: str | None) -> "Wants":
    """Collect what the sweeps and options require of each machine."""
    from ascl.data.base import dataset_spec
    from ascl_sweep.doctor.checks import Wants, datasets_of

    wanted = [pair for spec in specs for pair in datasets_of(spec)]
    if dataset is not None:
        dataset_spec(dataset)  # raises an error for an unknown name
        wanted.append((dataset, str(root)))
    datasets = (  # as the driver passes them to workers; each node expands ~ itself
        (name, path if path.startswith("~") else str(Path(path).absolute()))
        for name, path in wanted
    )
    return Wants(tuple(dict.fromkeys(datasets)), store)
