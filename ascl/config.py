"""RunConfig: everything that describes one training run, checked before anything starts.

The keys are the same in YAML files, in overrides ("optim.lr=0.03") and in result tables. A config
is what a user gave, laid over the defaults of a preset for the method and the dataset; `preset:
paper` follows the paper's text, `preset: code` the authors' released code where it differs.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SerializeAsAny, ValidationError

from ascl.datasets import DATASETS, DatasetSpec, dataset_spec
from ascl.faults import Fault, Faulty, of_validation, parse_yaml, read_yaml, suggestion

Tree = dict[str, Any]


class Section(BaseModel):
    """A part of the config: frozen, and strict about unknown keys and wrong types."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    def inert(self) -> frozenset[str]:
        """Fields that, as the others stand, cannot change a number: left out of the identity."""
        return frozenset()

    def numbers(self) -> Tree:
        """What can change a run's numbers."""
        return self.model_dump(mode="json", exclude=set(self.inert()))


@dataclass(frozen=True)
class Cost:
    """What a step of a method takes, as the paper's tables state it."""

    views: tuple[str, ...]
    """The views it trains on; `query` and `key` are described by `augment.query` and `.key`. A
    `small` view is a query in a few pixels, of a part below `augment.crop_min`; a `stronger` one is
    a weak view under RandAugment."""
    backprops: int
    """Gradients through the encoder per image: 2 where both views are trained on."""
    ema: bool
    """Whether a momentum encoder goes along."""


class MethodConfig(Section):
    """Base of every method's own Config, which stands in its file under `methods/`."""

    name: str
    needs_labels: ClassVar[bool] = False
    """Whether it learns from classes; it then trains on the labelled images only."""

    def cost(self) -> Cost:
        """What a step takes, as the other fields stand."""
        raise NotImplementedError

    def faults(self, run: "RunConfig") -> Iterator[Fault]:
        """What does not go together between the method and the rest of the run."""
        yield from ()


class DataConfig(Section):
    name: str = "cifar10"
    root: str = "data"
    """Folder that holds the datasets; where they lie changes no number."""
    train_size: int | None = Field(None, ge=2)
    """Train on a class-balanced subset of this many images; all if absent."""
    holdout: float = Field(0.0, ge=0, lt=1)
    """Share of train kept aside for model selection, and scored instead of test."""

    def inert(self) -> frozenset[str]:
        return frozenset({"root"})


class AugmentConfig(Section):
    query: Literal["weak", "strong"] = "strong"
    """View of the online encoder."""
    key: Literal["weak", "strong"] = "weak"
    """View of the momentum encoder, and so of the bank."""
    strength: float = Field(0.8, ge=0, le=2)
    """Colour distortion s: brightness, contrast, saturation 0.8·s, hue 0.2·s."""
    crop_min: float = Field(0.2, gt=0, le=1)
    """Smallest crop, as a share of the picture's area."""

    def inert(self) -> frozenset[str]:
        return frozenset() if "strong" in (self.query, self.key) else frozenset({"strength"})


class EncoderConfig(Section):
    name: Literal["resnet18", "resnet34", "resnet50"] = "resnet18"
    width: int = Field(64, ge=1, le=1024)
    """Channels of the first stage; 64 is the published network, 16 trains on a CPU."""
    stem: Literal["small", "large"] = "small"
    """First layer: 3×3 stride 1 for small images, or ImageNet's 7×7 stride 2."""
    max_pool: bool = False
    """Keep the stem's max-pool."""
    bn_splits: int = Field(8, ge=1)
    """Batch norm in this many groups of the global batch, as if on that many GPUs; 1 is plain."""
    projector_hidden: int = Field(2048, ge=1, le=2**16)
    projector_dim: int = Field(128, ge=2, le=2**16)


