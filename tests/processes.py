"""Run a function on several ranks of a real gloo process group, and get what each returns."""

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


def _rank(rank: int, world: int, folder: str, function: Callable[..., Any]) -> None:
    torch.set_num_threads(1)
    # A spawned process spawns its children, each loading PyTorch anew; Ray's workers do not.
    multiprocessing.set_start_method(None, force=True)  # type: ignore[arg-type]
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # stay on this machine
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world
    )
    try:
        torch.save(function(), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def on_ranks(world: int, function: Callable[[], Any]) -> list[Any]:
    """`function()` on each of `world` fresh processes; it must be importable."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (world, folder, function), nprocs=world)
        return [torch.load(Path(folder) / f"{r}.pt", weights_only=True) for r in range(world)]
