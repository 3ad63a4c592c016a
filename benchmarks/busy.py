"""Training beside other work: the speed of `ascl-sweep train` on an idle and on a busy machine.

Each measure is a new process of the command. A busy machine runs one endless loop per core besides.
All measures alternate; medians of `ROUNDS`.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.timing import Ratio

ROUNDS, EPOCHS, WARM_UP = 5, 6, 2
CONFIG = f"""
epochs: {EPOCHS}
batch_size: 64
data: {{name: shapes, train_size: 1280}}
encoder: {{width: 8}}
method: {{name: simclr}}
eval: {{probe: none, knn_every: {EPOCHS}}}
"""
COMMAND = "from ascl_sweep.cli import main; main()"
# The command without adapting the number of threads, as before.
FIXED = f"import ascl.threads; ascl.threads.StepThreads.adapt = lambda self: None; {COMMAND}"


def images_per_second(command: str, *, busy: bool) -> float:
    """Train for some epochs in a new process; return the median speed after the warm-up."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        config = Path(name) / "run.yaml"
        config.write_text(CONFIG)
        for _ in range(os.cpu_count() or 1 if busy else 0):
            loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(loop.wait)
            stack.callback(loop.kill)
        words = [sys.executable, "-c", command, "train", config, "--json", "--out", f"{name}/run"]
        out = subprocess.run(words, check=True, text=True, stdout=-1, stderr=subprocess.DEVNULL)
    epochs = [json.loads(line) for line in out.stdout.splitlines()]
    return median(epoch["images_per_second"] for epoch in epochs[WARM_UP:])


def run() -> Iterator[Ratio]:
    cases = [(command, busy) for command in (COMMAND, FIXED) for busy in (False, True)]
    rounds = [[1 / images_per_second(c, busy=busy) for c, busy in cases] for _ in range(ROUNDS)]
    idle, busy, fixed_idle, fixed_busy = map(median, zip(*rounds, strict=True))
    note = "per image; inverse of the share of the idle speed"
    what = "SimCLR beside one endless loop per core, over an idle machine"
    yield Ratio(what, busy, idle, "≤ 2.5", speedup=False, note=note)
    what = f"{what}: fixed number of threads"
    yield Ratio(what, fixed_busy, fixed_idle, "–", speedup=False, note=note)
    what = "idle machine: adaptive over fixed number of threads"
    yield Ratio(what, idle, fixed_idle, "≤ 1.03", speedup=False)