class OptimConfig(Section):
    name: Literal["sgd", "lars"] = "sgd"
    """`lars` gives each weight matrix a step in proportion to its own norm, for large batches; its
    `lr` is of another size: SimCLR has 0.3 at batch 256, BYOL 0.2."""
    lr: float = Field(0.06, gt=0)
    """Learning rate at batch 256."""
    lr_scaling: Literal["linear", "none"] = "linear"
    """`linear` multiplies it by batch_size / 256."""
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-4, ge=0)
    warmup_epochs: int = Field(0, ge=0)
    """Epochs of linear warm-up from 0 before the cosine."""
    clip_norm: float | None = Field(None, gt=0)
    """Clip the gradient's norm; off if absent."""

    def inert(self) -> frozenset[str]:
        # There was no choice at first: a run with SGD keeps the id that it has in older ledgers.
        return frozenset({"name"} if self.name == "sgd" else {})

    def peak(self, batch_size: int) -> float:
        """The learning rate at the top of the schedule."""
        return self.lr * (batch_size / 256 if self.lr_scaling == "linear" else 1)


class EvalConfig(Section):
    knn_every: int = Field(1, ge=1)
    """Online kNN each so many epochs, and after the last."""
    knn_k: int = Field(200, ge=1)
    knn_temperature: float = Field(0.1, gt=0)
    probe: Literal["none", "paper", "cached"] = "paper"
    """Linear probe after the last epoch: `paper` on augmented views, `cached` on fixed features."""
    probe_epochs: int = Field(100, ge=1)
    probe_nesterov: bool = False
    """Nesterov momentum in the probe, as the released code has it."""

    def inert(self) -> frozenset[str]:
        return frozenset({"probe_epochs", "probe_nesterov"} if self.probe == "none" else {})


class RuntimeConfig(Section):
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    channels_last: bool = True
    compile: bool = False
    """torch.compile the encoders."""
    micro_batches: int = Field(1, ge=1, le=1024)
    """Encoders take a batch in so many parts, one after the other: the memory of one part, and the
    time of one more forward pass. The loss sees the whole batch, so that numbers change by rounding
    only; `encoder.bn_splits` must be a multiple of it times the workers."""
    device: str = "auto"
    """`auto` is the GPU if there is one; where a run is computed is not part of its identity."""

    def inert(self) -> frozenset[str]:
        return frozenset({"device", "micro_batches"})


