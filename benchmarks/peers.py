"""Peers to compare with: the usual torchvision PIL pipeline, and lightly's MoCo v2 recipe."""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from PIL import Image, ImageFilter
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
WORKERS = 2


class PilBlur:
    """Gaussian blur on PIL images, as in MoCo v2's code."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


def pil_pipeline(kind: str, size: int, strength: float = 0.8) -> Callable[[Image.Image], Tensor]:
    """Build a pipeline with the operations of `ascl.augment.views`, one image at a time."""
    s = strength
    color = [
        T.RandomApply([T.ColorJitter(0.8 * s, 0.8 * s, 0.8 * s, 0.2 * s)], p=0.8),
        T.RandomGrayscale(0.2),
        T.RandomApply([PilBlur()], p=0.5),
    ]
    out: Callable[[Image.Image], Tensor] = T.Compose(
        [
            T.RandomResizedCrop(size, scale=(0.2, 1.0)),
            T.RandomHorizontalFlip(),
            *{"weak": [], "strong": color, "stronger": [T.RandAugment(5, 10)]}[kind],
            T.ToTensor(),
            T.Normalize(MEAN, STD),
        ]
    )
    return out


class PilViews(Dataset[Any]):
    """Endless dataset of query and key views of PIL images."""

    def __init__(self, images: list[Image.Image], transform: Any = None) -> None:
        self.images, self.transform = images, transform
        self.views = pil_pipeline("strong", 32), pil_pipeline("weak", 32)

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> Any:
        image = self.images[index % len(self.images)]
        if self.transform is not None:
            return tuple(self.transform(image))
        return tuple(view(image) for view in self.views)


def loader_batches(dataset: PilViews, batch_size: int) -> Iterator[tuple[Tensor, ...]]:
    """Load batches with a DataLoader; closing the iterator ends its workers."""
    loader = DataLoader(dataset, batch_size, num_workers=WORKERS, drop_last=True)
    yield from map(tuple, loader)


class LightlyMoCo:
    """MoCo v2 as in lightly's documentation, with any backbone."""

    def __init__(self, backbone: nn.Module, feature_dim: int) -> None:
        from lightly.loss import NTXentLoss
        from lightly.models.modules import MoCoProjectionHead
        from lightly.models.utils import deactivate_requires_grad

        self.backbone = backbone
        self.head = MoCoProjectionHead(feature_dim, 2048, 128)
        self.backbone_momentum = copy.deepcopy(backbone)
        self.head_momentum = copy.deepcopy(self.head)
        deactivate_requires_grad(self.backbone_momentum)
        deactivate_requires_grad(self.head_momentum)
        self.criterion = NTXentLoss(temperature=0.1, memory_bank_size=(4096, 128))
        parameters = [*self.backbone.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=0.06, momentum=0.9, weight_decay=1e-4)

    def step(self, query: Tensor, key: Tensor) -> None:
        from lightly.models.utils import batch_shuffle, batch_unshuffle, update_momentum

        update_momentum(self.backbone, self.backbone_momentum, m=0.99)
        update_momentum(self.head, self.head_momentum, m=0.99)
        q = self.head(self.backbone(query).flatten(start_dim=1))
        with torch.no_grad():
            shuffled, order = batch_shuffle(key)
            k = self.head_momentum(self.backbone_momentum(shuffled).flatten(start_dim=1))
            k = batch_unshuffle(k, order)
        loss = self.criterion(q, k.detach())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def lightly_transform() -> Any:
    from lightly.transforms import MoCoV2Transform

    return MoCoV2Transform(input_size=32)
