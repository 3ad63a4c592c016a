"""EMA update of a ResNet-18's weights, against the usual loop over parameters in Python."""

from collections.abc import Iterator

import torch

from ascl.models.momentum_encoder import MomentumCopy
from ascl.models.resnet import ResNet
from ascl.sections import EncoderConfig
from benchmarks.timing import Ratio, alternate, timed


@torch.no_grad()
def run() -> Iterator[Ratio]:
    for width in (64, 16):
        online = ResNet(EncoderConfig(width=width))
        copy = MomentumCopy(online)

        def ours(copy: MomentumCopy = copy, online: ResNet = online) -> None:
            copy.follow(online, 0.99)

        def loop(copy: MomentumCopy = copy, online: ResNet = online) -> None:
            for average, value in zip(copy.parameters(), online.parameters(), strict=True):
                average.data = average.data * 0.99 + value.data * (1 - 0.99)

        ours(), loop()
        a, b = alternate(timed(ours, 20), timed(loop, 20), rounds=9)
        yield Ratio(f"EMA of a {width}-wide ResNet-18, Python loop", a, b, "≥ 3")
