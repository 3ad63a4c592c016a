"""Run a sweep on a private Ray whose workers fail once each, in a process of its own.

    python -m tests.faults.faulty_workers FOLDER

The first attempt of the first run fails with an error of its GPU, the first attempt of the second
run stops its own process with SIGSTOP. FOLDER/pids has a line for each attempt: run id, pid.
"""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray import tune

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
SILENCE_MINUTES = 0.5


def make_trainable(folder: str) -> "type[tune.Trainable]":
    from ascl_sweep.executors.ray.trainable import OneWorker

    class Faulty(OneWorker):
        def _start(self, config: dict[str, Any]) -> None:
            super()._start(config)
            task, place = config["assignment"].task, Path(folder)
            with (place / "pids").open("a") as file:
                file.write(f"{task.run_id} {os.getpid()}\n")
            first = len((place / "pids").read_text().splitlines()) <= 2 and task.attempt == 1
            if first and not (place / "gpu").exists():
                (place / "gpu").touch()
                self._break(fail_gpu)
            elif first:
                (place / "hang").write_text(str(os.getpid()))
                self._break(stop_process)

        def _break(self, action: Any) -> None:
            from ascl_sweep.executors import worker

            real = worker.build

            def build(*args: Any, **options: Any) -> Any:
                worker.build = real
                action()

            worker.build = build

    return Faulty


def fail_gpu() -> None:
    import torch

    raise torch.AcceleratorError(
        "CUDA error: an illegal memory access was encountered\nCompile with `TORCH_USE_CUDA_DSA`"
    )


def stop_process() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    from rich.console import Console

    from ascl_sweep.executors.ray.executor import RayExecutor
    from ascl_sweep.runtime.callbacks.console import ConsoleCallback
    from ascl_sweep.runtime.sweeps import prepare_sweeps, run_sweeps
    from ascl_sweep.spec.sweep import parse_sweep
    from ascl_sweep.store.store import Store
    from tests.sweeps import GRID

    text = GRID + f"budget: {{silence_minutes: {SILENCE_MINUTES}}}\n"
    prepared = prepare_sweeps([parse_sweep(text, file="it.yaml")], Store(FOLDER / "store"))
    executor = RayExecutor(make_trainable=lambda: make_trainable(str(FOLDER)))
    console = ConsoleCallback(Console(stderr=True, width=300))
    print(run_sweeps(prepared, executor, console, concurrency=2))


if __name__ == "__main__":
    main()
