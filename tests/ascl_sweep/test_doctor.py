"""What `doctor` makes of what it finds, by laws; and (slow) of a real cluster of two nodes."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.fs as pafs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from ascl_sweep import lock
from ascl_sweep.checks import Check, here, machine, packages, probes
from ascl_sweep.checks.clocks import SKEW_SECONDS, Skew, of_clock, skew
from ascl_sweep.checks.dashboard import of_dashboard
from ascl_sweep.checks.machine import Facts, Gpu, Wants, gpus_of_system, of_machine
from ascl_sweep.checks.packages import PACKAGES, of_versions, outdated, unloadable
from ascl_sweep.checks.stores import existing, leave_in, store_fault, take_away
from ascl_sweep.checks.sweeps import datasets_of, of_sweeps
from ascl_sweep.cli import app
from ascl_sweep.jobs import free_port
from ascl_sweep.room import Cluster, Node
from ascl_sweep.spec import spec_of
from ascl_sweep.store import Store
from tests.sweeps import GRID, command, descendants, environment, kill, title, wait_until

Ask = Callable[..., Result]
VERSIONS = {"Python": "3.12.1", "ascl-sweep": "1.0", **dict.fromkeys(PACKAGES, "2.0")}
FINE = Facts(VERSIONS, "13.0", (Gpu("A", None),), 8, ("/tmp", 10**11, True), 10**10)


def bad(found: list[Check]) -> list[str]:
    return [check.what for check in found if not check.ok]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "unloadable", lambda installed: {})  # it takes seconds
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


# ---------------------------------------------------------------- one machine


def test_a_machine_that_has_all_needs_no_mending() -> None:
    assert bad(of_machine(FINE, gpus=1)) == []


@pytest.mark.parametrize(
    ("changes", "what", "found"),
    [
        ({"gpus": ()}, "GPUs", "PyTorch sees 0 of 1 (PyTorch for CUDA 13.0)"),
        ({"gpus": (), "cuda": None}, "GPUs", "PyTorch for the CPU only"),
        ({"gpus": (Gpu("A", "no kernel image"),)}, "GPUs", "A does not compute: no kernel image"),
        ({"disk": ("/tmp", 10**8, True)}, "disk", "0.1 GB free in /tmp"),
        ({"disk": ("/tmp", 10**11, False)}, "disk", "not ours to write"),
        ({"shm": 10**7}, "shared memory", "0.0 GB"),
        ({"datasets": {"cifar10 in d": "it is not in d; get it"}}, "dataset cifar10 in d", "get"),
    ],
)
def test_each_thing_that_would_fail_a_sweep_is_to_be_fixed_with_a_way_out(
    changes: dict[str, object], what: str, found: str
) -> None:
    checks = of_machine(replace(FINE, **changes), gpus=1, at="")  # type: ignore[arg-type]
    assert bad(checks) == [what]
    (check,) = [check for check in checks if not check.ok]
    assert found in check.found and (check.way_out or ";" in check.found)


def test_a_machine_without_gpus_is_fine_if_none_was_promised() -> None:
    assert bad(of_machine(replace(FINE, gpus=(), cuda=None, shm=None), gpus=0)) == []


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
    ("error", "gpu"),
    [
        (None, Gpu("A, 3 of 4 GB free", None)),
        ("CUDA error: out of memory", Gpu("A, full now", None)),
        ("CUDA error: no kernel image\nfor you", Gpu("A", "CUDA error: no kernel image")),
    ],
)
def test_each_gpu_is_tried(error: str | None, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    ones = torch.ones

    def act(*shape: int, device: str) -> torch.Tensor:
        if error:
            raise RuntimeError(error)
        return ones(*shape)

    monkeypatch.setattr(torch, "ones", act)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "A")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (3 * 10**9, 4 * 10**9))
    assert machine._devices() == (torch.version.cuda, (gpu,))


# ---------------------------------------------------------------- packages


def test_versions_must_be_equal_and_whose_differ_is_named() -> None:
    other = {**VERSIONS, "torch": "2.1"}
    found = of_versions({"a": VERSIONS, "b": other, "c": VERSIONS})
    assert bad(found) == ["torch"]
    (check,) = [check for check in found if not check.ok]
    assert check.found == "2.0 on a, c; 2.1 on b"


def test_builds_of_one_version_are_one_version() -> None:
    found = {"head": {**VERSIONS, "torch": "2.0+cpu"}, "b": {**VERSIONS, "torch": "2.0+cu130"}}
    assert bad(of_versions(found)) == []


def test_another_commit_is_another_version() -> None:
    found = {c: {**VERSIONS, "ascl-sweep": f"1.0 (commit {c})"} for c in ("aaa", "bbb")}
    assert bad(of_versions(found)) == ["ascl-sweep"]


def test_what_is_missing_or_old_is_to_be_fixed() -> None:
    without = {key: value for key, value in VERSIONS.items() if key != "ray"}
    assert bad(of_versions({"here": without | {"Python": "3.10.9"}})) == ["Python", "ray"]
    assert "not installed on b" in {c.found for c in of_versions({"a": VERSIONS, "b": without})}


def test_what_a_laptop_has_beside_is_its_own_affair() -> None:
    nodes = {"a": {**VERSIONS, "torch": "2.1"}, "b": VERSIONS}
    ours = probes._like_ours(nodes.values())
    assert ours["torch"] is None and ours["ray"] is not None, "ours are other versions"
    laptop: dict[str, str | None] = {**VERSIONS, "torch": None, "pyarrow": None}
    by_what = {check.what: check.found for check in of_versions({**nodes, "here": laptop})}
    assert by_what["torch"] == "2.1 on a; 2.0 on b"
    assert by_what["pyarrow"] == "2.0, the same on 2 machines"
    assert by_what["ray"] == "2.0, the same on 3 machines"


def test_what_is_there_and_will_not_do_is_told_by_machine() -> None:
    found = dict.fromkeys("abc", VERSIONS)
    why = {"torch": "does not load: no such library"}
    (check,) = [c for c in of_versions(found, {"a": why, "b": {}, "c": why}) if not c.ok]
    assert check.found == "2.0 does not load: no such library on a, c" and check.way_out
    (alone,) = [c for c in of_versions({"here": VERSIONS}, {"here": why}) if not c.ok]
    assert alone.found == "2.0 does not load: no such library"


def test_every_package_is_loaded_in_a_process_that_it_may_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name, text in {
        "torch": "print('[0, 1, 2]'); raise OSError('no such library\\nat all')",
        "torchvision": "raise ModuleNotFoundError(name='torch')",
        "ray": "import os; os.abort()",
        "optuna": "import pyarrow",
        "pyarrow": "raise ModuleNotFoundError(name='pyarrow')",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert unloadable({"optuna"}) == {}, "it lacks only what is not installed"
    assert unloadable({"torch", "torchvision"}) == {
        "torch": "does not load: no such library",
        "torchvision": "does not load: ModuleNotFoundError",
    }
    assert unloadable({"torch", "ray"}) == {
        "torch": "does not load: no such library",
        "ray": "does not load: it ends the process (code -6)",
    }
    monkeypatch.setattr(packages, "LOAD_SECONDS", 2.0)
    (tmp_path / "ray.py").write_text("import time; time.sleep(60)")
    assert unloadable({"ray"}) == {"ray": "does not load: it takes over 2 s"}


def test_what_we_were_not_made_for_will_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["torch>=2.14", "ray[default]<3,>=2.60", "pytest>9; extra == 'test'", "optuna>=5"]
    monkeypatch.setattr(packages, "requires", lambda name: lines)
    found = {"torch": "2.14.0+cu130", "ray": "3.0.1", "pytest": "1", "pyarrow": "1"}
    assert outdated(found) == {"ray": "will not do: ascl-sweep needs <3,>=2.60"}


# ---------------------------------------------------------------- clocks


@given(
    offset=st.floats(-100, 100),
    delays=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=5, max_size=5),
)
def test_the_true_skew_is_within_the_doubt_however_slow_the_line(
    offset: float, delays: list[tuple[float, float]]
) -> None:
    time = 1000.0
    waits = iter(delays)

    def now() -> float:
        nonlocal time
        there, back = next(waits)
        time += there
        answer = time + offset
        time += back
        return answer

    found = skew(now, lambda: time)
    assert abs(found.seconds - offset) <= found.doubt + 1e-9
    assert found.doubt <= min(sum(pair) for pair in delays) / 2 + 1e-9
    if not of_clock(found, Skew(0, 0), "").ok:
        assert abs(offset) > SKEW_SECONDS - 1e-9, "a slow line alone is no fault"


def test_clocks_are_held_against_the_heads_not_ours() -> None:
    late = Skew(-SKEW_SECONDS - 1, 0.01)
    assert of_clock(late, late, "").ok, "it is our own clock that is wrong"
    assert not of_clock(late, Skew(0, 0.01), "").ok
    assert of_clock(Skew(lock.BEAT_SECONDS, 0.01), Skew(0, 0.01), "").ok, "a lease bears that"


def test_a_node_that_stops_in_between_is_named_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    def get(call: str, timeout: float) -> float:
        if call == "stopped":
            raise ray.exceptions.GetTimeoutError
        return 0.0

    class Acted(probes.Probes):
        def __init__(self) -> None:
            acts = {name: Mock(**{"do.remote.return_value": name}) for name in ("a", "stopped")}
            self._probes = acts

    monkeypatch.setattr(ray, "get", get)
    skews, (silent,) = Acted().compare_clocks(["a", "stopped"])
    assert list(skews) == ["a"]
    assert (silent.what, silent.found, silent.ok) == ("stopped node", "no answer in 60 s", False)


def acted_nodes(
    monkeypatch: pytest.MonkeyPatch, head_skew: float = 0.0
) -> Callable[[Wants], list[Check]]:
    """What is made of a head without CPUs and a node with some, all of them played by us."""
    import ray

    class Acted(probes.Probes):
        def __init__(self, names: dict[str, str]) -> None:
            self.names = list(names.values())

        def ask_each(self, questions: Any, *, seconds: float) -> tuple[dict[str, Any], list[Check]]:
            return {name: question() for name, question in questions.items()}, []

        def compare_clocks(self, of: Any) -> tuple[dict[str, Skew], list[Check]]:
            return {name: Skew(head_skew, 0.01) for name in of}, []

    def look(wants: Wants) -> Facts:
        there = {f"{name} in {root}": None for name, root in wants.datasets}
        return replace(FINE, datasets=there)

    nodes = [
        {"NodeID": i, "NodeManagerHostname": i, "Alive": True, "Resources": {mark: 1}}
        for i, mark in (("head", "node:__internal_head__"), ("node", "CPU"))
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    for name in ("cluster_resources", "available_resources"):
        monkeypatch.setattr(ray, name, dict)
    monkeypatch.setattr(probes, "Probes", Acted)
    monkeypatch.setattr(probes, "look", look)
    monkeypatch.setattr(probes, "dashboard_here", lambda: "token")
    cluster = Cluster((Node("head", 0, 0), Node("node", 2, 0)), Path(), private=False)
    return lambda wants: list(probes._check_nodes(cluster, [], wants, lambda text: None))


def test_datasets_are_looked_for_where_runs_start_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = acted_nodes(monkeypatch)(Wants((("cifar10", "/d"),)))
    asked = [check.what for check in found if "dataset" in check.what]
    assert asked == ["node dataset cifar10 in /d"]
    assert "head disk" in {check.what for check in found}, "all else is"


@pytest.mark.parametrize("skew", [0.0, -SKEW_SECONDS - 1, SKEW_SECONDS + 1])
def test_our_own_clock_too_is_held_against_the_heads(
    monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    found = acted_nodes(monkeypatch, skew)(Wants())
    clocks = {check.what: check.ok for check in found if check.what.endswith(" clock")}
    assert clocks == {"head clock": True, "node clock": True, "here clock": skew == 0}


def test_clocks_that_will_do_let_nobody_take_a_living_drivers_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(lock, "_machine", lambda: None)
    store = Store(pafs._MockFileSystem())
    with lock.locked(store, wait=False, on_wait=print):
        now = time.time() + lock.BEAT_SECONDS  # the lease is about to be renewed
        monkeypatch.setattr(lock, "time", Mock(time=lambda: now + SKEW_SECONDS))
        assert lock.holder(store) is not None


def test_doctor_loads_without_pyarrow() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import ascl_sweep.address, ascl_sweep.checks.here, ascl_sweep.checks.probes"
    )
    said = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True)
    assert said.returncode == 0, said.stderr


# ---------------------------------------------------------------- store, dashboard, room


def test_a_store_is_tried_and_nothing_is_left(tmp_path: Path) -> None:
    assert store_fault(str(tmp_path)) is None
    assert store_fault(str(tmp_path / "not" / "there")) is None
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_written_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert store_fault(str(tmp_path / "file")) == "cannot be written: File exists"
    assert store_fault("nonsense://x") is not None


def test_a_store_that_is_closed_to_us_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    root = os.geteuid() == 0
    if root:  # nothing is closed to it
        os.seteuid(65534)
    try:
        store = str(tmp_path / "closed" / "a" / "b")
        assert not os.access(existing(store), os.W_OK, effective_ids=True)
        assert "ermission denied" in (store_fault(store) or "")
    finally:
        if root:
            os.seteuid(0)


def test_a_folder_that_is_another_one_than_the_heads_is_found_out(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        folder.mkdir()
    name = leave_in(str(mine))
    assert store_fault(str(mine), name) is None
    assert "another folder" in (store_fault(str(other), name) or "")
    take_away(str(mine), name)
    assert list(mine.iterdir()) == []


def test_a_cluster_without_authentication_is_to_be_fixed() -> None:
    assert bad(of_dashboard("token")) == []
    assert bad(of_dashboard("disabled")) == ["token"]
    assert bad(of_dashboard(None)) == ["dashboard"]


def test_a_sweep_without_room_is_to_be_fixed() -> None:
    spec = spec_of(GRID + "resources: {gpus_per_worker: 1}\n", file="x")
    for gpus, fine in ((0, False), (2, True)):
        cluster = Cluster((Node("a", 8, gpus),), Path(), private=True)
        (check,) = of_sweeps([spec], cluster)
        assert check.ok == fine, check


def test_every_dataset_that_a_sweep_may_read_is_looked_for() -> None:
    grid = "name: x\nbase: {data: {root: /d}}\nspace: {grid: {data.name: [cifar10, shapes]}}\n"
    search = (
        "name: x\nbase: {data: {root: /d}}\nbudget: {trials: 3}\n"
        "space: {optuna: {domains: {data.name: {choice: [cifar100, stl10]}}}}\n"
    )
    assert datasets_of(spec_of(grid, file="x")) == [("cifar10", "/d")]
    names = [name for name, _ in datasets_of(spec_of(search, file="x"))]
    assert {"cifar100", "stl10"} <= set(names)


# ---------------------------------------------------------------- the command


def test_a_fault_is_a_fix_line_and_exit_code_4(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: a\nbase: {data: {name: cifar10}}\n")
    said = ask("doctor", "a.yaml", "--data", "stl10", "--root", "elsewhere")
    assert said.exit_code == 4
    fixes = [line for line in said.stdout.splitlines() if line.startswith("fix ")]
    assert len(fixes) == 2 and "cifar10" in fixes[0] and "elsewhere" in fixes[1]
    assert all(re.match(r"(ok |fix) \S", line) for line in said.stdout.splitlines())
    assert "must be mended first" in said.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"a.yaml"}, "looking creates nothing"


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

    monkeypatch.setattr(probes, "check_cluster", check_cluster)
    assert ask("doctor", "--address", "h:1", "--store", store).exit_code == 0
    assert asked == [meant.replace("HERE", str(tmp_path))]


def test_json_says_the_same(ask: Ask) -> None:
    lines = ask("doctor").stdout.splitlines()
    found = [Check(**check) for check in json.loads(ask("doctor", "--json").stdout)]
    assert [check.what for check in found] == [line[4:].partition(":")[0] for line in lines]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data", "mnist"], "no dataset named 'mnist'"),
        (["none.yaml"], "none.yaml: cannot be read"),
        (["--ray", "--address", "auto"], "--ray starts a private Ray, and --address asks one"),
        (["--set", "epochs=3"], "--set and --scale change what sweep files say, and none is"),
        (["--scale", "laptop"], "--set and --scale change what sweep files say, and none is"),
        (["--root", "d"], "--root is where --data is looked for, and none is named"),
        (["--store", ""], "--store must be a folder or an address, got nothing"),
        (["--store", "s3://KEY:SECRET@b/r"], "the store's address must hold no password"),
        (["--address", "nonsense"], "must be auto, HOST:PORT of its head"),
        (["--address", ""], "must be auto, HOST:PORT of its head"),
    ],
)
def test_bad_usage_is_no_fault_of_the_machine(ask: Ask, words: list[str], sentence: str) -> None:
    said = ask("doctor", *words)
    assert said.exit_code == 2 and sentence in said.stderr
    assert "SECRET@" not in said.output


def test_gpus_that_the_system_has_and_torch_does_not_see_are_to_be_fixed(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_devices", lambda: (None, ()))
    monkeypatch.setattr(here, "gpus_of_system", lambda: 2)
    said = ask("doctor")
    assert said.exit_code == 4
    assert "fix GPUs: PyTorch sees 0 of 2 (PyTorch for the CPU only); install" in said.stdout


def test_the_last_line_names_a_few_however_much_is_to_be_mended(ask: Ask, tmp_path: Path) -> None:
    names = "[cifar10, cifar100, stl10, tiny_imagenet]"
    (tmp_path / "a.yaml").write_text(f"name: a\nspace: {{grid: {{data.name: {names}}}}}\n")
    said = ask("doctor", "a.yaml")
    assert said.exit_code == 4 and said.stderr.count("dataset") == 3
    assert said.stderr.strip().endswith("and 1 more must be mended first")


def test_a_package_that_is_missing_is_to_be_fixed_and_ends_nothing(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = packages.version

    def version(name: str) -> str:
        if name in ("ray", "pyarrow"):
            raise PackageNotFoundError(name)
        return there(name)

    monkeypatch.setattr(packages, "version", version)
    said = ask("doctor", "--ray", "--store", ".")
    assert said.exit_code == 4 and said.stderr == "error: ray, pyarrow must be mended first\n"
    assert "fix ray: not installed; `pip install" in said.stdout
    assert "ok  disk" in said.stdout and "store" not in said.stdout, "that would take pyarrow"


def test_without_pytorch_there_is_still_a_doctor() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from ascl_sweep.checks import machine\n"
        "machine.unloadable = lambda installed: {'torch': 'does not load: so'}\n"
        "from ascl_sweep.cli import app; app(['doctor', 'a.yaml', '--data', 'cifar10'])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True
    )
    assert said.returncode == 4 and "Traceback" not in said.stderr, said.stderr
    assert " does not load: so; `pip install" in said.stdout and "GPUs" not in said.stdout
    assert said.stdout.splitlines()[-1].startswith("fix our own code: does not load: ")
    assert "ok  disk" in said.stdout


@pytest.mark.parametrize("address", ["127.0.0.1:PORT", "ray://127.0.0.1:PORT"])
def test_a_cluster_that_is_not_there_is_one_line(tmp_path: Path, address: str) -> None:
    address = address.replace("PORT", str(free_port()))
    said = subprocess.run(
        command("doctor", "--address", address),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,  # Ray alone asks for a quarter of an hour
    )
    assert said.returncode == 4
    (line,) = said.stdout.splitlines()
    assert line.startswith("fix Ray: nothing answers at ") and "Connection refused" in line
    connecting, sorry = said.stderr.splitlines()
    assert connecting == f"connecting to Ray at {address} …"
    assert sorry == "error: Ray must be mended first"


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
    for line in ("ok  Ray: starts, with", "ok  dashboard: answers", "ok  token: asked for"):
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
    """A head and a node that says it has two GPUs; no token is asked for."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="ascl-two-", dir="/tmp")
        # Else Ray notes the cluster's address where others of this machine look for theirs.
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

    def ask(self, *words: object) -> tuple[int, list[Check]]:
        said = subprocess.run(
            command("doctor", "--json", "--address", self.address, *words),
            env=self.env,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert "Traceback" not in said.stderr, said.stderr
        return said.returncode, [Check(**check) for check in json.loads(said.stdout)]

    def end(self) -> None:
        for pid in (self.process.pid, *descendants(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):  # ended with the one that started it
                kill(pid)
        self.process.wait()
        wait_until(lambda: not self.left(), seconds=60)
        self.folder.cleanup()

    def left(self) -> list[str]:
        pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
        return [text for pid in pids if self.folder.name in (text := title(pid))]


@pytest.fixture
def two() -> Iterator[Two]:
    cluster = Two()
    try:
        yield cluster
    finally:
        cluster.end()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_node_of_a_cluster_is_looked_at(two: Two, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(GRID)
    words = (tmp_path / "sweep.yaml", "--store", tmp_path, "--data", "cifar10", "--root", tmp_path)
    code, found = two.ask(*words)
    by_what = {check.what: check for check in found}
    nodes = {what.split()[0] for what in by_what if what.endswith(" clock")} - {"here"}
    assert len(nodes) == 2 and by_what["here clock"].ok
    for node in nodes:
        for what in ("CPUs", "disk", "shared memory", "clock", f"store {tmp_path}"):
            assert by_what[f"{node} {what}"].ok
        assert not by_what[f"{node} dataset cifar10 in {tmp_path}"].ok
    assert by_what["free GPUs"].found == "2 of 2 are free now"
    assert by_what["torch"].found.endswith("the same on 3 machines")
    assert by_what["room for grid"].ok
    assert code == 4
    # What is wrong with it: nobody asks for a token, and PyTorch finds no GPUs on the node.
    rest = [what for what in bad(found) if "dataset" not in what]
    assert "token" in rest and len(rest) == 2, rest
    (gpus,) = [by_what[what] for what in rest if what.endswith("GPUs")]
    assert "PyTorch sees 0 of 2" in gpus.found
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"], "no probe is left"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_that_does_not_answer_is_named(two: Two) -> None:
    os.kill(two.raylet, signal.SIGSTOP)
    code, found = two.ask()
    (silent,) = [check for check in found if check.what.endswith(" node")]
    assert code == 4 and not silent.ok and silent.found and silent.way_out
    clocks = [check.what for check in found if check.what.endswith(" clock")]
    assert len(clocks) == 2 and "here clock" in clocks, "the other is looked at"
