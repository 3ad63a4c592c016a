"""InstDisc: each training image is its own class, and a memory slot holds the class's weight.

Wu et al., Unsupervised Feature Learning via Non-Parametric Instance-level Discrimination, 2018,
https://arxiv.org/abs/1805.01978.

A slot holds a moving average of its image's features. The loss is a softmax over all slots, or over
the image's own slot and slots that are sampled for each batch.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ascl.config import RunConfig
from ascl.data.base import DatasetSpec
from ascl.distributed import gather
from ascl.errors import Issue, RunError
from ascl.losses import bank_logits, info_nce, instance_softmax, mask_logits, spread, unit
from ascl.methods.base import Batch, Method, Output, TrainingSet
from ascl.models.heads import build_mlp
from ascl.models.memory_bank import SlotMemory
from ascl.models.resnet import ResNet
from ascl.sections import Cost, Key, MethodConfig

LABEL = "InstDisc"
PAPER = "arXiv:1805.01978"


class Config(MethodConfig):
    name: Literal["instdisc"] = "instdisc"
    temperature: Annotated[float, Key(label="τ")] = Field(0.1, gt=0)
    """τ of the loss."""
    negatives: Annotated[int | None, Key(smoke_max=512)] = Field(None, ge=1, le=2**22)
    """Number of slots sampled as negatives for a batch; all other slots if absent."""
    slot_momentum: float = Field(0.5, ge=0, le=1)
    """Weight of a slot's old value when it is updated with a new feature of its image."""

    def cost(self) -> Cost:
        return Cost(("query",), backprops=1, ema=False)

    def issues(self, run: RunConfig) -> Iterator[Issue]:
        images = run.data.train_size
        if images is not None and self.negatives is not None and self.negatives >= images:
            yield Issue("method.negatives", too_many_negatives(self.negatives, images))


def too_many_negatives(negatives: int, images: int) -> str:
    """Explain why there cannot be more sampled negatives than other images."""
    return (
        "must be less than the number of training images, "
        f"got negatives={negatives}, {images} training images; omit it to use all other images"
    )


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    tree: dict[str, Any] = {
        # Plain batch norm: there is no key that batch statistics could reveal.
        "encoder": {"bn_splits": 1},
        "optim": {"lr": 0.03, "weight_decay": 1e-4 if dataset.streams else 5e-4},
    }
    if dataset.streams:
        # Published with 4096 negatives; 65,536 is the stronger variant that MoCo compares with.
        tree["method"] = {"temperature": 0.07, "negatives": 65536}
    return tree


# Shapes: N = batch, M = images, R = sampled negatives, D = feature.
def sampled_softmax(
    query: Tensor, slots: Tensor, own: Tensor, drawn: Tensor, temperature: float
) -> Tensor:
    """Cross-entropy over each query's own slot and the sampled slots `drawn`.

    The paper uses noise-contrastive estimation (with an estimated normalization constant and
    proximal regularization) instead. Later work, such as MoCo's comparison, uses the softmax over
    the same sampled negatives, which needs neither.

    Args:
        query: Unit features (N, D).
        slots: Slots (M, D) of all images.
        own: Index (N,) of each query's own slot.
        drawn: Indices (R,) of the sampled slots; a query's own slot is masked.
        temperature: τ.
    """
    logits = bank_logits(query, slots[own], slots[drawn], temperature)
    return info_nce(mask_logits(logits, drawn == own.view(-1, 1)))


class InstDisc(Method):
    def __init__(self, config: Config, online: nn.Sequential, bank: SlotMemory) -> None:
        super().__init__()
        self.config = config
        self.online = online
        self.bank = bank

    def draws(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        if self.config.negatives is None:
            return ()
        slots = len(self.bank.features)
        return (torch.randint(slots, (self.config.negatives,), generator=generator),)

    def forward(self, batch: Batch) -> Output:
        config, slots, own = self.config, self.bank.features, batch.indices
        query = unit(self.online(batch.views[0]))
        with torch.autocast(query.device.type, enabled=False):
            if config.negatives is None:
                loss = instance_softmax(query, slots, own, config.temperature)
            else:
                loss = sampled_softmax(query, slots, own, batch.draws[0], config.temperature)
        diagnostics = {"spread": spread(query)} if batch.diagnose else {}
        remember = (gather(own), gather(query.detach()), gather(batch.labels))
        return Output(loss, remember, diagnostics)

    def after_backward(self, output: Output) -> None:
        self.bank.update(*output.remember, momentum=self.config.slot_momentum)


def build(config: RunConfig, training: TrainingSet) -> InstDisc:
    method, images = config.method, training.num_images
    assert isinstance(method, Config)
    if method.negatives is not None and method.negatives >= images:
        raise RunError(too_many_negatives(method.negatives, images))
    encoder, dim = ResNet(config.encoder), config.encoder.projector_dim
    online = nn.Sequential(encoder, build_mlp(encoder.feature_dim, dim))
    return InstDisc(method, online, SlotMemory(images, dim))
