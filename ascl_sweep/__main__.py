"""`python -m ascl_sweep` is `ascl-sweep`."""

from ascl_sweep.cli import main

main()
