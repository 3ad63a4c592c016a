"""Laws of the process's memory."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from ascl.memory import peak_gb, reset_peak

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
@pytest.mark.slow
def test_freed_memory_is_reused_without_new_page_faults() -> None:
    # Pages may be of 4 kB or of 2 MB.
    assert pages_fetched_anew(keep=True) < pages_fetched_anew(keep=False) / 4


PEAKS = """
import torch
from ascl.memory import keep_freed, peak_gb, reset_peak
keep_freed()
cpu = torch.device("cpu")
torch.ones(100_000_000)  # 0.4 GB of an earlier run, freed and kept
reset_peak(cpu)
start = peak_gb(cpu)
torch.ones(50_000_000)
print(start, peak_gb(cpu))
"""


@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the system resets no peak"
)
def test_peak_counts_memory_since_the_reset() -> None:
    done = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True)
    start, peak = map(float, done.stdout.split())
    assert 0 < start < peak
    assert 0.19 < peak - start < 0.3, "0.2 GB, and not the 0.4 before"


def test_peak_without_reset_support_is_that_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = torch.device("cpu")
    known = peak_gb(cpu)

    def no_such_file(*args: object, **kwargs: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr("pathlib.Path.read_text", no_such_file)
    monkeypatch.setattr("pathlib.Path.write_text", no_such_file)
    reset_peak(cpu)
    assert known is not None and (peak_gb(cpu) or 0) >= 0.9 * known


def test_device_with_unknown_memory_has_no_peak() -> None:
    assert peak_gb(torch.device("meta")) is None
