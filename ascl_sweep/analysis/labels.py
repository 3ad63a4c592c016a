"""Display names of config keys, values and arms: τ' for `method.target_temperature`."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from ascl.data.base import dataset_label
from ascl.keys import key_label
from ascl.methods import method_label

RELABELS = {"hard": "Hard", "ahcl": "AHCL", "ascl": "ASCL"}
MANY = 12  # names that a sentence lists; the rest is counted
MOST_DIGITS = 4  # values with more significant digits were sampled, and are rounded
SYSTEM_KEYS = ("method.name", "method.relabel", "method.symmetric")


def name_of(key: str) -> str:
    """Return the display name of a key."""
    return key_label(key)


def value_of(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def short_value(value: object) -> str:
    """Return a value with three significant digits if it has more than four, such as 0.0626.

    A value just below 1, such as a momentum of 0.99951, keeps three digits of its distance from 1.
    """
    text = value_of(value)
    digits = re.sub(r"e.*|[.-]", "", text).lstrip("0")
    if not isinstance(value, float) or not math.isfinite(value) or len(digits) <= MOST_DIGITS:
        return text
    if 0.9 < value < 1:
        return f"{value:.{2 - math.floor(math.log10(1 - value))}f}".rstrip("0")
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}"


def system(config: Mapping[str, object]) -> str:
    """Return the paper's name of a method with its relabeling."""
    name = str(config.get("method.name", "moco"))
    method = method_label(name)
    relabel = RELABELS.get(str(config.get("method.relabel")))
    if relabel is not None:
        method = relabel if name == "moco" else f"{method} + {relabel}"
    return f"{method} (symmetric)" if config.get("method.symmetric") else method


def value_label(key: str, value: object) -> str:
    """Return the display name of a key's value."""
    if key == "data.name":
        return dataset_label(str(value))
    if value is None:
        return "all" if key == "data.train_size" else "none"
    return short_value(value)


def key_value(key: str, value: object) -> str:
    """Return a key and its value, such as τ' = 0.05; for a dataset only its name."""
    shown = value_label(key, value)
    return shown if key == "data.name" else f"{name_of(key)} = {shown}"


def conditions(values: Mapping[str, object]) -> str:
    """Return the values that select arms, such as K = 0, strength = 0.4."""
    return ", ".join(key_value(key, value) for key, value in values.items())


def title_of(key: str) -> str:
    """Return the column header for a key's values."""
    return "method" if key in SYSTEM_KEYS else "dataset" if key == "data.name" else name_of(key)


def system_arm(config: Mapping[str, object], keys: Sequence[str]) -> str:
    """Return the name of a config from some of its keys, such as ASCL, τ' = 0.05; or `base`."""
    parts = [system(config)] if any(key in SYSTEM_KEYS for key in keys) else []
    parts += [key_value(key, config[key]) for key in keys if key not in SYSTEM_KEYS]
    return ", ".join(parts) or "base"


def join_names(names: Iterable[str]) -> str:
    """Join names for a sentence; if there are many, list the first and count the rest."""
    listed = list(names)
    more = f" and {len(listed) - MANY} more" if len(listed) > MANY else ""
    between = "; " if any("," in name for name in listed) else ", "
    return between.join(listed[:MANY]) + more
