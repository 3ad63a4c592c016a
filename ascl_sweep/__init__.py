"""Sweeps over the trainer `ascl`: plan, run, record, report."""

__version__ = "0.1.0"
