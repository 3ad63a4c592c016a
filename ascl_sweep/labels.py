"""How people call what a config calls by its keys: τ' for `method.target_temperature`."""

from collections.abc import Mapping, Sequence
from typing import Any

NAMES = {
    "method.name": "method",
    "method.relabel": "relabel",
    "method.target_temperature": "τ'",
    "method.temperature": "τ",
    "method.num_neighbours": "K",
    "method.queue_size": "bank",
    "method.momentum": "m",
    "method.momentum_rises": "m rises",
    "method.symmetric": "symmetric",
    "data.name": "data",
    "augment.strength": "strength",
    "augment.key": "key view",
    "augment.query": "query view",
    "batch_size": "batch",
    "encoder.name": "encoder",
    "optim.name": "optimiser",
    "optim.lr": "lr",
    "optim.weight_decay": "weight decay",
    "optim.warmup_epochs": "warm-up",
    "epochs": "epochs",
    "preset": "preset",
    "seed": "seed",
    "augment.crop_min": "smallest crop",
    "encoder.width": "width",
    "encoder.bn_splits": "BN groups",
    "data.train_size": "training images",
    "data.holdout": "holdout",
    "runtime.precision": "precision",
    "eval.knn_k": "kNN's k",
    "eval.knn_temperature": "kNN's temperature",
    "eval.probe": "probe",
    "eval.probe_epochs": "probe epochs",
    "eval.probe_nesterov": "Nesterov in the probe",
}
METHODS = {
    "moco": "MoCo",
    "byol": "BYOL",
    "simclr": "SimCLR",
    "simsiam": "SimSiam",
    "ressl": "ReSSL",
    "instdisc": "InstDisc",
    "localagg": "LocalAgg",
    "co2": "CO2",
    "pcl": "PCL",
    "nnclr": "NNCLR",
    "clsa": "CLSA",
    "swav": "SwAV",
    "meanshift": "MeanShift",
    "supervised": "Supervised",
}
DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "stl10": "STL-10",
    "tiny_imagenet": "Tiny ImageNet",
    "imagenet": "ImageNet-1k",
}
RELABELS = {"hard": "Hard", "ahcl": "AHCL", "ascl": "ASCL"}
SYSTEM_KEYS = ("method.name", "method.relabel", "method.symmetric")


def name_of(key: str) -> str:
    """A key as a person would call it."""
    return NAMES.get(key, key)


def value_of(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def arm(values: Mapping[str, Any]) -> str:
    """A cell in one line; `base` if it changes nothing."""
    return ", ".join(f"{name_of(k)} {value_of(v)}" for k, v in values.items()) or "base"


def system(config: Mapping[str, Any]) -> str:
    """A method with its relabelling, as the paper calls it."""
    name = str(config.get("method.name", "moco"))
    method = METHODS.get(name, name)
    relabel = RELABELS.get(str(config.get("method.relabel")))
    if relabel is not None:
        method = relabel if name == "moco" else f"{method} + {relabel}"
    return f"{method} (symmetric)" if config.get("method.symmetric") else method


def value_label(key: str, value: Any) -> str:
    """A key's value in a table."""
    if key == "data.name":
        return DATASETS.get(str(value), str(value))
    if value is None:
        return "all" if key == "data.train_size" else "none"
    return value_of(value)


def key_value(key: str, value: Any) -> str:
    """τ' = 0.05; of a dataset its name."""
    shown = value_label(key, value)
    return shown if key == "data.name" else f"{name_of(key)} = {shown}"


def title_of(key: str) -> str:
    """What a table's column of a key's values is headed."""
    return "method" if key in SYSTEM_KEYS else "dataset" if key == "data.name" else name_of(key)


def system_arm(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    """A configuration in a table, by some of its keys: ASCL, τ' = 0.05."""
    parts = [system(config)] if any(key in SYSTEM_KEYS for key in keys) else []
    parts += [key_value(key, config[key]) for key in keys if key not in SYSTEM_KEYS]
    return ", ".join(parts) or "base"


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


def one_line(error: BaseException, *, last: bool = False) -> str:
    """The first line of what an error says, or the last; of one that says nothing, its kind."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return lines[-1 if last else 0].strip()
