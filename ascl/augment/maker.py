"""The maker of views: plans the views of one size, and applies plans to images on their device.

Shapes: M = stored images, H × W = their size, V = views of one size, N = batch, R = V·N rows, S =
side of the views.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ascl.augment.color import GREY, jitter_, normalize_
from ascl.augment.plan import Plan, plan_views
from ascl.augment.randaugment import affine_grids, rand_augment_
from ascl.augment.resample import Crops, blur, blur_taps, crop, resize_table
from ascl.augment.views import ViewDraw, ViewSpec

# Number of floats that a CPU processes completely before the next part: 4 MB, which fits its cache.
# A batch of ImageNet is far larger, and each operation would go through main memory.
CACHED = 2**20


@dataclass(frozen=True)
class ViewMaker:
    """Makes normalized views of one size, on the device of the constants."""

    specs: tuple[ViewSpec, ...]
    stored: tuple[int, int] | None
    mean: Tensor
    std: Tensor
    memory_format: torch.memory_format
    luma: Tensor  # (1, 1, 3) weights of the gray image
    resizes: tuple[Tensor, Tensor] | None  # `resize_table`, unless images are already cropped
    taps: Tensor | None  # `blur_taps`, if a view is blurred
    grids: Tensor | None  # `affine_grids`, if a view needs them

    @staticmethod
    def of(
        specs: Sequence[ViewSpec],
        mean: Tensor,
        std: Tensor,
        memory_format: torch.memory_format,
        stored: tuple[int, int] | None = None,
    ) -> "ViewMaker":
        """Prepare for views of one size.

        Args:
            specs: Parameters of each view, with the same size, `num_ops` and `magnitude`.
            mean: Channel means.
            std: Channel standard deviations.
            memory_format: Layout of the views.
            stored: Height and width of the images; None if they are already cropped.
        """
        size, kinds, device = specs[0].size, {spec.kind for spec in specs}, mean.device
        resizes = None
        if stored is not None:
            taps, weights = resize_table(max(stored), size)
            resizes = taps.to(device), weights.to(device)
        return ViewMaker(
            tuple(specs),
            stored,
            mean,
            std,
            memory_format,
            torch.tensor([[GREY]], device=device),
            resizes,
            blur_taps(size).to(device) if "strong" in kinds else None,
            affine_grids(specs[0].magnitude, size).to(device) if "stronger" in kinds else None,
        )

    def plan(self, draws: Sequence[ViewDraw], pictures: np.ndarray) -> list[Plan]:
        """Plan the parts of a batch that are processed one after the other; one part on a GPU.

        Args:
            draws: Random parameters of each view.
            pictures: Indices (N,) of the batch's images.
        """
        count = len(pictures)
        floats = 3 * self.specs[0].size ** 2 * len(self.specs) * count
        parts = -(-floats // CACHED) if self.mean.device.type == "cpu" else 1
        if parts <= 1:
            return [plan_views(draws, self.specs, pictures, self.stored)]
        step = -(-count // parts)
        return [
            plan_views([draw[part] for draw in draws], self.specs, pictures[part], self.stored)
            for part in (slice(start, start + step) for start in range(0, count, step))
        ]

    def make(self, images: Tensor, plans: Sequence[Plan]) -> tuple[Tensor, ...]:
        """Make the views (N, 3, S, S), one per spec.

        Args:
            images: Stored images, uint8 (M, 3, H, W), or (M, S, S, 3) if they are already cropped.
            plans: Plans of all parts, with tensors on the images' device.
        """
        size, count = self.specs[0].size, len(self.specs)
        views = torch.empty(
            (sum(plan.rows for plan in plans), 3, size, size),
            device=images.device,
            memory_format=self.memory_format,
        ).unflatten(0, (count, -1))
        parts = views.split([plan.rows // count for plan in plans], dim=1)
        for part, plan in zip(parts, plans, strict=True):
            part.copy_(self._make(images, plan).unflatten(0, (count, -1)))
        made: tuple[Tensor, ...] = views.unbind()
        return made

    def _make(self, images: Tensor, plan: Plan) -> Tensor:
        """Make the views of a plan, (R, 3, S, S)."""
        if plan.planes is None and isinstance(plan.source, Tensor):
            # Bytes of a pixel stay together: separating the channels would take most of the time.
            pixels = images.index_select(0, plan.source).float().div_(255)
            return normalize_(pixels.permute(0, 3, 1, 2), self.mean, self.std)
        size, colored = self.specs[0].size, 3 * plan.rows
        gray = colored + len(plan.gray)
        planes = torch.empty(gray + len(plan.blurred), size, size, device=images.device)
        views = planes[:colored].view(-1, 3, size, size)
        flat = views.flatten(2)
        if isinstance(plan.source, Crops):
            assert self.resizes is not None
            crop(images, plan.source, self.resizes, out=views)
        else:
            views.copy_(images.index_select(0, plan.source).permute(0, 3, 1, 2)).div_(255)
        if len(plan.shifts):
            blends = list(zip(plan.factor, plan.pixel, plan.mean, strict=True))
            jitter_(flat[: len(plan.shifts)], plan.starts, blends, plan.shifts)
        if plan.turns is not None:
            assert self.grids is not None
            stronger = views[-len(plan.turns.orders[0]) :]
            rand_augment_(stronger, plan.turns, self.grids, self.specs[0].magnitude)
        if len(plan.gray):
            luma = self.luma.expand(len(plan.gray), 1, 3)
            out = planes[colored:gray].view(-1, 1, size * size)
            torch.bmm(luma, flat.index_select(0, plan.gray), out=out)
        if len(plan.blurred):
            assert self.taps is not None
            blur(planes, plan.blurred, plan.kernels, self.taps, out=planes[gray:])
        if plan.planes is not None:
            views = planes.index_select(0, plan.planes).view_as(views)
        return normalize_(views, self.mean, self.std)
