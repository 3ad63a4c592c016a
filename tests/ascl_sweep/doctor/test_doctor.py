"""The checks of `doctor`, on fake machines and (slow) on a real cluster of two nodes."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ascl_sweep.doctor import cluster, machine
from ascl_sweep.doctor.checks import (
    Check,
    Wants,
    check_capacity,
    check_dashboard,
    check_store,
    datasets_of,
    delete_probe,
    existing_part,
    write_probe,
)
from ascl_sweep.doctor.cluster import compare_versions
from ascl_sweep.doctor.machine import (
    PACKAGES,
    check_gpus,
    check_machine,
    gpus_of_system,
    import_errors,
    missing_here,
)
from ascl_sweep.executors.ray.address import find_free_port
from ascl_sweep.executors.ray.probes import NodeInfo
from ascl_sweep.runtime.cluster import Cluster, Node
from ascl_sweep.spec.sweep import parse_sweep
from tests.ascl_sweep.conftest import Ask
from tests.sweeps import GRID, command, descendants, environment, kill, title, wait_until

VERSIONS = {"Python": "3.12.1", **dict.fromkeys(PACKAGES, "2.0"), "ascl-sweep": "1.0"}


def bad(found: Iterator[Check] | Sequence[Check]) -> list[str]:
    return [check.what for check in found if not check.ok]


@pytest.fixture(autouse=True)
def no_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "import_errors", lambda names: {})  # it takes seconds


# ---------------------------------------------------------------- one machine


@pytest.mark.parametrize(
    ("free", "shm", "what"),
    [(10**8, 10**10, "disk"), (10**11, 10**7, "shared memory"), (10**11,) * 2 + (None,)],
)
def test_a_full_disk_or_shared_memory_is_to_be_fixed(
    free: int, shm: int, what: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = lambda path: SimpleNamespace(free=shm if path == machine.SHM else free)  # noqa: E731
    monkeypatch.setattr(shutil, "disk_usage", usage)
    found = list(check_machine(Wants(), gpus=0))
    assert bad(found) == ([what] if what else [])
    assert all(check.way_out for check in found if not check.ok)


def test_a_folder_that_is_not_ours_to_write_is_to_be_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (disk,) = [check for check in check_machine(Wants(), gpus=0) if check.what == "disk"]
    assert not disk.ok and "not writable" in disk.found


@pytest.mark.parametrize(
    ("shown", "count"), [(None, 2), ("", 0), ("1", 1), ("0,1,2", 2), ("-1", 0), ("1,-1,0", 1)]
)
def test_gpus_that_are_hidden_on_purpose_are_not_missed(
    shown: str | None, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    monkeypatch.setattr(machine, "DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert gpus_of_system() == count


@pytest.mark.parametrize(
    ("error", "expected", "found"),
    [
        (None, 1, None),
        ("CUDA error: out of memory", 1, None),  # a sweep that runs now may fill it
        (
            "CUDA error: no kernel image\nfor you",
            1,
            "GPU 0 fails a matrix product: CUDA error: no kernel",
        ),
        (None, 2, "PyTorch sees 1 of 2"),
    ],
)
def test_each_gpu_is_counted_and_tried(
    error: str | None, expected: int, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ones = torch.ones

    def act(*shape: int, device: str) -> torch.Tensor:
        if error:
            raise RuntimeError(error)
        return ones(*shape)

    monkeypatch.setattr(torch, "ones", act)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "A")
    check = check_gpus(expected)
    assert check.ok == (found is None)
    assert (found or "A (PyTorch for") in check.found


# ---------------------------------------------------------------- packages


def test_versions_must_be_equal_and_whose_differ_is_named() -> None:
    other = {**VERSIONS, "torch": "2.1"}
    ours = {"ray": "2.0", "Python": "3.12.1"}  # other packages of this machine do not matter
    found = list(compare_versions({"a": VERSIONS, "b": other, "this machine": ours}))
    assert bad(found) == ["torch"]
    by_what = {check.what: check.found for check in found}
    assert by_what["torch"] == "2.0 on a; 2.1 on b"
    assert by_what["ray"] == "2.0, the same on 3 machines"
    assert by_what["pyarrow"] == "2.0, the same on 2 machines"


def test_builds_of_one_version_are_one_version_and_another_commit_is_another() -> None:
    found = {"head": {**VERSIONS, "torch": "2.0+cpu"}, "b": {**VERSIONS, "torch": "2.0+cu130"}}
    assert bad(compare_versions(found)) == []
    found = {c: {**VERSIONS, "ascl-sweep": f"1.0 (commit {c})"} for c in ("aaa", "bbb")}
    assert bad(compare_versions(found)) == ["ascl-sweep"]


@pytest.mark.slow
def test_every_package_is_imported_in_a_process_that_it_may_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name, text in {
        "torch": "print('noise'); raise OSError('no such library')",
        "ray": "import os; os.abort()",
        "optuna": "print('fine')",
        "pyarrow": "import time; time.sleep(60)",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(machine, "IMPORT_SECONDS", 5.0)
    assert import_errors(["torch", "ray", "optuna", "pyarrow"]) == {
        "torch": "cannot be imported: OSError: no such library",
        "ray": "cannot be imported: the process exited with code -6",
        "pyarrow": "cannot be imported: timed out after 5 s",
    }


def test_doctor_loads_without_pyarrow() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import ascl_sweep.store.address, ascl_sweep.doctor.machine, ascl_sweep.doctor.cluster"
    )
    said = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True)
    assert said.returncode == 0, said.stderr


# ---------------------------------------------------------------- store, dashboard, sweeps


def test_the_store_check_leaves_no_files(tmp_path: Path) -> None:
    assert check_store(str(tmp_path)).ok
    assert check_store(str(tmp_path / "not" / "there")).ok
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert check_store(str(tmp_path / "file")).found == "cannot be written: File exists"
    assert not check_store("nonsense://x").ok


def test_a_store_without_access_is_detected(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    root = os.geteuid() == 0
    if root:  # root may read everything
        os.seteuid(65534)
    try:
        store = str(tmp_path / "closed" / "a" / "b")
        assert not os.access(existing_part(store), os.W_OK, effective_ids=True)
        assert "ermission denied" in check_store(store).found
    finally:
        if root:
            os.seteuid(0)


def test_a_folder_that_differs_between_nodes_is_detected(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        folder.mkdir()
    name = write_probe(str(mine))
    assert check_store(str(mine), name).ok
    assert "not shared" in check_store(str(other), name).found
    delete_probe(str(mine), name)
    assert list(mine.iterdir()) == []


def test_a_cluster_without_authentication_is_to_be_fixed() -> None:
    assert bad(check_dashboard("token")) == []
    assert bad(check_dashboard("disabled")) == ["token"]
    assert bad(check_dashboard(None)) == ["dashboard"]


def test_a_sweep_that_does_not_fit_is_to_be_fixed() -> None:
    spec = parse_sweep(GRID + "resources: {gpus_per_worker: 1}\n", file="x")
    for gpus, fine in ((0, False), (2, True)):
        (check,) = check_capacity([spec], Cluster((Node("a", 8, gpus),)))
        assert check.ok == fine, check


def test_every_dataset_that_a_sweep_may_read_is_looked_for() -> None:
    grid = "name: x\nbase: {data: {root: /d}}\nspace: {grid: {data.name: [cifar10, shapes]}}\n"
    search = (
        "name: x\nbase: {data: {root: /d}}\nbudget: {trials: 3}\n"
        "space: {optuna: {domains: {data.name: {choice: [cifar100, stl10]}}}}\n"
    )
    assert datasets_of(parse_sweep(grid, file="x")) == [("cifar10", "/d")]
    names = [name for name, _ in datasets_of(parse_sweep(search, file="x"))]
    assert {"cifar100", "stl10"} <= set(names)


def test_every_missing_requirement_is_listed_once(tmp_path: Path) -> None:
    text = (
        f"name: x\nbase: {{data: {{root: {tmp_path}}}}}\nresources: {{gpus_per_worker: 64}}\n"
        "space: {grid: {data.name: [cifar10, stl10]}}\n"
    )
    specs = [parse_sweep(text, file="x"), parse_sweep(text.replace("name: x", "name: y"), file="y")]
    missing = missing_here(specs)
    assert [line.split()[0] for line in missing] == ["cifar10", "stl10", "a"]
    assert "gpus_per_worker=64" in missing[-1]
    assert missing_here([parse_sweep(GRID, file="x")]) == []


# ---------------------------------------------------------------- nodes


def acted_nodes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Wants], list[Check]]:
    """Return the checks of a head without CPUs, a node with CPUs and a silent node."""

    def ask_nodes(
        nodes: Sequence[NodeInfo], questions: Mapping[str, Callable[[], Any]], *, seconds: float
    ) -> tuple[dict[str, Any], dict[str, str]]:
        silent = {node.name: "no answer" for node in nodes if node.name == "silent"}
        return {n.name: questions[n.name]() for n in nodes if n.name not in silent}, silent

    nodes = [NodeInfo(name, name, name == "head") for name in ("head", "node", "silent")]
    monkeypatch.setattr(cluster, "list_nodes", lambda: nodes)
    monkeypatch.setattr(cluster, "ask_nodes", ask_nodes)
    monkeypatch.setattr(cluster, "installed_versions", lambda: VERSIONS)
    monkeypatch.setattr(cluster, "check_packages", list)
    monkeypatch.setattr(cluster, "dashboard_url", lambda: "127.0.0.1:1")
    monkeypatch.setattr(cluster, "dashboard_authentication", lambda url: "token")
    there = (Node("head", 0, 0), Node("node", 2, 0), Node("silent", 2, 0))
    return lambda wants: list(cluster._check_nodes(Cluster(there), [], wants, lambda text: None))


def test_datasets_are_looked_for_where_runs_start_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = acted_nodes(monkeypatch)(Wants((("cifar10", "/d"),)))
    asked = [check.what for check in found if "dataset" in check.what]
    assert asked == ["node dataset cifar10 in /d"]
    assert "head disk" in {check.what for check in found}, "other checks run on the head too"


def test_an_unresponsive_node_is_named_and_does_not_delay_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = acted_nodes(monkeypatch)(Wants(store=str(tmp_path)))
    assert bad(found) == ["silent node"]
    stores = {check.what for check in found if "store" in check.what}
    assert stores == {f"{at}store {tmp_path}" for at in ("", "head ", "node ")}
    assert list(tmp_path.iterdir()) == [], "no probe is left"


# ---------------------------------------------------------------- the command


def test_a_fault_is_a_fix_line_and_exit_code_4(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: a\nbase: {data: {name: cifar10}}\n")
    said = ask("doctor", "a.yaml", "--data", "stl10", "--root", "elsewhere")
    assert said.exit_code == 4
    fixes = [line for line in said.stdout.splitlines() if line.startswith("fix ")]
    assert len(fixes) == 2 and "cifar10" in fixes[0] and "elsewhere" in fixes[1]
    assert all(re.match(r"(ok |fix) \S", line) for line in said.stdout.splitlines())
    assert "must be fixed first" in said.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"a.yaml"}, "checking creates nothing"


@pytest.mark.parametrize(
    ("store", "meant"), [("results", "HERE/results"), ("/abs", "/abs"), ("s3://b/r", "s3://b/r")]
)
def test_a_folder_is_the_callers_on_every_node(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, meant: str
) -> None:
    asked = []

    def check_cluster(address: str, specs: Any, wants: Wants, say: Any) -> Iterator[Check]:
        asked.append(wants.store)
        return iter(())

    monkeypatch.setattr(cluster, "check_cluster", check_cluster)
    assert ask("doctor", "--address", "h:1", "--store", store).exit_code == 0
    assert asked == [meant.replace("HERE", str(tmp_path))]


def test_gpus_of_the_system_that_pytorch_does_not_see_are_to_be_fixed(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(machine, "DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    said = ask("doctor")
    assert said.exit_code == 4 and said.stderr == "error: GPUs must be fixed first\n"
    assert "fix GPUs: PyTorch sees 0 of 1 (PyTorch for " in said.stdout


def test_json_equals_the_text_output(ask: Ask) -> None:
    said = ask("doctor")
    assert said.exit_code == 0, said.stderr
    found = [Check(**check) for check in json.loads(ask("doctor", "--json").stdout)]
    names = [line[4:].partition(":")[0] for line in said.stdout.splitlines()]
    assert [check.what for check in found] == names
    assert {"Python", *PACKAGES, "ascl-sweep", "GPUs", "CPUs", "disk"} <= set(names)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data", "mnist"], "no dataset named 'mnist'"),
        (["none.yaml"], "none.yaml: no such file; give a sweep file"),
        (["--ray", "--address", "auto"], "--ray starts a private Ray and cannot be combined"),
        (["--set", "epochs=3"], "--set and --scale need a sweep file"),
        (["--scale", "laptop"], "--set and --scale need a sweep file"),
        (["--root", "d"], "--root needs --data"),
        (["--store", ""], "--store must be a folder or a URL, got an empty string"),
        (["--store", "s3://KEY:SECRET@b/r"], "the store's address must not contain a password"),
        (["--address", "nonsense"], "must be auto, HOST:PORT of its head"),
        (["--address", ""], "must be auto, HOST:PORT of its head"),
    ],
)
def test_bad_usage_is_no_fault_of_the_machine(ask: Ask, words: list[str], sentence: str) -> None:
    said = ask("doctor", *words)
    assert said.exit_code == 2 and sentence in said.stderr
    assert "SECRET@" not in said.output


def test_the_last_line_names_a_few_however_much_is_to_be_fixed(ask: Ask, tmp_path: Path) -> None:
    names = "[cifar10, cifar100, stl10, tiny_imagenet]"
    (tmp_path / "a.yaml").write_text(f"name: a\nspace: {{grid: {{data.name: {names}}}}}\n")
    said = ask("doctor", "a.yaml")
    assert said.exit_code == 4 and said.stderr.count("dataset") == 3
    assert said.stderr.strip().endswith("and 1 more must be fixed first")


def test_a_missing_package_is_reported_and_the_other_checks_still_run(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = machine.version

    def version(name: str) -> str:
        if name in ("ray", "pyarrow"):
            raise PackageNotFoundError(name)
        return there(name)

    monkeypatch.setattr(machine, "version", version)
    said = ask("doctor", "--ray", "--store", ".")
    assert said.exit_code == 4 and said.stderr == "error: ray, pyarrow must be fixed first\n"
    assert "fix ray: not installed; run `pip install" in said.stdout


def test_without_pytorch_there_is_still_a_doctor() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from ascl_sweep.doctor import machine\n"
        "machine.import_errors = lambda names: {'torch': 'cannot be imported: so'}\n"
        "from ascl_sweep.cli import app; app(['doctor', '--data', 'cifar10'])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True
    )
    assert said.returncode == 4 and "Traceback" not in said.stderr, said.stderr
    assert "fix torch: cannot be imported: so; run `pip install" in said.stdout


@pytest.mark.parametrize("address", ["127.0.0.1:PORT", "ray://127.0.0.1:PORT"])
def test_a_missing_cluster_is_reported_in_one_line(tmp_path: Path, address: str) -> None:
    address = address.replace("PORT", str(find_free_port()))
    said = subprocess.run(
        command("doctor", "--address", address),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,  # Ray itself retries for a quarter of an hour
    )
    assert said.returncode == 4
    (line,) = said.stdout.splitlines()
    assert line.startswith("fix Ray: nothing answers at ") and "Connection refused" in line
    connecting, sorry = said.stderr.splitlines()
    assert connecting == f"connecting to Ray at {address} …"
    assert sorry == "error: Ray must be fixed first"


@pytest.mark.slow
def test_a_private_ray_is_started_and_asks_for_a_token(tmp_path: Path) -> None:
    said = subprocess.run(
        command("doctor", "--ray"),
        env=environment() | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    for line in ("ok  Ray: starts, with", "ok  dashboard: responds", "ok  token: required"):
        assert line in said.stdout


# ---------------------------------------------------------------- a real cluster

NODES = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={
    "num_cpus": 2, "include_dashboard": True, "dashboard_port": 0, "temp_dir": sys.argv[1]})
node = cluster.add_node(num_cpus=1, num_gpus=2)
print(cluster.address, node.all_processes["raylet"][0].process.pid, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


class Two:
    """A head and a node that claims two GPUs, without a token."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="ascl-two-", dir="/tmp")
        # Otherwise Ray writes the cluster's address where other users' processes look for theirs.
        here = {"HOME": self.folder.name, "RAY_TMPDIR": self.folder.name}
        self.env = environment() | here | {"RAY_AUTH_MODE": "disabled"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", NODES, f"{self.folder.name}/ray"],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout
        self.address, raylet = self.process.stdout.readline().split()
        self.raylet = int(raylet)

    def ask(self, *words: object, patience: float = 60) -> tuple[int, list[Check]]:
        code = f"""
import ascl_sweep.doctor.cluster
ascl_sweep.doctor.cluster.ANSWER_SECONDS = {patience}
from ascl_sweep.cli import app
app()
"""
        said = subprocess.run(
            [sys.executable, "-c", code, "doctor", "--json", "--address", self.address]
            + [str(word) for word in words],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert "Traceback" not in said.stderr, said.stderr
        return said.returncode, [Check(**check) for check in json.loads(said.stdout)]

    def close(self) -> None:
        for pid in (self.process.pid, *descendants(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):  # it ended with its parent
                kill(pid)
        self.process.wait()
        wait_until(lambda: not self.left(), seconds=60)
        self.folder.cleanup()

    def left(self) -> list[str]:
        pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
        return [text for pid in pids if self.folder.name in (text := title(pid))]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_node_of_a_cluster_is_checked_and_a_silent_one_is_named(tmp_path: Path) -> None:
    """In this order, because Ray may give up a node that was silent."""
    with contextlib.closing(Two()) as two:
        check_that_every_node_is_checked(two, tmp_path)
        os.kill(two.raylet, signal.SIGSTOP)
        code, found = two.ask(patience=30)
    (silent,) = [check for check in found if check.what.endswith(" node")]
    assert code == 4 and not silent.ok and silent.found and silent.way_out
    assert sum(check.what.endswith(" disk") for check in found) == 1, "the other node is checked"


def check_that_every_node_is_checked(two: Two, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(GRID)
    words = (tmp_path / "sweep.yaml", "--store", tmp_path, "--data", "cifar10", "--root", tmp_path)
    code, found = two.ask(*words)
    by_what = {check.what: check for check in found}
    nodes = {what.split()[0] for what in by_what if what.endswith(" disk")}
    assert len(nodes) == 2 and by_what[f"store {tmp_path}"].ok
    for node in nodes:
        for what in ("CPUs", "disk", "shared memory", f"store {tmp_path}"):
            assert by_what[f"{node} {what}"].ok
        assert not by_what[f"{node} dataset cifar10 in {tmp_path}"].ok
    assert by_what["torch"].found.endswith("the same on 2 machines")
    assert by_what["ray"].found.endswith("the same on 3 machines")
    assert by_what["capacity for grid"].ok
    assert code == 4
    # The expected faults: no token is required, and PyTorch finds no GPUs on the node.
    rest = [what for what in bad(found) if "dataset" not in what]
    assert len(rest) == 2 and any(what.endswith(" token") for what in rest), rest
    (gpus,) = [by_what[what] for what in rest if what.endswith("GPUs")]
    assert "PyTorch sees 0 of 2" in gpus.found
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"], "no probe is left"
