"""Executors: each is a module or package here with a function `make_executor`."""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from ascl.errors import unknown_name
from ascl_sweep.errors import UsageError

if TYPE_CHECKING:  # `--help` lists the executors
    from ascl_sweep.runtime.executor import Executor


def executor_names() -> list[str]:
    """Return the values that `run --executor` accepts."""
    return sorted(module.name for module in iter_modules(__path__) if module.name != "worker")


def make_executor(name: str, address: str | None = None) -> "Executor":
    """Create an executor by name; `address` is that of a cluster, None for this machine."""
    if name not in executor_names():
        raise UsageError(unknown_name("executor", name, executor_names()))
    made: Executor = import_module(f"{__name__}.{name}").make_executor(address)
    return made
