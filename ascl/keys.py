"""Metadata of every config key: its label, whether it changes results, its smoke-test value.

The metadata is declared at each key's field (`ascl.sections.Key`). This module does not load torch:
it parses the metadata of method-specific keys from the source files.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ascl import methods
from ascl.config import RunConfig
from ascl.plugins import read_annotations
from ascl.sections import Key, keys_of


def describe_keys() -> Mapping[str, Key]:
    """Return the metadata of every dotted key of all methods, without loading torch."""
    return _describe_keys(tuple(methods.__path__))


@cache
def _describe_keys(method_folders: tuple[str, ...]) -> Mapping[str, Key]:
    relabel = Path(__file__).with_name("relabel.py")
    own = {**read_annotations(relabel, "RelabelConfig", "Key"), **methods.method_keys()}
    keys = {f"method.{name}": Key(**words) for name, words in own.items()}
    for name, key in keys_of(RunConfig).items():
        model: Any = RunConfig.model_fields[name].annotation
        if name in RunConfig.SECTIONS:
            keys |= {f"{name}.{field}": inner for field, inner in keys_of(model).items()}
        else:
            keys[name] = key
    return keys


def key_label(key: str) -> str:
    """Return the name of a dotted key in tables."""
    return describe_keys().get(key, Key()).label or key


def keys_outside_arms() -> frozenset[str]:
    """Return the keys in which runs of one arm may differ: the seed, and keys without effect."""
    without_effect = {name for name, key in describe_keys().items() if not key.changes_results}
    return frozenset({"seed", *without_effect})
