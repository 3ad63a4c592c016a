"""`ascl-sweep schema`: print the JSON Schema of sweep files."""

import json

import typer


def schema() -> None:
    """Print the JSON Schema of sweep files, for completion in editors."""
    from ascl_sweep.spec.sweep import json_schema

    typer.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
