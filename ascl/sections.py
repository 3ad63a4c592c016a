"""The sections of a config and the metadata of each key. Does not load torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from ascl.errors import Issue

if TYPE_CHECKING:
    from ascl.config import RunConfig

Tree = dict[str, Any]


@dataclass(frozen=True)
class Key:
    """Metadata of a config key, given in the `Annotated` type of its field.

    Keys of methods are parsed from the source (`ascl.plugins`): pass literals, by keyword.
    """

    label: str | None = None
    """Name of the key in tables; the dotted key if absent."""
    changes_results: bool = True
    """Whether the key can change a run's results. If not, it is not part of run ids and arms."""
    smoke: bool | int | float | str | None = None
    """Value in a smoke test, which overrides the file's."""
    not_an_axis: str | None = None
    """Why a sweep must not vary the key, and what to do instead; absent if a sweep may vary it."""
    smoke_max: int | None = None
    """Largest value in a smoke test; larger ones are reduced to it."""
    smoke_share: float | None = None
    """The same for a number of epochs: the largest share of the run's epochs."""


@cache
def keys_of(model: type[BaseModel]) -> Mapping[str, Key]:
    """Return the `Key` of every field of a model, in order."""
    return {
        name: next((part for part in field.metadata if isinstance(part, Key)), Key())
        for name, field in model.model_fields.items()
    }


class Section(BaseModel):
    """Base class of a config section: frozen; rejects unknown keys and wrong types."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    def inert(self) -> frozenset[str]:
        """Return the fields that have no effect, given the others; the identity omits them."""
        return frozenset(n for n, key in keys_of(type(self)).items() if not key.changes_results)

    def numbers(self) -> Tree:
        """Return the values that can change a run's results."""
        return self.model_dump(mode="json", exclude=set(self.inert()))


@dataclass(frozen=True)
class Cost:
    """Cost of a method's training step, in the terms of the paper's tables."""

    views: tuple[str, ...]
    """Views that a step trains on. `augment.query` and `augment.key` describe `query` and `key`; a
    `small` view is a low-resolution query view of a crop below `augment.crop_min`; a `stronger`
    view is a weak view with RandAugment."""
    backprops: int
    """Backward passes through the encoder per image: 2 if both views are trained on."""
    ema: bool
    """Whether the method uses a momentum encoder."""


