"""Fork Ray's worker processes from one process that has preloaded all modules.

Otherwise every worker imports Ray, Tune, PyTorch and ascl-sweep, which takes seconds of CPU time
and hundreds of MB: too much for 200 workers on one machine. Ray starts each worker with a command.
`launcher` provides a command that makes the preloaded process (the nursery) fork instead. The
forked process shares all memory that it does not modify, and then acts like any other worker.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

WORKER = "setup_worker.py"  # the script that Ray starts workers with
PARENT_CHECK_SECONDS = 5.0  # seconds between checks that the parent process is alive
ForkRequest = tuple[list[str], dict[str, str], list[int]]  # argv, environment, open files
LAUNCHER = """#!{python} -SE
import json, os, socket, sys
if not any(argument.endswith("{worker}") for argument in sys.argv):
    os.execv("{python}", ["{python}", *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as nursery:
    nursery.connect("{address}")
    request = json.dumps([sys.argv, dict(os.environ)]).encode()
    socket.send_fds(nursery, [len(request).to_bytes(8, "big")], [0, 1, 2])
    nursery.sendall(request)
    nursery.recv(1)
"""


@contextlib.contextmanager
def launcher(modules: Sequence[str]) -> Iterator[Path]:
    """Provide a command for Ray to use as Python; import `modules` once for all workers."""
    # A socket's path is limited to about 100 characters, so do not use TMPDIR, which may be long.
    with tempfile.TemporaryDirectory(prefix="ascl-nursery-", dir="/tmp") as folder:
        address, command = Path(folder, "socket"), Path(folder, "python")
        command.write_text(LAUNCHER.format(python=sys.executable, worker=WORKER, address=address))
        command.chmod(0o700)
        argv = [sys.executable, "-m", "benchmarks.nursery", str(address), *modules]
        nursery = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert nursery.stdout
        try:
            nursery.stdout.readline()  # the nursery prints a line when it is ready
            yield command
        finally:
            nursery.kill()
            nursery.wait()


def main() -> None:
    address, *modules = sys.argv[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # let the kernel reap forked workers
    with socket.socket(socket.AF_UNIX) as requests:
        requests.bind(address)
        requests.listen(1000)
        requests.settimeout(PARENT_CHECK_SECONDS)
        print("ready", flush=True)
        child = fork_on_demand(requests, modules)
    if child:
        become(*child)


def fork_on_demand(requests: socket.socket, modules: Sequence[str]) -> "ForkRequest | None":
    """Fork for each request; return the request in the fork, and None when the parent has ended."""
    parent, loaded = os.getppid(), False
    while os.getppid() == parent:
        with contextlib.suppress(TimeoutError), requests.accept()[0] as request:
            size, files, _, _ = socket.recv_fds(request, 8, 3)
            with request.makefile("rb") as text:
                argv, environment = json.loads(text.read(int.from_bytes(size, "big")))
            if not loaded:  # needs the first request: Ray reads environment variables on import
                load(modules, environment)
                loaded = True
            if os.fork() == 0:
                return argv, environment, files
            for file in files:
                os.close(file)
    return None


def load(modules: Sequence[str], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    import ray.actor

    # Some modules draw a random id for an actor class on import. That would initialize Ray's random
    # generator before the fork, so that all forks draw the same worker ids; workers with equal ids
    # terminate each other.
    name_of = ray.ActorClassID
    ours = SimpleNamespace(from_random=lambda: name_of(os.urandom(name_of.size())))
    with mock.patch.object(ray.actor, "ActorClassID", ours):
        for name in modules:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # otherwise the first collection in each fork would copy all memory pages


def become(argv: list[str], environment: dict[str, str], files: Sequence[int]) -> None:
    """Run this process as the worker that Ray requested."""
    from ray._private.workers.setup_worker import parser

    # Ray 2.60 kills the process group of a worker that has ended. Ray starts each worker as the
    # leader of a group; in the nursery's group, it would kill the shell that started the benchmark.
    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    known, sys.argv = parser.parse_known_args(argv[2:])
    context = json.loads(known.serialized_runtime_env_context or "{}")
    os.environ.update(context.get("env_vars", {}))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
