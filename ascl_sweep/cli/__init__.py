"""The command line; the only package that prints and exits."""

from ascl_sweep.cli import keep, look, sweep, train
from ascl_sweep.cli.app import app, main

__all__ = ["app", "keep", "look", "main", "sweep", "train"]
