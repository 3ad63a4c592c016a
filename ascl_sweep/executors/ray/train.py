"""Runs of several workers: Ray Train inside a Tune trial.

Ray Train's controller process also imports this module, so it must not import torch.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ascl_sweep.contracts import RunResult, RunState, RunTask
from ascl_sweep.executors.ray import compat

if TYPE_CHECKING:
    from ray import ObjectRef

    from ascl_sweep.executors.ray.shared_data import PackedData


def worker_resources(task: RunTask) -> dict[str, float]:
    """Return the Ray resources of each worker of a run."""
    gpus = task.gpus_per_worker
    return {"CPU": task.cpus_per_worker} | ({"GPU": gpus} if gpus else {})


def node_selector(avoid: Sequence[str]) -> dict[str, str]:
    """Return the label selector of all nodes except these."""
    return {"ray.io/node-id": f"!in({','.join(avoid)})"}


def gpu_name(host: str, node: str, gpu: str) -> str:
    """Return the name of a GPU of a node.

    Not its UUID: that requires CUDA, and a faulty GPU may hang when CUDA is initialized.
    """
    return f"GPU {gpu} of {host}, node {node[:8]}…"


def train_on_workers(task: RunTask, data: "ObjectRef[PackedData] | None", scratch: str) -> None:
    """Train a run on several workers, from within a Tune trial."""
    os.environ.update(compat.REQUIRED_OF_TRAIN)
    from ray import tune

    # These are the classes of Train V2, but mypy sees the stubs of V1 (Ray 2.60).
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    callback = TuneReportCallback()  # type: ignore[no-untyped-call]

    def on_start(ranks: Sequence[compat.Rank]) -> None:
        devices = tuple(gpu_name(r.host, r.node, r.gpus[0]) for r in ranks if r.gpus)
        nodes = tuple(rank.node for rank in ranks)
        result = RunResult(RunState.RUNNING, nodes=nodes, devices=devices, host=ranks[0].host)
        callback.after_report(None, [{"result": result, "done": False}], None)  # type: ignore[arg-type]
        while not {*devices}.isdisjoint(task.avoid_devices):
            time.sleep(1)  # hold the GPUs until this process is killed

    def train_rank(config: dict[str, Any]) -> None:
        # Pickled by value: if a node cannot import ascl_sweep, that is a failure of its rank.
        from ascl_sweep.executors.ray.train import report_results

        report_results(config)

    trainer = TorchTrainer(
        train_rank,
        train_loop_config={"task": asdict(task), "data": data},
        # A rank that waits for a dead or hung rank fails after 10 minutes instead of 30.
        torch_config=TorchConfig(timeout_s=600),
        scaling_config=ScalingConfig(
            num_workers=task.workers,
            use_gpu=bool(task.gpus_per_worker),
            resources_per_worker=worker_resources(task),
            label_selector=node_selector(task.avoid) if task.avoid else None,  # type: ignore[call-arg]
        ),
        run_config=RunConfig(
            name=task.run_id,  # stable, so that a retried trial finds its folder
            storage_path=scratch,
            callbacks=[callback, compat.make_start_callback(on_start)],  # type: ignore[list-item]
            # The controller retries: Ray Train would wait for nodes that may never be added, while
            # other runs could use the available nodes.
            failure_config=FailureConfig(
                max_failures=0,
                controller_failure_limit=0,  # type: ignore[call-arg]
                max_preemption_failures=0,
            ),
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        failures: Mapping[int, BaseException] = getattr(error, "worker_failures", {})
        own = {r: e for r, e in failures.items() if not compat.is_lost_worker_error(e)}
        if not own:
            raise  # Tune reports a dead trial, and the controller a lost run
        from ascl_sweep.executors.worker import describe_failure

        rank, cause = next(iter(own.items()))
        result = describe_failure(compat.unwrap_error(cause), task, rank)
        tune.report({"result": result, "done": True})


def report_results(config: dict[str, Any]) -> None:
    """Train a run on one rank and report its results to Ray Train."""
    import ray.train
    from ray.exceptions import RayError

    from ascl.progress import no_progress
    from ascl_sweep.executors.ray.trainable import load_shared
    from ascl_sweep.executors.worker import run_task

    task, data = RunTask(**config["task"]), config["data"]
    heartbeat = compat.make_heartbeat(task.run_id, task.attempt)
    results = run_task(
        task,
        lambda: load_shared(data) if data else None,
        on_progress=heartbeat if ray.train.get_context().get_world_rank() == 0 else no_progress,
        raises=(RayError,),
    )
    for result in results:
        ray.train.report({"result": result, "done": result.is_last})
