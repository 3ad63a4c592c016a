"""Ray's worker processes as copies of one that has loaded everything.

Each would otherwise load Ray, Tune, PyTorch and ours anew: seconds of CPU and hundreds of MB, of
which two hundred on one machine are too many. Ray starts a worker by a command; `launcher` makes
one that has the first process fork instead. What is forked shares all memory that it does not
change, and is a worker like any other from then on.
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

WORKER = "setup_worker.py"  # what Ray starts its workers with
PULSE = 5.0  # seconds between looks whether the one who started us is still there
Wish = tuple[list[str], dict[str, str], list[int]]  # words, environment, open files
LAUNCHER = """#!{python} -SE
import json, os, socket, sys
if not any(word.endswith("{worker}") for word in sys.argv):
    os.execv("{python}", ["{python}", *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as nursery:
    nursery.connect("{door}")
    wish = json.dumps([sys.argv, dict(os.environ)]).encode()
    socket.send_fds(nursery, [len(wish).to_bytes(8, "big")], [0, 1, 2])
    nursery.sendall(wish)
    nursery.recv(1)
"""


@contextlib.contextmanager
def launcher(modules: Sequence[str]) -> Iterator[Path]:
    """A command to be used as Python by Ray; while it is, `modules` are loaded once for all."""
    # The name of a socket has little room: not below a long TMPDIR.
    with tempfile.TemporaryDirectory(prefix="ascl-nursery-", dir="/tmp") as folder:
        door, command = Path(folder, "door"), Path(folder, "python")
        command.write_text(LAUNCHER.format(python=sys.executable, worker=WORKER, door=door))
        command.chmod(0o700)
        words = [sys.executable, "-m", "benchmarks.nursery", str(door), *modules]
        nursery = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert nursery.stdout
        try:
            nursery.stdout.readline()  # it says that it is ready
            yield command
        finally:
            nursery.kill()
            nursery.wait()


def main() -> None:
    door, *modules = sys.argv[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # none is waited for
    with socket.socket(socket.AF_UNIX) as wishes:
        wishes.bind(door)
        wishes.listen(1000)
        wishes.settimeout(PULSE)
        print("ready", flush=True)
        child = fork_on_demand(wishes, modules)
    if child:
        become(*child)


def fork_on_demand(wishes: socket.socket, modules: Sequence[str]) -> "Wish | None":
    """In each process that is forked, what is wished of it; None when nobody is there to wish."""
    parent, loaded = os.getppid(), False
    while os.getppid() == parent:
        with contextlib.suppress(TimeoutError), wishes.accept()[0] as wish:
            size, files, _, _ = socket.recv_fds(wish, 8, 3)
            with wish.makefile("rb") as text:
                argv, environment = json.loads(text.read(int.from_bytes(size, "big")))
            if not loaded:  # not before: Ray reads its settings when it is loaded
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

    # What Ray draws at random it draws alike in all copies, if it has drawn anything before: and
    # some modules draw a name for a class. Two workers of one name end each other.
    name_of = ray.ActorClassID
    ours = SimpleNamespace(from_random=lambda: name_of(os.urandom(name_of.size())))
    with mock.patch.object(ray.actor, "ActorClassID", ours):
        for name in modules:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or the first collection of each copy would touch, and so copy, everything


def become(argv: list[str], environment: dict[str, str], files: Sequence[int]) -> None:
    """Be the worker that Ray wanted to start."""
    from ray._private.workers.setup_worker import parser

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
