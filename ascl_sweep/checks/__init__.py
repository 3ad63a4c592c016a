"""What `doctor` looks at: a module for each subject, with what is found and what to make of it.

`here.py` puts them together for this machine, `probes.py` for every node of a cluster.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: a line, with the way out if what was found will not do."""

    what: str
    found: str
    ok: bool = True
    way_out: str = ""
