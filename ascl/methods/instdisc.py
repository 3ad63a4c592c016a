"""InstDisc: each training image is a class of its own, and a memory slot is the class's weight.

A slot holds a moving average of its image's features. The loss is a softmax over all slots, or over
the own one and some that are drawn for each batch.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ascl.bank import SlotMemory
from ascl.config import Cost, MethodConfig, RunConfig
from ascl.datasets import DatasetSpec
from ascl.distributed import gather
from ascl.encoders import ResNet, mlp
from ascl.faults import Fault
from ascl.losses import bank_logits, info_nce, instance_softmax, spread, unit, without
from ascl.methods import Batch, Method, Output, TrainingSet


class Config(MethodConfig):
    name: Literal["instdisc"] = "instdisc"
    temperature: float = Field(0.1, gt=0)
    """τ of the loss."""
    negatives: int | None = Field(None, ge=1, le=2**22)
    """How many slots are drawn as negatives of a batch; all others are negatives if absent."""
    slot_momentum: float = Field(0.5, ge=0, le=1)
    """How much of a slot's old value stays when its image is seen."""

    def cost(self) -> Cost:
        return Cost(("query",), backprops=1, ema=False)

    def faults(self, run: RunConfig) -> Iterator[Fault]:
        images = run.data.train_size
        if images is not None and self.negatives is not None and self.negatives >= images:
            yield Fault("method.negatives", too_many_negatives(self.negatives, images))


def too_many_negatives(negatives: int, images: int) -> str:
    """Why not more slots are drawn than there are others."""
    return (
        "negatives are drawn from the slots of the other images and must be fewer than images, "
        f"got negatives={negatives}, {images} training images; leave it out to take all"
    )


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    tree: dict[str, Any] = {
        # Plain batch norm: there is no key to single out.
        "encoder": {"bn_splits": 1},
        "optim": {"lr": 0.03, "weight_decay": 1e-4 if dataset.streams else 5e-4},
    }
    if dataset.streams:
        # Published with 4096 negatives; with 65,536 it is the stronger one that MoCo compares with.
        tree["method"] = {"temperature": 0.07, "negatives": 65536}
    return tree


# Shapes: N = batch, M = images, R = drawn negatives, D = feature.
def sampled_softmax(
    query: Tensor, slots: Tensor, own: Tensor, drawn: Tensor, temperature: float
) -> Tensor:
    """Cross-entropy of the own slot among itself and the drawn ones (R,) of slots (M, D).

    Published is noise-contrastive estimation: for each slot the binary question whether it is the
    own one or noise, with a constant that is estimated once in place of the softmax's sum, and a
    proximal term against its variance. The softmax over the sample is what later work (MoCo's
    comparison) put in its place: the same negatives, neither constant nor term.
    """
    logits = bank_logits(query, slots[own], slots[drawn], temperature)
    return info_nce(without(logits, drawn == own.view(-1, 1)))


class InstDisc(Method):
    def __init__(self, config: Config, online: nn.Sequential, bank: SlotMemory) -> None:
        super().__init__()
        self.config = config
        self.online = online
        self.bank = bank

    def forward(self, batch: Batch) -> Output:
        config, slots, own = self.config, self.bank.features, batch.indices
        query = unit(self.online(batch.views[0]))
        with torch.autocast(query.device.type, enabled=False):
            if config.negatives is None:
                loss = instance_softmax(query, slots, own, config.temperature)
            else:
                drawn = torch.randint(len(slots), (config.negatives,), generator=batch.generator)
                loss = sampled_softmax(
                    query, slots, own, drawn.to(query.device), config.temperature
                )
        diagnostics = {"spread": spread(query)} if batch.diagnose else {}
        everyones = (gather(own), gather(query.detach()), gather(batch.labels))
        return Output(loss, everyones, diagnostics)

    def after_backward(self, output: Output) -> None:
        self.bank.update(*output.remember, momentum=self.config.slot_momentum)


def build(config: RunConfig, training: TrainingSet) -> InstDisc:
    method, images = config.method, training.num_images
    assert isinstance(method, Config)
    if method.negatives is not None and method.negatives >= images:
        raise ValueError(too_many_negatives(method.negatives, images))
    encoder, dim = ResNet(config.encoder), config.encoder.projector_dim
    online = nn.Sequential(encoder, mlp(encoder.feature_dim, dim))
    return InstDisc(method, online, SlotMemory(images, dim))
