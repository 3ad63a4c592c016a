"""The private names of Ray behave as compat.py documents."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.exceptions import (
    ActorDiedError,
    AuthenticationError,
    NodeDiedError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.tune.experiment import Trial

from ascl_sweep.executors.ray import compat
from tests.paths import ROOT
from tests.processes import on_ranks

PRIVATE = re.compile(r"ray\.(.*\.)?(_[a-z]|core\.|scripts\.|train\.v2\b)")

# ---------------------------------------------------------------- one home


def test_no_other_module_uses_a_private_name_of_ray() -> None:
    found = []
    for path in (ROOT / "ascl_sweep").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Attribute) and path.parent.name == "ray":
                own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                names = [] if own else [f"ray.{node.attr}"]
            found += [f"{path.name}:{node.lineno} {name}" for name in names if PRIVATE.match(name)]
    assert [name for name in found if not name.startswith("compat.py:")] == []
    assert found, "compat.py has some"


DOCUMENTED = {
    *("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"),
    "RAY_AUTH_TOKEN_PATH",
}


def test_no_other_module_has_an_undocumented_setting_or_option_of_ray() -> None:
    found = {
        node.value
        for path in (ROOT / "ascl_sweep").rglob("*.py")
        if path.name != "compat.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch("RAY_[A-Za-z_]+|_(temp|node|system|redis)_[a-z_]+", node.value)
    }
    assert found == DOCUMENTED


# ---------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("text", "file"),
    [
        (compat.MEMORY_MONITOR, "core/src/ray/raylet/raylet"),
        ("InvalidAuthToken", "_raylet.so"),
        (compat.START_TIMED_OUT, "_private/node.py"),
        ("Invalid or missing authentication token",
         "_private/authentication/grpc_authentication_server_interceptor.py"),
        (compat.BOOTSTRAP, "autoscaler/_private/commands.py"),
        (compat.AUTHENTICATION_MODE, "dashboard/http_server_head.py"),
        (compat.JOB_EXISTS, "dashboard/modules/job/job_manager.py"),
        (compat.STREAM_BROKEN, "dashboard/modules/job/sdk.py"),
        (compat.FOLDER_SETTING, "_common/utils.py"),
        *((name, "_private/accelerators") for name in compat.SEE_GPUS),
    ],
)  # fmt: skip
def test_a_text_is_still_in_rays_source(text: str, file: str) -> None:
    path = Path(ray.__file__).parent / file
    files = path.glob("*.py") if path.is_dir() else [path]
    assert any(text.encode() in each.read_bytes() for each in files)


def test_rays_own_lines_of_a_jobs_log_are_recognized() -> None:
    jobs = Path(ray.__file__).parent / "dashboard/modules/job"
    assert '"Running entrypoint for job {self._job_id}' in (jobs / "job_supervisor.py").read_text()
    assert 'info("Runtime env is setting up.")' in (jobs / "job_manager.py").read_text()
    ours = "epoch 1: Runtime env is setting up. Running entrypoint for job x"
    rays = [
        "Running entrypoint for job x: ascl-sweep",
        "12:00 INFO x -- Runtime env is setting up.",
    ]
    assert [bool(compat.JOB_LOG.match(line)) for line in (*rays, ours)] == [True, True, False]


def test_the_version_of_the_jobs_api_is_rays_own() -> None:
    from ray.dashboard.modules.version import CURRENT_VERSION

    assert compat.JOBS_API == CURRENT_VERSION


def test_advice_follows_the_error_about_a_rejected_token() -> None:
    error, advice, _ = str(AuthenticationError("wrong token")).partition(compat.TOKEN_ADVICE)
    assert advice and error.startswith("wrong token") and "auth_token" not in error


def test_the_error_of_a_dead_trial_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "error.txt").write_text("The actor died.\n")
    trial = Trial("PPO", stub=True)
    assert compat.read_error(trial) == ""
    trial.run_metadata.error_filename = "error.txt"
    monkeypatch.setattr(Trial, "local_path", str(tmp_path))
    assert compat.read_error(trial) == "The actor died.\n"


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("error", "passed"),
    [
        (OutOfMemoryError("a node is running low on memory"), RayActorError),
        (NodeDiedError("a node died"), RayActorError),
        (ActorDiedError(), ActorDiedError),
        (RayTaskError("step", "traceback", ValueError()), RayTaskError),
    ],
)
def test_a_system_error_of_ray_ends_a_trial_and_not_the_sweep(
    error: RayError, passed: type[RayError]
) -> None:
    seen: list[Exception] = []

    def on_error(actor: object, raised: Exception) -> None:
        seen.append(raised)

    actor = SimpleNamespace(actor_id=1, _on_error=None)
    task: Any = SimpleNamespace(_tracked_actor=actor, _on_error=on_error)
    manager: Any = SimpleNamespace(
        _failed_actor_ids=set(), _cleanup_actor=lambda tracked_actor: None
    )
    before = RayActorManager._actor_task_failed
    with compat.dead_actors_recognized():
        RayActorManager._actor_task_failed(manager, task, error)
        with pytest.raises(RuntimeError, match="unexpected"):
            RayActorManager._actor_task_failed(manager, task, KeyError("a bug"))
    (found,) = seen
    assert type(found) is passed and str(error) in str(found)
    assert RayActorManager._actor_task_failed is before


def test_required_settings_win_over_the_shell_and_preferred_settings_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    required = compat.REQUIRED | compat.REQUIRED_OF_PRIVATE
    for key in (*required, *compat.PREFERRED, *compat.PREFERRED_OF_JOINED):
        monkeypatch.setenv(key, "shell")
    compat.apply_settings(private=False)
    assert {os.environ[key] for key in compat.REQUIRED_OF_PRIVATE} == {"shell"}, "the cluster's own"
    compat.apply_settings(private=True)
    assert {key: os.environ[key] for key in required} == required
    assert {os.environ[key] for key in compat.PREFERRED} == {"shell"}
    assert required["RAY_AUTH_MODE"] == "token" and required["RAY_AIR_NEW_OUTPUT"] == "0"


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "error",
    [
        ActorDiedError(),
        torch.distributed.DistBackendError("NCCL communicator was aborted"),
        RuntimeError("[/x/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]"),
        ConnectionResetError(104, "Connection reset by peer"),
    ],
)
def test_an_error_about_a_lost_process_is_not_the_runs_own(error: Exception) -> None:
    assert compat.is_lost_worker_error(error)


def meet_late(seconds: float) -> torch.Tensor:
    """Meet in a collective whose limit is a second; return whether its error means a lost rank."""
    group = torch.distributed.new_group(timeout=timedelta(seconds=1))
    if torch.distributed.get_rank() == 1:
        time.sleep(seconds)
        return torch.tensor(False)
    try:
        torch.distributed.all_reduce(torch.ones(1), group=group)
    except RuntimeError as error:
        return torch.tensor(compat.is_lost_worker_error(error))
    return torch.tensor(False)


@pytest.mark.slow  # two processes
def test_a_rank_that_waits_in_vain_for_a_hung_rank_is_a_lost_worker() -> None:
    waited, hung = on_ranks(2, meet_late, 3.0)
    assert waited and not hung


def test_ray_trains_errors_about_unhealthy_workers_mean_a_lost_worker() -> None:
    from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

    lost = WorkerHealthCheckFailedError("A worker health check failed.", ActorDiedError())
    assert compat.is_lost_worker_error(lost)


@pytest.mark.parametrize(
    "error",
    [ValueError("a bad value"), RuntimeError("CUDA out of memory"), OSError(28, "No space left")],
)
def test_any_other_error_is_the_runs_own(error: Exception) -> None:
    assert not compat.is_lost_worker_error(error)
    assert compat.unwrap_error(error) is error
    assert compat.unwrap_error(RayTaskError("f", "Traceback", error)) is error


def test_a_version_mismatch_is_recognized_by_rays_own_text() -> None:
    from ray._private.utils import check_version_info, compute_version_info

    with pytest.raises(RuntimeError) as caught:
        check_version_info({"ray_version": "2.1.0", "python_version": "3.9.2"}, "node h")
    found = compat.VERSION_MISMATCH.search(str(caught.value))
    assert found and found.groups() == ("2.1.0", "3.9.2", *compute_version_info())


# ---------------------------------------------------------------- signals


def test_tune_and_ray_cannot_replace_a_signal_handler() -> None:
    from ray._private.utils import set_sigterm_handler
    from ray.tune.tune import _setup_signal_catching

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    with compat.keep_signal_handlers():
        set_sigterm_handler(lambda signum, frame: None)
        _setup_signal_catching()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == before


# ---------------------------------------------------------------- a real private Ray


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Output of private_ray.py, started with environment variables that would make it unsafe."""
    home = tmp_path_factory.mktemp("home")
    shell = {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    shell |= {"RAY_ADDRESS": "127.0.0.1:1", "RAY_AIR_NEW_OUTPUT": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.ascl_sweep.executors.ray.private_ray"],
        env=os.environ
        | shell
        | {"HOME": str(home), "RAY_API_SERVER_ADDRESS": "http://127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return {"stdout": done.stdout.splitlines(), "home": home} | json.loads(
        done.stdout.splitlines()[-1]
    )


@pytest.mark.slow
def test_every_socket_of_a_private_ray_is_on_the_loopback_interface(said: dict[str, Any]) -> None:
    names, addresses = zip(*said["listening"], strict=True)
    assert {"gcs_server", "raylet", "ray::DashboardAgent"} <= set(names)  # and driver, dashboard
    for address in map(ip_address, addresses):
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        assert (mapped or address).is_loopback, said["listening"]
    port, found = said["exposed"]
    assert found == [port], "only the socket on all interfaces is found"


@pytest.mark.slow
def test_a_private_ray_requires_a_token_that_only_its_user_can_read(said: dict[str, Any]) -> None:
    assert said["settings"] == list(compat.REQUIRED_OF_PRIVATE.values())
    (token,) = Path(said["home"], ".ray").iterdir()
    assert token.name == "auth_token" and len(token.read_text()) == 64
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_workers_ask_the_dashboard_of_their_own_ray_whatever_the_shell_says(
    said: dict[str, Any],
) -> None:
    assert said["asked"] == said["nodes"] and len(said["nodes"]) == 1


@pytest.mark.slow
def test_only_a_placement_group_of_a_dead_actor_is_released(said: dict[str, Any]) -> None:
    assert said["groups"] == [["CREATED"], ["REMOVED"]]


@pytest.mark.slow
def test_a_ray_that_starts_too_slowly_is_started_again_and_leaves_no_process(
    said: dict[str, Any],
) -> None:
    assert len(said["nodes"]) == 1
    assert said["daemons"][0].count("gcs_server") == 1


@pytest.mark.slow
def test_a_ranks_error_arrives_as_the_rank_raised_it(said: dict[str, Any]) -> None:
    assert said["rank"] == {"0": "ValueError('a bad value')"}


@pytest.mark.slow
def test_a_trial_that_waits_has_no_process_and_is_unstaged(said: dict[str, Any]) -> None:
    assert said["staged"] == [True, False]
    assert said["actors"] == [True, False]
    assert said["trial_nodes"] == [said["nodes"], []]


@pytest.mark.slow
def test_an_error_of_the_controller_ends_tune_and_is_raised_as_it_is(said: dict[str, Any]) -> None:
    assert said["raised"] == ["KeyError('a bug')", "StoreError('no lock')"]


@pytest.mark.slow
def test_the_driver_reads_the_heartbeats_of_its_workers(said: dict[str, Any]) -> None:
    assert said["beats"] == [None, True, True, None]


@pytest.mark.slow
def test_ray_keeps_our_signal_handlers_and_knows_of_no_draining_node(said: dict[str, Any]) -> None:
    assert said["handlers"] == [True, True] and said["draining"] == {}


@pytest.mark.slow
def test_a_signal_to_the_drivers_process_group_does_not_reach_the_daemons(
    said: dict[str, Any],
) -> None:
    daemons, in_own_group = said["daemons"]
    assert {"gcs_server", "raylet"} <= set(daemons) and in_own_group == []


@pytest.mark.slow
def test_nothing_but_data_goes_to_stdout_and_no_folder_is_left(said: dict[str, Any]) -> None:
    """Ray prints messages about the killed process and about the trial that never started."""
    assert len(said["stdout"]) == 1, said["stdout"]
    assert said["left"] is False
