"""`--scale laptop`: shrink a sweep until a CPU can run it, as a smoke test before the full cost.

The data become the embedded shapes, the encoder is 16 channels wide and runs have six epochs. Sizes
that the sweep varies still vary unless they become equal. Reports mark results of this scale.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Literal, TypeGuard

from ascl.config import RunConfig, Tree, merge, nested
from ascl.data.base import DATASETS
from ascl.errors import ConfigError
from ascl.keys import describe_keys
from ascl.methods import method_smoke
from ascl_sweep.search.schedulers.base import load_scheduler, scheduler_names
from ascl_sweep.spec.domains import canonical
from ascl_sweep.spec.space import AXES_FORMS

Scale = Literal["full", "laptop"]
Shrink = Callable[[str, object], Any]

EPOCHS = 6
IMAGES = 4000
UNLESS_GIVEN: Tree = {
    "batch_size": 32,
    "data.name": "shapes",
    "data.train_size": IMAGES,
    "encoder.width": 16,
    "encoder.projector_hidden": 256,
    "eval.knn_k": 50,
    "eval.probe": "cached",
    "eval.probe_epochs": 20,
}
WORDS: Mapping[str, Mapping[str, str]] = {
    "data.name": dict.fromkeys(DATASETS, "shapes"),
    "encoder.name": {"resnet34": "resnet18", "resnet50": "resnet18"},
    "eval.probe": {"paper": "cached"},
    "runtime.precision": {"bf16": "fp32", "fp16": "fp32"},
}


def laptop(sweep: Tree) -> Tree:
    """Shrink a sweep file's tree; malformed parts stay unchanged, for validation to report."""
    base, space = sweep.get("base", {}), sweep.get("space")
    if not isinstance(base, Mapping):
        return sweep
    epochs = sweep.get("epochs", base.get("epochs", 200))
    shrink = _shrinker(base, space, epochs)
    # Settings for short CPU runs, as in examples/shapes.yaml; an axis over such a key still varies.
    settings = {name: key.smoke for name, key in describe_keys().items() if key.smoke is not None}
    small = merge(merge(nested(UNLESS_GIVEN), _each(base, shrink)), nested(settings))
    if isinstance(small.get("method"), dict):
        small["method"].pop("momentum", None)  # `for_method` sets it for a short run
    out = {**sweep, "base": small}
    if "epochs" in sweep or "epochs" not in base:
        out["epochs"] = shrink("epochs", epochs)
    if isinstance(space, Mapping):
        out["space"] = _space(space, shrink)
    if isinstance(stop := sweep.get("stop"), Mapping):
        longest = epochs if _is_count(epochs) else 200
        out["stop"] = {rule: _scheduler(rule, given, longest) for rule, given in stop.items()}
    if isinstance(sweep.get("seeds"), list):
        out["seeds"] = sweep["seeds"][:3]
    if isinstance(sweep.get("resources", {}), Mapping):
        one = {"workers": 1, "gpus_per_worker": 0, "cpus_per_worker": 1, "cases": []}
        out["resources"] = merge(sweep.get("resources", {}), one)
    if isinstance(budget := sweep.get("budget"), Mapping) and _is_count(budget.get("trials")):
        out["budget"] = {**budget, "trials": min(budget["trials"], 12)}
    if isinstance(table := sweep.get("table"), Mapping) and "baseline" in table:
        out["table"] = {**table, "baseline": _each(table["baseline"], shrink)}
    return out


def for_method(config: Mapping[str, object]) -> Tree:
    """Return a method's defaults for a laptop-scale run; explicit settings override them."""
    method = config.get("method")
    name = method.get("name", "moco") if isinstance(method, Mapping) else "moco"
    batch = config.get("batch_size")
    try:
        defaults = _defaults(str(config.get("preset", "paper")), str(name))
    except ConfigError:
        return {}
    own: Tree = {}
    if size := getattr(defaults.method, "queue_size", None):
        # With few steps the bank must be short and the momentum encoder slow, or keys become stale.
        own["queue_size"] = _queue(size, batch if isinstance(batch, int) else 32)
    tree = {"encoder": {"bn_splits": _splits(defaults.encoder.bn_splits)}, "method": own}
    return merge(tree, method_smoke(str(name)))


@cache
def _defaults(preset: str, method: str) -> RunConfig:
    return RunConfig.of({"preset": preset, "method": {"name": method}})


