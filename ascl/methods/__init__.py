"""Methods, one file each: add a file to this folder to add a value of `method.name`.

A method's file has
- a docstring with a link to the method's paper;
- `LABEL`, its name in tables, and `PAPER`, the arXiv id of its paper;
- `SMOKE` (optional), the settings of the whole config that a smoke test of the method needs;
- `Config`: a `MethodConfig` whose `name` is the file's name; `cost()` returns the views and the
  cost of a training step;
- `defaults(preset, dataset)`: the method's defaults for the whole config, for small images and for
  ImageNet (`dataset.streams`);
- `build(config, training)`: returns the `Method`.

Constants are read without importing the file, so only `load_method` loads torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ascl.errors import RunError, unknown_name
from ascl.plugins import find_modules, read_annotations, read_constants

if TYPE_CHECKING:
    from ascl.config import RunConfig
    from ascl.data.base import DatasetSpec
    from ascl.methods.base import Method, TrainingSet
    from ascl.sections import MethodConfig


@dataclass(frozen=True)
class MethodModule:
    """Contents of a method's file that the rest of the trainer uses."""

    name: str
    config: "type[MethodConfig]"
    defaults: "Callable[[object, DatasetSpec], dict[str, Any]]"
    build: "Callable[[RunConfig, TrainingSet], Method]"


def _read_all() -> dict[str, Mapping[str, Any]]:
    """Read the constants of every method's file; files without a `LABEL` are not methods."""
    files = {name: read_constants(path) for name, path in find_modules(tuple(__path__)).items()}
    return {name: constants for name, constants in files.items() if "LABEL" in constants}


def method_names() -> tuple[str, ...]:
    """Return the names of all methods."""
    return tuple(_read_all())


def method_label(name: str) -> str:
    """Return the name of a method in tables; for an unknown method, the given name."""
    return str(_read_all().get(name, {}).get("LABEL", name))


def method_paper(name: str) -> str | None:
    """Return the paper of a method, such as "arXiv:1911.05722"."""
    return _read_all().get(name, {}).get("PAPER")


def method_smoke(name: str) -> dict[str, Any]:
    """Return the settings that a smoke test of a method needs, as a tree of config sections."""
    return dict(_read_all().get(name, {}).get("SMOKE", {}))


def method_keys() -> dict[str, Mapping[str, Any]]:
    """Return the `ascl.sections.Key` keywords of all method-specific config keys."""
    files = find_modules(tuple(__path__))
    keys: dict[str, Mapping[str, Any]] = {}
    for name in method_names():
        keys = {**read_annotations(files[name], "Config", "Key"), **keys}
    return keys


def load_method(name: object) -> MethodModule:
    """Import a method by name; raise `RunError` if it does not exist."""
    if name not in method_names():
        raise RunError(unknown_name("method", name, method_names()))
    module = import_module(f"{__name__}.{name}")
    return MethodModule(
        name=str(name),
        config=module.Config,
        defaults=module.defaults,
        build=module.build,
    )
