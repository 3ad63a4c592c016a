"""Entry point of `python -m ascl_sweep`, the same as the command `ascl-sweep`."""

from ascl_sweep.cli import main

main()
