"""Use every private name of compat.py on a real private Ray; print the results as JSON."""

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any
from unittest import mock

from ascl_sweep.executors.ray import cluster, compat
from ascl_sweep.executors.ray.cluster import connect_ray, find_exposed_ports, read_cluster


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, own_handler)
    fail_to_start_once()
    with connect_ray(None, dashboard=True) as scratch:
        found = {"nodes": [node.node_id for node in read_cluster(private=True).nodes]}
        found |= (
            beat()
            | drain()
            | handlers()
            | process_groups(scratch)
            | use_actors()
            | train(scratch)
            | tune(scratch)
            | raise_in_controller(scratch)
            | list_sockets(scratch)
        )
        with socket.create_server(("0.0.0.0", 0)) as exposed:
            found["exposed"] = exposed.getsockname()[1], find_exposed_ports(scratch)
    print(json.dumps(found | {"left": scratch.exists()}))


def fail_to_start_once() -> None:
    """Let Ray fail as on a machine that is too busy to start its processes in 30 seconds."""
    init = cluster._init_ray

    def init_slowly(*args: Any) -> str:
        from ray._private import services

        cluster._init_ray = init
        too_late = Exception(f"The current node {compat.START_TIMED_OUT}.")
        with mock.patch.object(services, "get_node", side_effect=too_late):
            return init(*args)

    cluster._init_ray = init_slowly


def beat() -> dict[str, Any]:
    """Send heartbeats from a worker; return what the driver reads before, between and after."""
    import ray

    @ray.remote(num_cpus=0)
    def progress(times: int) -> None:
        heartbeat = compat.make_heartbeat("x", 1)
        for _ in range(times):
            heartbeat("train", 1, 2)

    read = [compat.read_heartbeat("x", 1)]
    for times in (1, 100):
        ray.get(progress.remote(times))
        read.append(compat.read_heartbeat("x", 1))
    other = compat.read_heartbeat("x", 2)
    return {"beats": [read[0], bool(read[1]), read[1] != read[2], other]}


def drain() -> dict[str, Any]:
    """Return the draining nodes of a cluster without any."""
    return {"draining": compat.draining_nodes()}


def handlers() -> dict[str, Any]:
    """Return whether the handlers of SIGTERM and SIGUSR1 changed while Ray started."""
    numbers = signal.SIGTERM, signal.SIGUSR1
    return {"handlers": [signal.getsignal(number) is own_handler for number in numbers]}


def process_groups(scratch: Path) -> dict[str, Any]:
    """Return the names of the daemons, and of those in the driver's process group."""
    import psutil

    children = psutil.Process().children()
    alive = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    daemons = [child for child in alive if str(scratch) in " ".join(child.cmdline())]
    own = [daemon for daemon in daemons if os.getpgid(daemon.pid) == os.getpgid(0)]
    return {"daemons": [[p.name() for p in each] for each in (daemons, own)]}


def own_handler(signum: int, frame: object) -> None: ...


def use_actors() -> dict[str, Any]:
    import ray
    from ray.util.placement_group import placement_group, placement_group_table

    @ray.remote(num_cpus=0)
    class Asker:
        def ask(self) -> tuple[list[str], list[str]]:
            from ray.util.state import list_nodes

            settings = [os.environ[key] for key in compat.REQUIRED_OF_PRIVATE]
            return [node.node_id for node in list_nodes(timeout=30)], settings

        def leak(self) -> None:
            self.group = placement_group([{"CPU": 0.5}])
            ray.get(self.group.ready())

    @ray.remote(num_cpus=0, max_retries=0)
    def die() -> None:
        os._exit(1)  # Ray prints this to stdout unless it is silenced

    asker = Asker.remote()
    answer = ray.get(asker.ask.remote())
    ray.get(asker.leak.remote())
    compat.release_leaked_placement_groups()
    states = [group["state"] for group in placement_group_table().values()]
    ray.kill(asker)
    ray.wait([die.remote()])
    for _ in range(100):
        compat.release_leaked_placement_groups()
        after = [group["state"] for group in placement_group_table().values()]
        if after != states:
            break
        time.sleep(0.1)
    return {"asked": answer[0], "settings": answer[1], "groups": [states, after]}


