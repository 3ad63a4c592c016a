"""The GPU path, without a GPU: whole runs on fake CUDA tensors.

An operation on tensors of different devices fails, as on a GPU. `python -m tests.ascl.test_gpu`
records the numbers of kernels anew, after a change that is meant to change them.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from ascl.data.subset import Data, load_data
from ascl.train import build, train
from benchmarks.counting import fake_process_group
from benchmarks.fake_gpu import Issued, fake_gpu
from tests.conftest import SYSTEMS, tiny

RECORDED = Path(__file__).with_name("kernels.json")
PRECISIONS = ("fp32", "bf16")
QUICK = ("ascl",)  # by default; a case takes one to five seconds


@pytest.fixture(scope="module")
def data() -> Data:
    return load_tiny_data()


def load_tiny_data() -> Data:
    own = tiny().data
    return load_data(own.name, own.root, train_size=own.train_size, holdout=own.holdout)


def run_on_gpu(system: str, data: Data, *, precision: str = "fp32", ranks: int = 1) -> list[Issued]:
    """Build, train for one epoch and evaluate; return what each step after the first issued.

    The first step also starts the epoch, and the last one checks the losses: it is left out, too.
    """
    config = tiny(
        system,
        epochs=1,
        eval={"probe": "cached", "probe_epochs": 1},
        runtime={"precision": precision},
    )
    seen: list[Issued] = []
    with fake_process_group(ranks), fake_gpu() as gpu:
        run = build(config, data=data, device=torch.device("cuda"))

        def mark(phase: str, step: int, steps: int) -> None:
            if phase == "train" and step < steps:
                seen.append(gpu.issued)

        (metrics,) = train(run, mark)
    assert metrics.knn_top1 is not None and metrics.probe_top1 is not None
    return [now - before for before, now in pairwise(seen)]


def cases() -> Iterator[object]:
    for system in sorted(SYSTEMS):
        for precision in PRECISIONS:
            for ranks in (1, 2):
                quick = system in QUICK and (precision, ranks) == ("bf16", 1)
                marks = () if quick else pytest.mark.slow
                yield pytest.param(system, precision, ranks, marks=marks)


@pytest.mark.parametrize(("system", "precision", "ranks"), list(cases()))
def test_a_run_on_a_gpu_never_waits_in_a_step_and_issues_no_more_kernels_than_recorded(
    system: str, precision: str, ranks: int, data: Data
) -> None:
    steps = run_on_gpu(system, data, precision=precision, ranks=ranks)
    assert len(steps) == 2
    for step in steps:
        assert step.copies <= 1, "indices, shuffle and draws go in one copy, a step ahead"
        assert (step.blocking, step.reads) == (0, 0), "the host never waits for the device"
    limit = json.loads(RECORDED.read_text())[system][precision][ranks - 1]
    assert max(step.kernels for step in steps) <= limit


def record() -> None:
    data = load_tiny_data()
    counts = {
        system: {
            precision: [
                max(s.kernels for s in run_on_gpu(system, data, precision=precision, ranks=ranks))
                for ranks in (1, 2)
            ]
            for precision in PRECISIONS
        }
        for system in sorted(SYSTEMS)
    }
    lines = (f"  {json.dumps(system)}: {json.dumps(own)}" for system, own in counts.items())
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record()
