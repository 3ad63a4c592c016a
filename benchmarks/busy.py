"""Training beside other work: the speed of `ascl-sweep train` on an idle and on a busy machine.

Each measure starts the command, so that OpenMP's settings are those of a user. A busy machine runs
one endless loop per core besides. Idle and busy measures alternate; medians of `ROUNDS`.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median

ROUNDS, EPOCHS, WARM_UP = 5, 6, 2
CORES = os.cpu_count() or 1
CONFIG = f"""
epochs: {EPOCHS}
batch_size: 64
data: {{name: shapes, train_size: 1280}}
encoder: {{width: 8}}
method: {{name: simclr}}
eval: {{probe: none, knn_every: {EPOCHS}}}
"""
# What OpenMP does if we set nothing: an empty value of ours keeps `ascl` from setting its own.
OPENMP_DEFAULT = {"OMP_WAIT_POLICY": ""}


def images_per_second(env: Mapping[str, str], *, busy: bool) -> float:
    """Train for some epochs in a new process; return the median speed after the warm-up."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        config = Path(name) / "run.yaml"
        config.write_text(CONFIG)
        for _ in range(CORES if busy else 0):
            loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(loop.wait)
            stack.callback(loop.kill)
        command = [sys.executable, "-m", "ascl_sweep", "train", str(config), "--json"]
        command += ["--out", f"{name}/run"]
        out = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | env
        )
    epochs = [json.loads(line) for line in out.stdout.decode().splitlines()]
    return median(epoch["images_per_second"] for epoch in epochs[WARM_UP:])


def measure(envs: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[float, float]]:
    """Return the speed of each environment on an idle and on a busy machine."""
    speeds: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in envs}
    for _ in range(ROUNDS):
        for name, env in envs.items():
            for busy in (False, True):
                speeds[name][busy].append(images_per_second(env, busy=busy))
    return {name: (median(idle), median(busy)) for name, (idle, busy) in speeds.items()}