def train(scratch: Path) -> dict[str, Any]:
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchTrainer

    def fail() -> None:
        raise ValueError("a bad value")

    try:
        TorchTrainer(
            fail,
            scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(
                storage_path=str(scratch / "train"), failure_config=FailureConfig(max_failures=0)
            ),
        ).fit()
    except TrainingFailedError as error:
        return {"rank": {rank: repr(failure) for rank, failure in error.worker_failures.items()}}
    return {}


def tune(scratch: Path) -> dict[str, Any]:
    import ray
    from ray import tune
    from ray.tune.schedulers import FIFOScheduler

    found: dict[str, Any] = {}

    class Count(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            pass

        def step(self) -> dict[str, Any]:
            return {"done": self.training_iteration == 4}

    class Stop(FIFOScheduler):
        """Stops the second trial, which waits for the CPUs of the first trial."""

        def on_trial_result(self, wrapper: Any, trial: Any, result: dict[str, Any]) -> str:
            waiting = [t for t in wrapper.get_trials() if t.status == "PENDING"]
            staged = wrapper._tune_controller._staged_trials
            if waiting and waiting[0] in staged:
                both = trial, waiting[0]
                actors = [compat.trial_actor(wrapper, t) for t in both]
                found["trial_nodes"] = [compat.trial_nodes(wrapper, t) for t in both]
                compat.stop_trial(wrapper, waiting[0])
                found["staged"] = [True, waiting[0] in staged]
                found["actors"] = [actor is not None for actor in actors]
            return str(FIFOScheduler.CONTINUE)

        def __reduce__(self) -> Any:
            return FIFOScheduler, ()

    cpus = ray.cluster_resources()["CPU"]
    tune.Tuner(
        tune.with_resources(Count, {"CPU": cpus}),
        tune_config=tune.TuneConfig(scheduler=Stop(), num_samples=2, reuse_actors=True),
        run_config=tune.RunConfig(
            storage_path=str(scratch / "tune"),
            verbose=0,
            callbacks=[compat.quiet_progress_callback()],
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    ).fit()
    return found


def raise_in_controller(scratch: Path) -> dict[str, Any]:
    """Return what is raised if the controller raises an error for a result or for its end."""
    from unittest.mock import Mock

    from ray import tune

    from ascl_sweep.contracts import RunResult, RunState, RunTask
    from ascl_sweep.errors import StoreError
    from ascl_sweep.executors.ray.tune import run_tune
    from ascl_sweep.spec.sweep import Resources

    class Instant(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            pass

        def step(self) -> dict[str, Any]:
            return {"result": RunResult(RunState.RUNNING), "done": self.training_iteration == 2}

    config = {"data": {"name": "imagenet", "root": "", "train_size": None, "holdout": 0.0}}
    task = RunTask("x", 1, config, str(scratch), recorded=0)
    raised = []
    cases: list[list[object]] = [
        [KeyError("a bug")],  # Tune raises a TuneError
        [True, StoreError("no lock")],  # the run must stop: Tune only logs the error
    ]
    for outcomes in cases:
        source = Mock(kinds=[Resources()], is_over=False, is_idle=False)
        source.configure_mock(name=f"sweep {len(raised)}")
        source.next_task.side_effect = [task, *[None] * 1000]
        source.silent_attempts.return_value = []
        source.is_withdrawn.return_value = False
        source.on_result.side_effect = outcomes
        try:
            run_tune(source, Mock(get=lambda key: None), scratch, Instant)
        except Exception as error:
            raised.append(repr(error))
    return {"raised": raised}


def list_sockets(scratch: Path) -> dict[str, Any]:
    """Return every address on which a process of this Ray listens, found with psutil."""
    import psutil

    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    found = set()
    for process in psutil.process_iter():
        try:
            if process in family or str(scratch) in " ".join(process.cmdline()):
                for line in process.net_connections("inet"):
                    if line.status == psutil.CONN_LISTEN:
                        found.add((process.name(), line.laddr.ip))
        except psutil.Error:
            pass
    return {"listening": sorted(found)}


if __name__ == "__main__":
    main()
