"""The moving average of a ResNet-18's weights, against the usual Python loop."""

from collections.abc import Iterator

import torch

from ascl.config import EncoderConfig
from ascl.encoders import ResNet
from ascl.momentum import MomentumCopy
from benchmarks.timing import Ratio, in_turns, timed


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
        a, b = in_turns(timed(ours, 20), timed(loop, 20), rounds=9)
        yield Ratio(f"EMA of a {width}-wide ResNet-18, Python loop", a, b, "≥ 3")
