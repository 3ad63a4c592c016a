"""Sweeps over the trainer `ascl`: plan, run, record, report.

The functions below are the Python API; the command `ascl-sweep` does the same from a shell.
"""

from ascl_sweep.api import build_report, load_sweep, open_store, plan, run

__version__ = "0.1.0"
__all__ = ["build_report", "load_sweep", "open_store", "plan", "run"]
