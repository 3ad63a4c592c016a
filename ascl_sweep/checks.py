"""Whether sweeps can run: facts are gathered on each machine, and judged here.

A check is one line: what was looked at, what was found, and the way out if it will not do.
"""

import contextlib
import json
import os
import platform
import secrets
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascl_sweep import __version__
from ascl_sweep.cluster import Cluster, Node, NoResources, connected, cpus_here

if TYPE_CHECKING:
    from ascl_sweep.spec import SweepSpec
    from ascl_sweep.store import Store

PACKAGES = ("torch", "torchvision", "ray", "optuna", "pyarrow", "pydantic")
ANSWER_SECONDS = 60.0  # for a process to start on a node
LOOK_SECONDS = 600.0  # for it to load PyTorch and read a dataset's checksums
SKEW_SECONDS = 2.0  # a lease in a bucket goes stale by its reader's clock (see lock.py)
PINGS = 5
DISK_BYTES, SHM_BYTES = 1e9, 1e8
# A process that asks for no GPU is shown none: these let it see them all.
SEE_GPUS = {
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    what: str
    found: str
    ok: bool = True
    way_out: str = ""


@dataclass(frozen=True)
class Wants:
    """What a sweep will need of each machine, beside the code."""

    datasets: tuple[tuple[str, str], ...] = ()
    """Names and roots."""
    store: str | None = None


@dataclass(frozen=True)
class Gpu:
    name: str
    error: str | None
    """Why it does not compute, if it does not."""


@dataclass(frozen=True)
class Facts:
    """What was found on a machine."""

    versions: Mapping[str, str]
    """Of Python, packages and ourselves; of what is not installed, none."""
    cuda: str | None
    """What PyTorch was built for."""
    gpus: tuple[Gpu, ...]
    cpus: int
    disk: tuple[str, int, bool]
    """A folder, the bytes that are free there, and whether we may write."""
    shm: int | None
    """Bytes free in /dev/shm, if there is such a thing."""
    datasets: Mapping[str, str | None] = field(default_factory=dict)
    """Of each dataset what is wrong with it."""


# ---------------------------------------------------------------- facts


def look(wants: Wants) -> Facts:
    """Gather the facts of the machine that this runs on."""
    place = existing(wants.store)
    shm = Path("/dev/shm")
    cuda, gpus = _devices()
    return Facts(
        versions=_versions(),
        cuda=cuda,
        gpus=gpus,
        cpus=cpus_here(),
        disk=(str(place), shutil.disk_usage(place).free, os.access(place, os.W_OK)),
        shm=shutil.disk_usage(shm).free if shm.is_dir() else None,
        datasets={f"{n} in {root}": _dataset_fault(n, root) for n, root in wants.datasets},
    )


def existing(store: str | None) -> Path:
    """The folder of a store, or as much of it as is there; of one far away, where Ray writes."""
    if store is None or "://" in store:
        return Path(tempfile.gettempdir())
    place = Path(store).absolute()
    while not place.exists():
        place = place.parent
    return place


def _versions() -> dict[str, str]:
    found = {"Python": platform.python_version(), "ascl-sweep": _own_version()}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _own_version() -> str:
    """Our version and commit, from the repository or from what pip noted when it cloned it."""
    from ascl_sweep.rows import provenance

    facts = provenance()
    commit = facts["commit"]
    with contextlib.suppress(PackageNotFoundError, ValueError, KeyError):
        noted = json.loads(distribution("ascl-sweep").read_text("direct_url.json") or "{}")
        commit = commit or noted["vcs_info"]["commit_id"]
    changed = ", changed since" if facts["dirty"] else ""
    return f"{__version__} (commit {commit[:7]}{changed})" if commit else __version__


def _devices() -> tuple[str | None, tuple[Gpu, ...]]:
    try:
        import torch
    except ImportError:
        return None, ()

    def tried(index: int) -> Gpu:
        name = torch.cuda.get_device_name(index)
        try:
            ones = torch.ones(64, 64, device=f"cuda:{index}")
            total = float((ones @ ones).sum())
        except torch.OutOfMemoryError:  # a sweep that runs now may well fill it
            return Gpu(f"{name}, full now", None)
        except RuntimeError as error:
            return Gpu(name, str(error).strip().splitlines()[0])
        return Gpu(name, None if total == 64**3 else f"it computes {total:g} for {64**3}")

    return torch.version.cuda, tuple(map(tried, range(torch.cuda.device_count())))


def _dataset_fault(name: str, root: str) -> str | None:
    from ascl.datasets import dataset_spec

    spec = dataset_spec(name)
    try:
        for split in ("train", "test"):
            spec.open(spec, Path(root).expanduser(), split)
    except (ValueError, OSError) as error:
        return str(error)
    return None


def datasets_of(spec: "SweepSpec") -> list[tuple[str, str]]:
    """The datasets that a sweep's runs read from disk, and where they look for them."""
    base = spec.base_values
    names = {str(cell.changes.get("data.name", base["data.name"])) for cell in spec.cells()}
    if domain := spec.domains.get("data.name"):
        names |= set(map(str, domain.choice or ()))
    return [(name, str(base["data.root"])) for name in sorted(names - {"shapes"})]


def store_fault(store: str, seen: str | None = None) -> str | None:
    """Why a store cannot be used from this machine, if so; `seen` is a file that must be there.

    Writes a small file and deletes it; a folder is not made.
    """
    try:
        if seen is not None and _place(store).text(seen) is None:
            return "what the head writes there is not seen here: it is another folder"
        name = leave_in(store)
        found = _place(store).text(name)
        take_away(store, name)
    except ValueError as error:
        return str(error).strip().splitlines()[0]
    except OSError as error:
        return error.strerror or str(error).strip().splitlines()[0]
    return None if found else "what was written could not be read back"


def leave_in(store: str) -> str:
    """Put a small file into a store, for others to find; its name."""
    name = f".doctor-{secrets.token_hex(4)}"
    _place(store).write(name, b"written by `ascl-sweep doctor`")
    return name


def take_away(store: str, name: str) -> None:
    _place(store).delete(name)


def _place(store: str) -> "Store":
    from ascl_sweep.store import Store

    return Store(store) if "://" in store else Store(existing(store))


def authentication(dashboard: str) -> str | None:
    """How a dashboard knows its users (token, disabled); None if it does not answer."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{dashboard}/api/authentication_mode", timeout=10) as answer:
            return str(json.load(answer)["authentication_mode"])
    except (OSError, ValueError, KeyError):
        return None


# ---------------------------------------------------------------- judging


def of_machine(facts: Facts, gpus: float, at: str = "") -> list[Check]:
    """What one machine is like; `gpus` is how many it should have."""
    place, free, writable = facts.disk
    found = [
        _of_gpus(facts, gpus, at),
        Check(f"{at}CPUs", str(facts.cpus)),
        Check(
            f"{at}disk",
            f"{free / 1e9:.1f} GB free in {place}" + ("" if writable else ", not ours to write"),
            free > DISK_BYTES and writable,
            "make room" if writable else "see its permissions",
        ),
    ]
    if facts.shm is not None:
        enough = facts.shm > SHM_BYTES
        shm = f"{facts.shm / 1e9:.1f} GB"
        found.append(Check(f"{at}shared memory", shm, enough, "enlarge /dev/shm"))
    for name, fault in facts.datasets.items():
        # The fault is a sentence with its own way out.
        found.append(Check(f"{at}dataset {name}", fault or "is there", fault is None))
    return found


def _of_gpus(facts: Facts, expected: float, at: str) -> Check:
    names = ", ".join(gpu.name for gpu in facts.gpus)
    build = f"PyTorch for CUDA {facts.cuda}" if facts.cuda else "PyTorch for the CPU only"
    what, found = f"{at}GPUs", f"{names or 'none'} ({build})"
    for gpu in facts.gpus:
        if gpu.error:
            return Check(what, f"{gpu.name} does not compute: {gpu.error}", False, "see nvidia-smi")
    if len(facts.gpus) < expected:
        return Check(
            what,
            f"PyTorch sees {len(facts.gpus)} of {expected:g} ({build})",
            False,
            "install a PyTorch build and an NVIDIA driver that go together (https://pytorch.org)",
        )
    if not facts.gpus:
        found = f"none: runs train on the CPU (try --scale laptop; {build})"
    return Check(what, found)


def of_versions(found: Mapping[str, Mapping[str, str]]) -> list[Check]:
    """What is installed, by machine; there may be one alone."""
    checks = []
    for package in ("Python", *PACKAGES, "ascl-sweep"):
        by_version: dict[str, list[str]] = {}
        for place, versions in found.items():
            by_version.setdefault(versions.get(package, ""), []).append(place)
        if missing := by_version.pop("", None):
            where = f" on {_listed(missing)}" if len(found) > 1 else ""
            checks.append(Check(package, f"not installed{where}", False, "pip install ascl-sweep"))
        elif len({v.partition("+")[0] for v in by_version}) > 1:
            # A build's suffix may differ: a head without GPU may have PyTorch for the CPU.
            differ = "; ".join(f"{v} on {_listed(places)}" for v, places in by_version.items())
            checks.append(Check(package, differ, False, "install the same everywhere"))
        else:
            (one, *_) = by_version
            new = package != "Python" or tuple(map(int, one.split(".")[:2])) >= (3, 11)
            everywhere = f", the same on {len(found)} machines" if len(found) > 1 else ""
            checks.append(Check(package, f"{one}{everywhere}", new, "needs 3.11 or later"))
    return checks


def _listed(places: Sequence[str], most: int = 5) -> str:
    rest = f" and {len(places) - most} more" if len(places) > most else ""
    return ", ".join(places[:most]) + rest


@dataclass(frozen=True)
class Skew:
    """How far a machine's clock is from ours: somewhere within ± `doubt`."""

    seconds: float
    doubt: float


def skew(now: Callable[[], float], clock: Callable[[], float] = time.time) -> Skew:
    """Compare clocks: of several answers the quickest, taken as given halfway."""
    found = []
    for _ in range(PINGS):
        asked = clock()
        there = now()
        answered = clock()
        found.append(Skew(there - (asked + answered) / 2, (answered - asked) / 2))
    return min(found, key=lambda one: one.doubt)


def of_clock(node: Skew, head: Skew, at: str) -> Check:
    """Whether a machine's clock goes with the head's."""
    apart, doubt = node.seconds - head.seconds, node.doubt + head.doubt
    return Check(
        f"{at}clock",
        f"{apart:+.2f} ± {doubt:.2f} s from the head's",
        abs(apart) - doubt <= SKEW_SECONDS,
        f"set it by NTP: at more than {SKEW_SECONDS:g} s a driver's lease on a bucket looks stale",
    )


def of_store(store: str, fault: str | None, at: str = "") -> Check:
    found = "can be written" if fault is None else fault
    way_out = "see its address, and who you are to it (AWS_PROFILE or the nodes' role for s3://)"
    return Check(f"{at}store {store}", found, fault is None, way_out)


def of_dashboard(mode: str | None) -> list[Check]:
    """Whether a cluster's dashboard answers, and whether it wants a token."""
    if mode is None:
        way_out = 'install "ray[default]" on the head, and start it with --include-dashboard=true'
        return [Check("dashboard", "does not answer on the head", False, way_out)]
    return [
        Check("dashboard", "answers"),
        Check(
            "token",
            "asked for" if mode == "token" else "not asked for: whoever reaches it may run code",
            mode == "token",
            "`ray get-auth-token --generate`, put it on all nodes, start Ray with "
            "RAY_AUTH_MODE=token",
        ),
    ]


def of_sweeps(specs: Iterable["SweepSpec"], cluster: Cluster) -> Iterator[Check]:
    """Whether the runs of sweeps have room."""
    for spec in specs:
        try:
            kinds = spec.resources.kinds()
            for kind in kinds:
                cluster.check(kind)
            room = max(map(cluster.room, kinds))
            yield Check(f"room for {spec.name}", f"up to {room} runs at once")
        except NoResources as error:  # a sentence with its own way out
            yield Check(f"room for {spec.name}", str(error), False)


# ---------------------------------------------------------------- this machine


def check_here(
    specs: Sequence["SweepSpec"], wants: Wants, *, store: str, start_ray: bool
) -> Iterator[Check]:
    """This machine; `store` is where results would go, `wants.store` is tried out."""
    facts = look(Wants(wants.datasets, store))
    yield from of_versions({"here": facts.versions})
    yield from of_machine(facts, gpus_of_system())
    if wants.store is not None:
        yield of_store(wants.store, store_fault(wants.store))
    here = Cluster((Node("here", facts.cpus, len(facts.gpus)),), Path(), private=True)
    yield from of_sweeps(specs, here)
    if start_ray:
        try:
            with connected(None, dashboard=True) as cluster:
                cpus, devices = cluster.total()
                yield Check("Ray", f"starts, with {cpus:g} CPUs and {devices:g} GPUs")
                yield from of_dashboard(dashboard_here())
        except NoResources as error:
            yield Check("Ray", str(error), False)


def gpus_of_system() -> int:
    """How many there are, whether PyTorch can use them or not."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def dashboard_here() -> str | None:
    """How the dashboard of the Ray that we are part of knows its users; see `authentication`."""
    import ray
    from ray._private import ray_constants

    # Asked of our own connection: Ray's global one (internal_kv) is turned to whichever Ray of this
    # machine was started last by a `list_nodes()` without an address.
    ours = ray._private.worker.global_worker.gcs_client  # type: ignore[attr-defined]
    key, space = ray_constants.DASHBOARD_ADDRESS.encode(), ray_constants.KV_NAMESPACE_DASHBOARD
    address = ours.internal_kv_get(key, space)
    return authentication(address.decode()) if address else None


# ---------------------------------------------------------------- a cluster


class Probe:
    """A process of ours on a node."""

    def do(self, function: Callable[..., Any], *words: object) -> Any:
        return function(*words)


def use_token() -> None:
    """Show our token to a cluster that is named by its address: Ray itself does so for `auto`."""
    given = any(os.environ.get(key) for key in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if given or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def check_cluster(
    address: str, specs: Sequence["SweepSpec"], wants: Wants, say: Callable[[str], None]
) -> Iterator[Check]:
    """Every node of a Ray cluster."""
    use_token()
    say(f"connecting to Ray at {address} …")
    way_out = "see that the token in ~/.ray/auth_token is the cluster's"
    try:
        with connected(address, dashboard=False) as cluster:
            yield from _check_nodes(cluster, specs, wants, say)
    except NoResources as error:
        yield Check("Ray", str(error), False, way_out)
    except Exception as error:
        from ray.exceptions import RayError  # not above: `connected` must be the first to load Ray

        if not isinstance(error, RayError):
            raise
        yield Check("Ray", str(error).strip().splitlines()[0], False, "see `ray status`")


def _check_nodes(
    cluster: Cluster, specs: Sequence["SweepSpec"], wants: Wants, say: Callable[[str], None]
) -> Iterator[Check]:
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    say(f"asking each node ({len(alive)}) …")
    names = _names(alive)
    heads = [n["NodeID"] for n in alive if "node:__internal_head__" in n["Resources"]]
    total = ray.cluster_resources()  # type: ignore[no-untyped-call]
    free = ray.available_resources()  # type: ignore[no-untyped-call]
    yield Check("Ray", f"answers; nodes: {len(alive)}")
    for unit in ("CPU", "GPU"):
        yield Check(
            f"free {unit}s", f"{free.get(unit, 0):g} of {total.get(unit, 0):g} are free now"
        )

    probe = ray.remote(Probe)
    probes: dict[str, Any] = {
        name: probe.options(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            runtime_env={"env_vars": SEE_GPUS},
        ).remote()
        for node_id, name in names.items()
    }

    def asked(
        function: Callable[..., Any], *words: object, of: Iterable[str], seconds: float
    ) -> tuple[dict[str, Any], list[Check]]:
        """What nodes answer, and what to say of those that do not."""
        calls = {name: probes[name].do.remote(function, *words) for name in of}
        ray.wait(list(calls.values()), num_returns=len(calls), timeout=seconds)
        answers: dict[str, Any] = {}
        silent = []
        for name, call in calls.items():
            try:
                answers[name] = ray.get(call, timeout=0.1)
            except RayError as error:  # also that it took too long
                lines = [line for line in str(error).splitlines() if line.strip()]
                late = isinstance(error, ray.exceptions.GetTimeoutError)
                why = f"no answer in {seconds:g} s" if late else lines[-1].strip()
                way_out = "see `ray status`, and that it has the same ascl-sweep as the head"
                silent.append(Check(f"{name} node", why, False, way_out))
        return answers, silent

    answered, silent = asked(time.time, of=probes, seconds=ANSWER_SECONDS)
    yield from silent
    skews = {name: skew(partial(_time_on, probes[name])) for name in answered}
    head = next((names[i] for i in heads if names[i] in answered), None)
    if head is None:
        yield Check("head", "it is not among the nodes that answer", False, "see `ray status`")
    else:
        modes, silent = asked(dashboard_here, of=[head], seconds=ANSWER_SECONDS)
        yield from silent or of_dashboard(modes[head])

    facts, silent = asked(look, wants, of=answered, seconds=LOOK_SECONDS)
    yield from silent
    versions = {name: found.versions for name, found in facts.items()}
    for one in list(versions.values())[:1]:
        # Of this machine only what must be equal for us to be understood there.
        ours = {k: v for k, v in _versions().items() if k in ("Python", "ray", "ascl-sweep")}
        yield from of_versions(versions | {"here": {**one, **ours}})
    gpus = {names[node.node_id]: node.gpus for node in cluster.nodes if node.node_id in names}
    for name, found in facts.items():
        yield from of_machine(found, gpus.get(name, 0), f"{name} ")
        if head is not None:
            yield of_clock(skews[name], skews[head], f"{name} ")
    if wants.store is not None and head is not None:
        yield from _check_store(asked, wants.store, head, facts)
    yield from of_sweeps(specs, cluster)


def _check_store(
    asked: Callable[..., tuple[dict[str, Any], list[Check]]],
    store: str,
    head: str,
    nodes: Iterable[str],
) -> Iterator[Check]:
    """Each node must be able to write to the store, and see there what the head writes."""
    faults, silent = asked(store_fault, store, of=[head], seconds=ANSWER_SECONDS)
    if silent or faults[head]:
        yield from silent or [of_store(store, faults[head], f"{head} ")]
        return
    left, silent = asked(leave_in, store, of=[head], seconds=ANSWER_SECONDS)
    yield from silent
    for name in left.values():
        faults, silent = asked(store_fault, store, name, of=nodes, seconds=ANSWER_SECONDS)
        asked(take_away, store, name, of=[head], seconds=ANSWER_SECONDS)
        yield from silent
        for node, fault in faults.items():
            yield of_store(store, fault, f"{node} ")


def _time_on(probe: Any) -> float:
    import ray

    return float(ray.get(probe.do.remote(time.time)))


def _names(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What to call each node: its host's name, and if several share it, with a part of its id."""
    hosts = [node["NodeManagerHostname"] for node in nodes]
    return {
        node["NodeID"]: host if hosts.count(host) == 1 else f"{host}/{node['NodeID'][:6]}"
        for node, host in zip(nodes, hosts, strict=True)
    }
