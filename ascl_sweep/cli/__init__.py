"""Command line; the only package that prints and exits."""

from ascl_sweep.cli.main import app, main

__all__ = ["app", "main"]
