"""Preparation of a sweep file before validation: expand dotted keys, apply overrides."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ascl.config import RunConfig, Tree, flat_keys, merge, nested, parse_overrides
from ascl.errors import Issue
from ascl_sweep.spec.space import AXES_FORMS

NO_VALUE = "no value given"


def find_empty_keys(tree: Mapping[str, Any]) -> list[Issue]:
    """Return an issue for every key of a sweep file without a value, outside of `base`.

    A config key of the base may be null, because null is the default of some keys. Any other key
    without a value would silently have its default: `epochs:` would train 200 epochs.
    """
    return [
        Issue(place, f"{NO_VALUE}; write a value or remove the line")
        for place in _empty_keys(tree, "", depth=2)
    ]


def _empty_keys(tree: Mapping[str, Any], prefix: str, depth: int) -> Iterator[str]:
    for name, value in tree.items():
        place = f"{prefix}{name}"
        if value is None:
            yield place
        elif isinstance(value, Mapping) and depth > 1 and place != "base":
            yield from _empty_keys(value, f"{place}.", depth - 1)
        elif name == "union" and isinstance(value, list):
            for i, space in enumerate(value):
                if isinstance(space, Mapping):
                    yield from _empty_keys(space, f"{place}.{i}.", 1)


def unfold_base(tree: Tree) -> tuple[Tree, list[Issue]]:
    """Drop empty sections and expand dotted keys of the base; return the tree and its issues."""
    tree = {key: value for key, value in tree.items() if value is not None}
    given = tree.get("base")
    if not isinstance(given, Mapping):
        return tree, []
    base: Tree = {}
    issues = []
    seen: set[str] = set()
    for key, value in given.items():
        if key in RunConfig.SECTIONS and not isinstance(value, Mapping | None):
            issues.append(Issue(f"base.{key}", f"must be a mapping of keys, got {value!r}"))
            continue
        part = nested({key: value})
        leaves = set(flat_keys(part))
        issues += [
            Issue(f"base.{leaf}", "given twice in the base; remove one") for leaf in leaves & seen
        ]
        seen |= leaves
        base = merge(base, part)
    if "seed" in base:
        issues.append(
            Issue("base.seed", "not allowed in the base; list the seeds of all arms in `seeds`")
        )
        del base["seed"]
    if "epochs" in base and "epochs" in tree:
        issues.append(Issue("base.epochs", "given twice; remove it or the sweep's own `epochs`"))
        del base["epochs"]
    return {**tree, "base": base}, issues


def apply_overrides(
    tree: Tree, overrides: Sequence[str], sections: Collection[str]
) -> tuple[list[str], list[Issue]]:
    """Apply overrides to the tree in place; return the paths that changed and the issues.

    An override whose first word is in `sections` changes the sweep; any other changes its base.
    """
    parse_overrides(overrides)  # raises one error that lists all malformed overrides
    changed: list[str] = []
    issues = []
    for text in overrides:
        key, value = _parse(text)
        changed += _apply(tree, key, value, sections)
        is_empty = not text.partition("=")[2].strip()
        if is_empty and key.split(".")[0] in set(sections) - {"base"}:
            message = f"{NO_VALUE}; write a value, or --set {key}=null for the default"
            issues.append(Issue(key, message))
    return changed, issues


def _parse(override: str) -> tuple[str, object]:
    """ "optim.lr=0.1" → ("optim.lr", 0.1)."""
    leaf: Any = parse_overrides([override])
    key = override.partition("=")[0].strip()
    for part in key.split("."):
        leaf = leaf[part]
    return key, leaf


def _apply(tree: Tree, key: str, value: object, sections: Collection[str]) -> list[str]:
    parts = key.split(".")
    if parts[0] == "base" and len(parts) > 1:
        parts = parts[1:]
    elif parts[0] in sections:
        if parts == ["base"] and isinstance(value, Mapping):
            value = nested(value)
        if parts == ["epochs"] and isinstance(tree.get("base"), dict):
            tree["base"].pop("epochs", None)
        _put(tree, parts, value)
        return [key]
    base = tree.get("base")
    leaf = nested({".".join(parts): value})
    tree["base"] = merge(base if isinstance(base, Mapping) else {}, leaf)
    return [f"base.{place}" for place in flat_keys(leaf)]


def _put(tree: Tree, parts: list[str], value: object) -> None:
    """Set the value at a path; keys of the tree may contain dots."""
    lengths = [n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in tree]
    length = lengths[0] if lengths else 1
    name, rest = ".".join(parts[:length]), parts[length:]
    if not rest:
        tree[name] = value
        return
    inner = tree[name] = dict(tree[name]) if isinstance(tree.get(name), Mapping) else {}
    if name in AXES_FORMS and ".".join(rest) not in inner:
        inner[".".join(rest)] = value
    else:
        _put(inner, rest, value)
