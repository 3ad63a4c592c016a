"""The command line; the only package that prints and exits."""

from ascl_sweep.cli import doctor, embed, keep, look, paper, plan, report, submit, sweep, train
from ascl_sweep.cli.app import app, main

__all__ = [
    "app",
    "doctor",
    "embed",
    "keep",
    "look",
    "main",
    "paper",
    "plan",
    "report",
    "submit",
    "sweep",
    "train",
]
