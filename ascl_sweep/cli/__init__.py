"""The command line; the only package that prints and exits."""

from ascl_sweep.cli import embed, keep, look, paper, report, sweep, train
from ascl_sweep.cli.app import app, main

__all__ = ["app", "embed", "keep", "look", "main", "paper", "report", "sweep", "train"]
