"""How people call what a config calls by its keys: τ' for `method.target_temperature`."""

from collections.abc import Mapping
from typing import Any

NAMES = {
    "method.name": "method",
    "method.relabel": "relabel",
    "method.target_temperature": "τ'",
    "method.temperature": "τ",
    "method.num_neighbours": "K",
    "method.queue_size": "bank",
    "method.momentum": "m",
    "data.name": "data",
    "augment.strength": "strength",
    "augment.key": "key view",
    "augment.query": "query view",
    "batch_size": "batch",
    "encoder.name": "encoder",
    "optim.lr": "lr",
    "optim.weight_decay": "weight decay",
    "optim.warmup_epochs": "warm-up",
    "epochs": "epochs",
    "preset": "preset",
    "seed": "seed",
}


def name_of(key: str) -> str:
    """A key as a person would call it."""
    return NAMES.get(key, key)


def value_of(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def arm(values: Mapping[str, Any]) -> str:
    """A cell in one line; `base` if it changes nothing."""
    return ", ".join(f"{name_of(k)} {value_of(v)}" for k, v in values.items()) or "base"


def percent(share: float | None, digits: int = 1) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f}%"


def duration(seconds: float | None) -> str:
    """About how long, in the two largest units."""
    if seconds is None:
        return "–"
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