class RunConfig(Section):
    """One run, whole. Make it with `RunConfig.of`, which fills in what the preset says."""

    preset: Literal["paper", "code"] = "paper"
    seed: int = Field(0, ge=0, lt=2**31)
    epochs: int = Field(200, ge=1)
    batch_size: int = Field(256, ge=2, le=2**20)
    """Images per step, over all ranks together."""
    method: SerializeAsAny[MethodConfig]
    data: DataConfig
    augment: AugmentConfig
    encoder: EncoderConfig
    optim: OptimConfig
    eval: EvalConfig
    runtime: RuntimeConfig
    _given: Tree = PrivateAttr(default_factory=dict)
    """What the user said, so that an override of the preset leaves it standing."""

    SECTIONS: ClassVar[tuple[str, ...]] = (
        *("method", "data", "augment", "encoder", "optim", "eval", "runtime"),
    )

    @classmethod
    def of(cls, given: object) -> Self:
        """The config that a user's mapping means; raises `Faulty` with everything wrong in it."""
        if not isinstance(given, Mapping):
            raise Faulty([Fault("", f"a config must be a mapping of keys, got {given!r}")])
        tree: Tree = _copy(given)
        said: Tree = _copy(given)
        faults: list[Fault] = []
        for name in cls.SECTIONS:
            if tree.get(name) is None:
                tree[name] = {}
            if not isinstance(tree[name], dict):
                faults.append(Fault(name, f"must be a mapping of keys, got {tree[name]!r}"))
                tree[name] = {}
        known = {"preset", "seed", "epochs", "batch_size", *cls.SECTIONS}
        for key in sorted(tree.keys() - known):
            faults.append(Fault(key, f"no such field{suggestion(key, known)}"))
        method, dataset = _named(tree, faults)
        preset = tree.get("preset", "paper")
        defaults = preset_defaults(preset, dataset)
        wanted = _in_time(method.defaults(preset, dataset), tree.get("epochs"))
        merged = merge(merge(defaults, wanted), tree)
        merged["method"]["name"], merged["data"]["name"] = method.name, dataset.name
        models: dict[str, type[Section]] = {
            name: method.config if name == "method" else cls.model_fields[name].annotation  # type: ignore[misc]
            for name in cls.SECTIONS
        }
        sections: dict[str, Section] = {}
        for name, model in models.items():
            try:
                sections[name] = model.model_validate(merged[name])
            except ValidationError as error:
                faults += of_validation(error, name, model)
        top = {k: v for k, v in merged.items() if k in known and k not in cls.SECTIONS}
        try:
            config = cls.model_validate({**top, **sections})
        except ValidationError as error:
            faults += [f for f in of_validation(error, "", cls) if f.key not in cls.SECTIONS]
        else:
            if not faults:
                faults += config._faults_between_sections()
            if not faults:
                config._given.update(said)
                return config
        raise Faulty(faults)

    def _faults_between_sections(self) -> Iterator[Fault]:
        batch, splits = self.batch_size, self.encoder.bn_splits
        if batch % splits:
            near = [n for n in (batch - batch % splits, batch + splits - batch % splits) if n > 1]
            yield Fault(
                "batch_size",
                "the batch must be a multiple of the BN groups, "
                f"got batch_size={batch}, bn_splits={splits}; try {' or '.join(map(str, near))}",
            )
        elif batch // splits < 2:
            yield Fault(
                "encoder.bn_splits",
                "each BN group needs at least 2 images, "
                f"got batch_size={batch}, bn_splits={splits}; try {max(1, batch // 2)} or fewer",
            )
        elif splits % self.runtime.micro_batches:
            yield Fault(
                "runtime.micro_batches", uneven_micro_batches(splits, self.runtime.micro_batches)
            )
        if self.data.train_size is not None and batch > self.data.train_size:
            yield Fault(
                "batch_size",
                "a batch cannot be larger than the training set, "
                f"got batch_size={batch}, data.train_size={self.data.train_size}",
            )
        if self.optim.warmup_epochs >= self.epochs:
            yield Fault(
                "optim.warmup_epochs",
                "warm-up must end before the run does, "
                f"got warmup_epochs={self.optim.warmup_epochs}, epochs={self.epochs}; "
                "train longer, or set optim.warmup_epochs (preset code has 5)",
            )
        queue, images = getattr(self.method, "queue_size", 0), self.data.train_size
        if images is not None and queue > images:
            yield Fault("method.queue_size", queue_too_long(queue, images))
        yield from self.method.faults(self)

    def identity(self) -> str:
        """A stable hash of what can change this run's numbers.

        The preset itself is not part of it: it is wholly spelled out in the other values, so that
        two ways of saying one run are one run.
        """
        numbers: Tree = {"seed": self.seed, "epochs": self.epochs, "batch_size": self.batch_size}
        numbers |= {name: getattr(self, name).numbers() for name in self.SECTIONS}
        del numbers["optim"]["lr_scaling"]  # how the rate was arrived at is nothing to the run
        numbers["optim"]["lr"] = self.optim.peak(self.batch_size)
        text = json.dumps(numbers, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_yaml(self) -> str:
        """Every value, as a file that `load_config` reads back."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def queue_too_long(queue: int, images: int) -> str:
    """Why a bank may not be larger than the training set."""
    return (
        "the bank cannot be larger than the training set, or each image is its own negative, "
        f"got queue_size={queue}, {images} training images; try {images // 2} or fewer"
    )


def uneven_micro_batches(splits: int, micro_batches: int, workers: int = 1) -> str:
    """Why micro-batches must be of whole BN groups, which each of the workers has its share of."""
    each = splits // workers
    fitting = [n for n in range(1, each + 1) if each % n == 0]
    fewer = [n for n in fitting if n < micro_batches]
    more = [n for n in fitting if n > micro_batches]
    near = fewer[-1:] + more[:1]
    return (
        "the BN groups must divide evenly over the micro-batches, for statistics never cross them, "
        f"got encoder.bn_splits={splits}, runtime.micro_batches={micro_batches}"
        f"{f', workers={workers}' if workers > 1 else ''}; "
        f"try {' or '.join(map(str, near))}, or another encoder.bn_splits"
    )


def preset_defaults(preset: object, dataset: DatasetSpec) -> Tree:
    """What a preset says of everything but the method: the paper's text, or the released code."""
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
        # Decoding 1.3 million images for a look at kNN costs as much as an epoch's half.
        "eval": {"knn_every": 10 if large else 1},
        "runtime": {},
    }
    if preset == "code":
        tree["augment"] = {"strength": 0.5}
        tree["encoder"]["max_pool"] = large or dataset.name in ("stl10", "tiny_imagenet")
        tree["eval"]["probe_nesterov"] = True
        tree["optim"] = {"lr": 0.03, "lr_scaling": "none", "weight_decay": 5e-4, "warmup_epochs": 5}
    return tree