def _shrinker(base: Mapping[str, object], space: object, epochs: object) -> Shrink:
    """Return the function that shrinks a value of a key in this sweep."""
    batches = [base.get("batch_size", 256), *_stated(space, "batch_size")]
    batch = max((_batch(n) for n in batches if _is_count(n)), default=32)
    varied = list(_stated(space, "epochs"))
    with_base = any(any(_stated(space, kind)) for kind in ("one_factor", "leave_one_out"))
    own = [epochs] if with_base or not varied else []
    lengths = _lengths([n for n in varied + own if _is_count(n)])
    shortest = min(lengths.values(), default=EPOCHS)
    most: dict[str, int] = {}
    for name, key in describe_keys().items():
        share = None if key.smoke_share is None else int(key.smoke_share * shortest)
        limits = [limit for limit in (key.smoke_max, share) if limit is not None]
        most |= {name: min(limits)} if limits else {}
    sizes: Mapping[str, Callable[[int], int]] = {
        "batch_size": _batch,
        "encoder.bn_splits": _splits,
        "epochs": lambda n: lengths.get(n, min(n, EPOCHS)),
        "method.queue_size": lambda n: _queue(n, batch),
    }

    def shrink(key: str, value: object) -> object:
        if isinstance(value, list):
            return [shrink(key, one) for one in value]
        if isinstance(value, str):
            return WORDS.get(key, {}).get(value, value)
        if value is None and key == "data.train_size":
            return IMAGES
        if not _is_count(value):
            return value
        return sizes[key](value) if key in sizes else min(value, most.get(key, value))

    return shrink


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _batch(size: int) -> int:
    return min(128, max(16, size // 8 // 4 * 4))  # a multiple of every result of `_splits`


def _splits(splits: int) -> int:
    return 4 if splits >= 4 else min(splits, 2)


def _queue(size: int, batch: int) -> int:
    return min(512, max(size // 8, 2 * batch))


def _lengths(epochs: list[int]) -> dict[int, int]:
    """Map run lengths to short ones: in the same order, distinct, at most EPOCHS if possible."""
    lengths = sorted(set(epochs))
    if not lengths or lengths[-1] <= EPOCHS:
        return {n: n for n in lengths}
    several = max(EPOCHS, len(lengths))
    return {n: several * (i + 1) // len(lengths) for i, n in enumerate(lengths)}


def _stated(tree: object, key: str) -> Iterator[object]:
    """Yield every value that a space lists for a key, at any depth."""
    for name, value in tree.items() if isinstance(tree, Mapping) else ():
        if name == key:
            for part in value.values() if isinstance(value, Mapping) else [value]:
                yield from part if isinstance(part, list) else [part]
        else:
            yield from _stated(value, key)
    for item in tree if isinstance(tree, list) else ():
        yield from _stated(item, key)


def _each(tree: object, shrink: Shrink, prefix: str = "") -> Any:
    """Shrink every value in a tree of config keys, dotted or nested."""
    if not isinstance(tree, Mapping):
        return shrink(prefix.removesuffix("."), tree) if prefix else tree
    return {name: _each(value, shrink, f"{prefix}{name}.") for name, value in tree.items()}


def _space(space: Mapping[str, object], shrink: Shrink) -> Tree:
    out: Tree = dict(space)
    for kind, form in space.items():
        if kind == "exclude" and isinstance(form, list):
            # All datasets are now `shapes`, so excluding one would exclude every cell.
            kept = [e for e in form if not (isinstance(e, Mapping) and "data.name" in e)]
            out[kind] = [_each(e, shrink) for e in kept]
        elif kind == "union" and isinstance(form, list):
            out[kind] = [_space(s, shrink) if isinstance(s, Mapping) else s for s in form]
        elif not isinstance(form, Mapping):
            continue
        elif kind in AXES_FORMS:
            axes = _each(_without_data(form), shrink)
            out[kind] = axes if kind == "zip" else {k: _distinct(v) for k, v in axes.items()}
        elif kind == "leave_one_out":
            out[kind] = {name: _each(part, shrink) for name, part in form.items()}
        elif isinstance(domains := form.get("domains"), Mapping):
            domains = {k: _domain(k, d, shrink) for k, d in _without_data(domains).items()}
            out[kind] = {**form, "domains": domains}
    return out


def _without_data(axes: Mapping[str, object]) -> Mapping[str, object]:
    """Drop the axis over datasets, which are all equal now; `--set data.name` still works."""
    return {key: value for key, value in axes.items() if key != "data.name"} or axes


def _distinct(values: object) -> object:
    if not isinstance(values, list):
        return values
    return list({canonical(value): value for value in reversed(values)}.values())[::-1]


def _domain(key: str, domain: object, shrink: Shrink) -> object:
    if not isinstance(domain, Mapping):
        return domain
    out = {**domain}
    if "when" in out:
        out["when"] = _each(out["when"], shrink)
    if "choice" in out:
        out["choice"] = _distinct(shrink(key, out["choice"]))
    bounds = out.get("int")
    if isinstance(bounds, list) and len(bounds) == 2 and (small := shrink(key, bounds)) != bounds:
        out = {k: v for k, v in out.items() if k != "step"} | {"int": small}
        if key == "batch_size" and not out.get("log"):
            out["step"] = 4
        if small[0] == small[1]:
            out = {"choice": small[:1], **({"when": out["when"]} if "when" in out else {})}
    return out


def _scheduler(rule: str, given: object, epochs: int) -> object:
    """Scale the first epoch at which runs may be stopped with the run length."""
    start = load_scheduler(rule).START if rule in scheduler_names() else ""
    if not isinstance(given, Mapping) or not _is_count(given.get(start)):
        return given
    return {**given, start: max(1, given[start] * min(EPOCHS, epochs) // epochs)}