class MethodConfig(Section):
    """Base class of every method's `Config`, which is defined in the method's file."""

    name: Annotated[str, Key(label="method")]
    needs_labels: ClassVar[bool] = False
    """Whether the method learns from classes; it then trains on labeled images only."""

    def cost(self) -> Cost:
        """Return the cost of a step with the current settings."""
        raise NotImplementedError

    @property
    def bank_size(self) -> int:
        """Number of features in the bank (`queue_size`); 0 if the method has no bank."""
        return int(getattr(self, "queue_size", 0))

    @classmethod
    def for_short_run(cls, defaults: Tree, epochs: int) -> Tree:
        """Shorten the warm-up and similar phases in the defaults for a run of `epochs` epochs."""
        return cap_default(defaults, "optim", "warmup_epochs", epochs // 10)

    def issues(self, run: "RunConfig") -> Iterator[Issue]:
        """Find conflicts between the method and the rest of the config."""
        yield from ()


def cap_default(defaults: Tree, section: str, key: str, most: int) -> Tree:
    """Return the defaults with one number, if it is among them, limited to `most`."""
    values = defaults.get(section, {})
    if values.get(key) is None:
        return defaults
    return {**defaults, section: {**values, key: min(values[key], most)}}


class DataConfig(Section):
    name: Annotated[str, Key(label="data")] = "cifar10"
    """Dataset to train and evaluate on."""
    root: Annotated[
        str,
        Key(
            changes_results=False,
            not_an_axis="the location of the data does not change results; set it in the base",
        ),
    ] = "data"
    """Folder of the datasets; does not change results."""
    train_size: Annotated[int | None, Key(label="training images", smoke_max=4000)] = Field(
        None, ge=2
    )
    """Size of the class-balanced subset to train on; all images if absent."""
    holdout: Annotated[
        float,
        Key(
            label="holdout",
            not_an_axis="must be the same for all arms, or arms are scored on different images; "
            "set it in the base",
        ),
    ] = Field(0.0, ge=0, lt=1)
    """Fraction of the training set held out for model selection, and scored instead of test."""


class AugmentConfig(Section):
    query: Annotated[Literal["weak", "strong"], Key(label="query view")] = "strong"
    """View of the online encoder."""
    key: Annotated[Literal["weak", "strong"], Key(label="key view")] = "weak"
    """View of the momentum encoder, which also fills the bank."""
    strength: Annotated[float, Key(label="strength")] = Field(0.8, ge=0, le=2)
    """Color distortion s: brightness, contrast, saturation 0.8·s, hue 0.2·s."""
    crop_min: Annotated[float, Key(label="smallest crop", smoke=0.4)] = Field(0.2, gt=0, le=1)
    """Smallest crop, as a fraction of the image's area."""

    def inert(self) -> frozenset[str]:
        return super().inert() | (set() if "strong" in (self.query, self.key) else {"strength"})


class EncoderConfig(Section):
    name: Annotated[Literal["resnet18", "resnet34", "resnet50"], Key(label="encoder")] = "resnet18"
    """Architecture of the encoder."""
    width: Annotated[int, Key(label="width", smoke_max=16)] = Field(64, ge=1, le=1024)
    """Channels of the first stage; 64 is the published network, 16 is feasible on a CPU."""
    stem: Annotated[Literal["small", "large"], Key(smoke="large")] = "small"
    """First layer: 3×3 stride 1 for small images, or ImageNet's 7×7 stride 2."""
    max_pool: Annotated[bool, Key(smoke=False)] = False
    """Whether the stem has a max-pool."""
    bn_splits: Annotated[int, Key(label="BN groups")] = Field(8, ge=1)
    """Number of groups of the global batch with separate batch norm statistics, as if each group
    were on its own GPU; 1 is plain batch norm."""
    projector_hidden: Annotated[int, Key(smoke_max=256)] = Field(2048, ge=1, le=2**16)
    """Width of the projector's hidden layers."""
    projector_dim: int = Field(128, ge=2, le=2**16)
    """Width of the projector's output: the dimension of the features in the loss and the bank."""


class OptimConfig(Section):
    name: Annotated[Literal["sgd", "lars"], Key(label="optimizer")] = "sgd"
    """`lars` scales the step of each weight matrix by its norm, for large batches. It needs a
    different `lr`: SimCLR uses 0.3 at batch 256, BYOL 0.2."""
    lr: Annotated[float, Key(label="lr", smoke=0.06)] = Field(0.06, gt=0)
    """Learning rate at batch 256."""
    lr_scaling: Annotated[Literal["linear", "none"], Key(smoke="none")] = "linear"
    """`linear` multiplies `lr` by batch_size / 256."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of the optimizer; that of the momentum encoder is `method.momentum`."""
    weight_decay: Annotated[float, Key(label="weight decay")] = Field(1e-4, ge=0)
    """Factor of the L2 penalty on the weights."""
    warmup_epochs: Annotated[int, Key(label="warm-up", smoke=0, smoke_max=0)] = Field(0, ge=0)
    """Epochs of linear warm-up from 0 before the cosine decay."""
    clip_norm: float | None = Field(None, gt=0)
    """Maximum norm of the gradient; no clipping if absent."""

    def inert(self) -> frozenset[str]:
        # This key is newer than the first stores: runs with SGD keep their ids.
        return super().inert() | ({"name"} if self.name == "sgd" else set())

    def peak(self, batch_size: int) -> float:
        """Return the peak learning rate of the schedule."""
        return self.lr * (batch_size / 256 if self.lr_scaling == "linear" else 1)


class EvalConfig(Section):
    knn_every: Annotated[int, Key(smoke_max=1)] = Field(1, ge=1)
    """Epochs between online kNN evaluations; the last epoch always has one."""
    knn_k: Annotated[int, Key(label="kNN's k", smoke_max=50)] = Field(200, ge=1)
    """Number of nearest training images that vote on the class of an image."""
    knn_temperature: Annotated[float, Key(label="kNN's temperature")] = Field(0.1, gt=0)
    """Temperature of the votes, which have the weight exp(cosine / temperature)."""
    probe: Annotated[Literal["none", "paper", "cached"], Key(label="probe")] = "paper"
    """Linear probe after the last epoch: `paper` on augmented views, `cached` on fixed features."""
    probe_epochs: Annotated[int, Key(label="probe epochs", smoke_max=20)] = Field(100, ge=1)
    """Epochs of the linear probe."""
    probe_nesterov: Annotated[bool, Key(label="Nesterov in the probe")] = False
    """Nesterov momentum in the probe, as in the released code."""

    def inert(self) -> frozenset[str]:
        unused = {"probe_epochs", "probe_nesterov"} if self.probe == "none" else set()
        return super().inert() | unused


class RuntimeConfig(Section):
    precision: Annotated[Literal["fp32", "bf16", "fp16"], Key(label="precision")] = "fp32"
    """Number format of the encoders; `bf16` and `fp16` use automatic mixed precision."""
    channels_last: bool = True
    """Whether images are stored with the channels last, which is usually faster."""
    compile: Annotated[bool, Key(smoke=False)] = False
    """Whether to torch.compile the encoders."""
    micro_batches: Annotated[
        int,
        Key(
            changes_results=False,
            not_an_axis="memory use does not change results; set it in the base",
            smoke=1,
        ),
    ] = Field(1, ge=1, le=1024)
    """Number of parts in which the encoders process a batch, one after the other. Activations take
    the memory of one part, at the cost of one more forward pass. The loss is that of the whole
    batch, so results change only by rounding. `encoder.bn_splits` must be a multiple of this number
    times the workers."""
    device: Annotated[
        str,
        Key(
            changes_results=False,
            not_an_axis="the device is not part of an arm; request GPUs and CPUs in `resources`",
        ),
    ] = "auto"
    """Device, such as `cpu` or `cuda`; `auto` uses the GPU if there is one."""