def _in_time(wanted: Tree, epochs: object) -> Tree:
    """A method's defaults with what it begins with cut to a part of a run that is short."""
    if not isinstance(epochs, int):
        return wanted
    epochs = max(1, epochs)
    for section, key, most in (
        ("optim", "warmup_epochs", epochs // 10),
        # Slots begin at random and lose half of that with each epoch: early clusters mean nothing.
        ("method", "instdisc_epochs", epochs // 2),
        ("method", "instance_epochs", min(max(1, epochs // 10), epochs - 1)),
    ):
        if (own := wanted.get(section, {}).get(key)) is not None:
            wanted = merge(wanted, {section: {key: min(own, most)}})
    return wanted


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """`over` laid over `under`, key by key, at every depth."""
    out: Tree = _copy(under)
    for key, value in _copy(over).items():
        if isinstance(value, Mapping) and isinstance(out.get(key), Mapping):
            out[key] = merge(out[key], value)
        else:
            out[key] = value
    return out


def _copy(value: Any) -> Any:
    """A deep copy of a tree whose keys are strings, whatever YAML took them for."""
    if isinstance(value, Mapping):
        return {str(k): _copy(v) for k, v in value.items()}
    return [_copy(v) for v in value] if isinstance(value, list) else value


def _named(tree: Tree, faults: list[Fault]) -> tuple[Any, DatasetSpec]:
    """The method and dataset a tree names; an unknown name is a fault and the default stands in."""
    from ascl.methods import load_method  # methods import this module for their Config

    try:
        method = load_method(tree["method"].get("name", "moco"))
    except ValueError as error:
        faults.append(Fault("method.name", str(error)))
        method = load_method("moco")
        tree["method"] = {}  # its other keys belong to a method we do not know
    try:
        dataset = dataset_spec(str(tree["data"].get("name", "cifar10")))
    except ValueError as error:
        faults.append(Fault("data.name", str(error)))
        dataset = DATASETS["cifar10"]
    return method, dataset


def parse_overrides(overrides: Sequence[str]) -> Tree:
    """["optim.lr=0.03"] → {"optim": {"lr": 0.03}}; values are read as YAML."""
    tree: Tree = {}
    faults = []
    for text in overrides:
        key, equals, value = text.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            faults.append(Fault("", f"an override must look like optim.lr=0.03, got {text!r}"))
            continue
        try:
            leaf: Any = parse_yaml(value)[0] if value.strip() else None
        except Faulty as faulty:
            faults.append(Fault(key, f"{faulty.faults[0].message}, got {value!r}"))
            continue
        for part in reversed(parts):
            leaf = {part: leaf}
        tree = merge(tree, leaf)
    if faults:
        raise Faulty(faults)
    return tree


def with_overrides(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """The config with some keys changed; values that a preset gave follow a change of preset."""
    return RunConfig.of(merge(config._given, parse_overrides(overrides)))


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run's YAML file; every fault names its line."""
    changes = parse_overrides(overrides)
    given, lines = read_yaml(path)
    try:
        if not isinstance(given, Mapping):
            raise Faulty([Fault("", f"a config must be a mapping of keys, got {given!r}")])
        return RunConfig.of(merge(given, changes))
    except Faulty as faulty:
        raise faulty.except_at(flat_keys(changes), str(path), lines) from None


def flat_keys(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted keys of a tree's leaves."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat_keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"
