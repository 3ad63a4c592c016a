"""RunConfig: the full description of one training run, validated before the run starts.

The keys are the same in YAML files, in overrides ("optim.lr=0.03") and in result tables. The values
that a user gives override the preset's defaults for the method and the dataset: `preset: paper`
follows the paper's text, `preset: code` the authors' released code where the two differ.
Importing this module does not load torch; building a `RunConfig` does, through its method.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import Field, SerializeAsAny, ValidationError

from ascl.data.base import DatasetSpec, dataset_spec
from ascl.errors import ConfigError, DataError, Issue, RunError, explain_validation, suggest_key
from ascl.methods import MethodModule, load_method, method_names
from ascl.sections import (
    AugmentConfig,
    DataConfig,
    EncoderConfig,
    EvalConfig,
    Key,
    MethodConfig,
    OptimConfig,
    RuntimeConfig,
)
from ascl.sections import (
    Section as Section,
)
from ascl.sections import (
    Tree as Tree,
)
from ascl.yaml_io import parse_yaml, read_yaml

Preset = Literal["paper", "code"]


class RunConfig(Section):
    """Config of one run. Create it with `RunConfig.of`, which fills in the preset's defaults."""

    preset: Annotated[Preset, Key(label="preset", changes_results=False)] = "paper"
    """Source of the defaults: `paper` follows the text of the ASCL paper, `code` the released code
    of its authors where the two differ. Keys in the file override both."""
    seed: Annotated[
        int,
        Key(
            label="seed",
            not_an_axis="cannot be swept, because every arm runs with the same seeds; "
            "list them in `seeds`",
        ),
    ] = Field(0, ge=0, lt=2**31)
    """Seed of all random numbers: weights, order, views and shuffles."""
    epochs: Annotated[int, Key(label="epochs")] = Field(200, ge=1)
    """Passes over the training images; the learning-rate schedule ends with the last one."""
    batch_size: Annotated[int, Key(label="batch")] = Field(256, ge=2, le=2**20)
    """Images per step, over all ranks together."""
    method: SerializeAsAny[MethodConfig]
    data: DataConfig
    augment: AugmentConfig
    encoder: EncoderConfig
    optim: OptimConfig
    eval: EvalConfig
    runtime: RuntimeConfig

    SECTIONS: ClassVar = ("method", "data", "augment", "encoder", "optim", "eval", "runtime")

    @classmethod
    def of(cls, given: object) -> Self:
        """Build a config from a user's mapping; raise `ConfigError` with all issues at once."""
        if not isinstance(given, Mapping):
            raise ConfigError([Issue("", f"a config must be a mapping of keys, got {given!r}")])
        issues: list[Issue] = []
        tree = cls._check_keys(given, issues)
        method, dataset = _find_named(tree, issues)
        merged = _fill_defaults(tree, method, dataset)
        sections = cls._validate_sections(merged, method.config, issues)
        config = cls._validate(merged, sections, issues)
        if config is not None and not issues:
            issues += config._find_conflicts()
        if config is None or issues:
            raise ConfigError(issues)
        return config

    @classmethod
    def _check_keys(cls, given: Mapping[str, Any], issues: list[Issue]) -> Tree:
        """Copy the mapping, add missing sections, and collect issues with its structure."""
        tree: Tree = _copy(given)
        for name in cls.SECTIONS:
            if tree.get(name) is None:
                tree[name] = {}
            if not isinstance(tree[name], dict):
                issues.append(Issue(name, f"must be a mapping of keys, got {tree[name]!r}"))
                tree[name] = {}
        for key in sorted(tree.keys() - cls.model_fields.keys()):
            issues.append(Issue(key, f"no such field{suggest_key(key, cls._known_keys(tree))}"))
        return tree

    @classmethod
    def _known_keys(cls, tree: Tree) -> Iterator[str]:
        """Yield the dotted keys of a config with the tree's method, or with the default one."""
        method = _find_named(_copy(tree), [])[0].config
        for name, field in cls.model_fields.items():
            model: Any = method if name == "method" else field.annotation
            yield name
            if name in cls.SECTIONS:
                yield from (f"{name}.{inner}" for inner in model.model_fields)

    @classmethod
    def _validate_sections(
        cls, merged: Tree, method: type[MethodConfig], issues: list[Issue]
    ) -> dict[str, Section]:
        """Return the valid sections and collect the issues of the others."""
        sections: dict[str, Section] = {}
        for name in cls.SECTIONS:
            model: Any = method if name == "method" else cls.model_fields[name].annotation
            try:
                sections[name] = model.model_validate(merged[name])
            except ValidationError as error:
                found = explain_validation(error, name, model)
                if name == "method":
                    own = merged["method"]["name"]
                    found = [_explain_foreign(issue, own, method) for issue in found]
                issues += found
        return sections

    @classmethod
    def _validate(
        cls, merged: Tree, sections: Mapping[str, Section], issues: list[Issue]
    ) -> Self | None:
        """Build the config from its sections; if it is invalid, collect the issues, return None."""
        top = {k: v for k, v in merged.items() if k in cls.model_fields and k not in cls.SECTIONS}
        try:
            return cls.model_validate({**top, **sections})
        except ValidationError as error:
            found = explain_validation(error, "", cls)
            issues += [issue for issue in found if issue.key not in cls.SECTIONS]
            return None

    def _find_conflicts(self) -> Iterator[Issue]:
        """Find conflicts between values of different sections."""
        batch, splits = self.batch_size, self.encoder.bn_splits
        if batch % splits:
            near = [n for n in (batch - batch % splits, batch + splits - batch % splits) if n > 1]
            yield Issue(
                "batch_size",
                "must be a multiple of encoder.bn_splits, "
                f"got batch_size={batch}, bn_splits={splits}; try {' or '.join(map(str, near))}",
            )
        elif batch // splits < 2:
            yield Issue(
                "encoder.bn_splits",
                "each BN group needs at least 2 images, "
                f"got batch_size={batch}, bn_splits={splits}; try {max(1, batch // 2)} or fewer",
            )
        elif splits % self.runtime.micro_batches:
            yield Issue(
                "runtime.micro_batches", uneven_micro_batches(splits, self.runtime.micro_batches)
            )
        if self.data.train_size is not None and batch > self.data.train_size:
            yield Issue(
                "batch_size",
                "a batch cannot be larger than the training set, "
                f"got batch_size={batch}, data.train_size={self.data.train_size}",
            )
        if self.optim.warmup_epochs >= self.epochs:
            yield Issue(
                "optim.warmup_epochs",
                "must be less than epochs, "
                f"got warmup_epochs={self.optim.warmup_epochs}, epochs={self.epochs}; "
                "train longer, or lower optim.warmup_epochs (preset code sets it to 5)",
            )
        bank, images = self.method.bank_size, self.data.train_size
        if images is not None and bank > images:
            yield Issue("method.queue_size", explain_large_bank(bank, images))
        yield from self.method.issues(self)

    def identity(self) -> str:
        """Return a stable hash of every value that can change this run's results.

        The preset is not hashed: the other values already contain its defaults, so two configs that
        describe the same run have the same id.
        """
        numbers: Tree = {"seed": self.seed, "epochs": self.epochs, "batch_size": self.batch_size}
        numbers |= {name: getattr(self, name).numbers() for name in self.SECTIONS}
        del numbers["optim"]["lr_scaling"]  # only the resulting learning rate matters
        numbers["optim"]["lr"] = self.optim.peak(self.batch_size)
        text = json.dumps(numbers, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def flat_values(self) -> dict[str, bool | int | float | str | None]:
        """Return every value by its dotted key (the store's column names); lists as JSON text."""
        values = flat(self.model_dump(mode="json"))
        return {k: json.dumps(v) if isinstance(v, list) else v for k, v in values.items()}

    def idle_keys(self) -> tuple[str, ...]:
        """Return the dotted keys whose values have no effect, given the other values.

        Strings and zeros are excluded: `relabel: none` and K = 0 have no effect themselves, but
        they are the reason why other keys have none.
        """
        return tuple(
            f"{section}.{name}"
            for section in self.SECTIONS
            for name in sorted(getattr(self, section).inert())
            if (value := getattr(getattr(self, section), name)) and not isinstance(value, str)
        )

    def to_yaml(self) -> str:
        """Return every value as YAML that `load_config` can read."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def nested(flat: Mapping[str, Any]) -> Tree:
    """{"optim.lr": 0.1} → {"optim": {"lr": 0.1}}."""
    tree: Tree = {}
    for key, value in flat.items():
        leaf = value
        for part in reversed(key.split(".")):
            leaf = {part: leaf}
        tree = merge(tree, leaf)
    return tree


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"optim": {"lr": 0.1}} → {"optim.lr": 0.1}."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def flat_keys(tree: Mapping[str, Any]) -> Iterator[str]:
    """Return the dotted keys of a tree's leaves."""
    return iter(flat(tree))


def explain_large_bank(bank: int, images: int) -> str:
    """Explain why a bank may not be larger than the training set."""
    return (
        "the bank cannot be larger than the training set, because images would be their own "
        f"negatives, got queue_size={bank}, {images} training images; try {images // 2} or fewer"
    )


def uneven_micro_batches(splits: int, micro_batches: int, workers: int = 1) -> str:
    """Explain why every worker must be able to split its BN groups over the micro-batches."""
    each = splits // workers
    fitting = [n for n in range(1, each + 1) if each % n == 0]
    fewer = [n for n in fitting if n < micro_batches]
    more = [n for n in fitting if n > micro_batches]
    near = fewer[-1:] + more[:1]
    return (
        "encoder.bn_splits must be a multiple of runtime.micro_batches on each worker, because BN "
        "statistics are computed within a micro-batch, "
        f"got encoder.bn_splits={splits}, runtime.micro_batches={micro_batches}"
        f"{f', workers={workers}' if workers > 1 else ''}; "
        f"try runtime.micro_batches={' or '.join(map(str, near))}, or another encoder.bn_splits"
    )


def preset_defaults(preset: object, dataset: DatasetSpec) -> Tree:
    """Return a preset's defaults for all sections but the method's: paper text or released code."""
    large = dataset.streams
    tree: Tree = {
        "method": {},
        "data": {},
        "augment": {"strength": 0.8},
        "encoder": {
            "name": "resnet50" if large else "resnet18",
            "stem": "large" if large else "small",
            "max_pool": large,
        },
        "optim": {"lr": 0.06, "lr_scaling": "linear", "weight_decay": 1e-4, "warmup_epochs": 0},
        # Decoding 1.3 million images for one kNN evaluation costs as much as half an epoch.
        "eval": {"knn_every": 10 if large else 1},
        "runtime": {},
    }
    if preset == "code":
        tree["augment"] = {"strength": 0.5}
        tree["encoder"]["max_pool"] = dataset.code_max_pool
        tree["eval"]["probe_nesterov"] = True
        tree["optim"] = {"lr": 0.03, "lr_scaling": "none", "weight_decay": 5e-4, "warmup_epochs": 5}
    return tree


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """Merge two trees recursively; values of `over` take precedence."""
    out: Tree = _copy(under)
    for key, value in _copy(over).items():
        if isinstance(value, Mapping) and isinstance(out.get(key), Mapping):
            out[key] = merge(out[key], value)
        else:
            out[key] = value
    return out


def _copy(value: Any) -> Any:
    """Copy a tree deeply and convert its keys to strings (YAML may have parsed them as numbers)."""
    if isinstance(value, Mapping):
        return {str(k): _copy(v) for k, v in value.items()}
    return [_copy(v) for v in value] if isinstance(value, list) else value


def _find_named(tree: Tree, issues: list[Issue]) -> tuple[MethodModule, DatasetSpec]:
    """Find the method and dataset that a tree names; replace an unknown name by the default."""
    try:
        method = load_method(tree["method"].get("name", "moco"))
    except RunError as error:
        issues.append(Issue("method.name", str(error)))
        method = load_method("moco")
        tree["method"] = {}  # the other keys belong to the unknown method
    try:
        dataset = dataset_spec(str(tree["data"].get("name", "cifar10")))
    except DataError as error:
        issues.append(Issue("data.name", str(error)))
        dataset = dataset_spec("cifar10")
    return method, dataset


def _fill_defaults(tree: Tree, method: MethodModule, dataset: DatasetSpec) -> Tree:
    """Merge the user's tree over the method's defaults, and these over the preset's."""
    preset, epochs = tree.get("preset", "paper"), tree.get("epochs")
    defaults = method.defaults(preset, dataset)
    if isinstance(epochs, int):
        defaults = method.config.for_short_run(defaults, max(1, epochs))
    merged = merge(merge(preset_defaults(preset, dataset), defaults), tree)
    merged["method"]["name"], merged["data"]["name"] = method.name, dataset.name
    return merged


def _explain_foreign(issue: Issue, name: str, own: type[MethodConfig]) -> Issue:
    """Name the methods that have the key, if it is a key of other methods only."""
    field = issue.key.rpartition(".")[2]
    if field in own.model_fields:
        return issue
    others = [other for other in method_names() if field in load_method(other).config.model_fields]
    if not others:
        return issue
    message = f"{name} has no {field!r}; methods that have it: {', '.join(others)}"
    return replace(issue, message=message)


def parse_overrides(overrides: Sequence[str]) -> Tree:
    """["optim.lr=0.03"] → {"optim": {"lr": 0.03}}; values are parsed as YAML."""
    tree: Tree = {}
    issues = []
    for text in overrides:
        key, equals, value = text.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            issues.append(Issue("", f"an override must look like optim.lr=0.03, got {text!r}"))
            continue
        try:
            leaf: Any = parse_yaml(value)[0] if value.strip() else None
        except ConfigError as config_error:
            issues.append(Issue(key, f"{config_error.issues[0].message}, got {value!r}"))
            continue
        for part in reversed(parts):
            leaf = {part: leaf}
        tree = merge(tree, leaf)
    if issues:
        raise ConfigError(issues)
    return tree


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Load a run's YAML file; raise `ConfigError` with the line of every issue."""
    changes = parse_overrides(overrides)
    given, lines = read_yaml(path)
    try:
        return RunConfig.of(merge(given, changes) if isinstance(given, Mapping) else given)
    except ConfigError as config_error:
        raise config_error.except_at(flat_keys(changes), str(path), lines) from None
