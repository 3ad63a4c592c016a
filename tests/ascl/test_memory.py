"""Laws of the process's memory."""

import platform
import subprocess
import sys

import pytest

TOUCHED_AGAIN = """
import resource, torch
from ascl.memory import keep_freed
if {keep}:
    keep_freed()
def faults_after(rounds):
    for _ in range(rounds):
        torch.ones(25_000_000)  # 100 MB, freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults_after(16)  # aligned blocks leave gaps that the next one may not fit: a few rounds
print(faults_after(8) - before)
"""


def pages_fetched_anew(*, keep: bool) -> int:
    code = TOUCHED_AGAIN.format(keep=keep)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc's")
def test_what_is_freed_is_not_fetched_from_the_system_again() -> None:
    # Pages may be of 4 kB or of 2 MB.
    assert pages_fetched_anew(keep=True) < pages_fetched_anew(keep=False) / 4
