"""Run a function on several ranks of a real gloo process group, and get what each returns."""

import faulthandler
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

STUCK_SECONDS = 240.0  # then a rank shows where it is stuck and ends, before pytest's own limit

# Ranks are forked from one server that has imported what is slow to import. Spawned ranks each
# import PyTorch again: on two busy cores that alone took from 20 seconds to minutes per test.
multiprocessing.set_forkserver_preload(
    ["torch", "torchvision", "pytest", "hypothesis", "ascl.train"]
)


def _rank(rank: int, world: int, folder: str, function: Callable[..., Any], *args: Any) -> None:
    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
    torch.set_num_threads(1)
    # DataLoader workers must be forked from the rank, as on Ray, and not from the server.
    multiprocessing.set_start_method(None, force=True)  # type: ignore[arg-type]
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # stay on this machine
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world
    )
    try:
        torch.save(function(*args), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def on_ranks(world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """`function(*args)` on each of `world` new processes; it must be importable."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(
            _rank, (world, folder, function, *args), nprocs=world, start_method="forkserver"
        )
        return [torch.load(Path(folder) / f"{r}.pt", weights_only=True) for r in range(world)]
