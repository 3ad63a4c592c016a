"""Laws of the encoders."""

import weakref
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ascl.models.momentum_encoder import MomentumCopy
from ascl.models.resnet import ResNet
from ascl.sections import EncoderConfig


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_at_full_width_it_is_torchvisions_resnet(name: str) -> None:
    ours = ResNet(EncoderConfig(name=name, stem="large", max_pool=True, bn_splits=1))  # type: ignore[arg-type]
    theirs = torchvision.models.get_model(name)
    theirs.fc = nn.Identity()
    # Same modules in the same order, under other names.
    states = ours.state_dict(), theirs.state_dict()
    assert [v.shape for v in states[0].values()] == [v.shape for v in states[1].values()]
    ours.load_state_dict(dict(zip(states[0], states[1].values(), strict=True)))
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours(x), theirs(x))


def test_the_small_stem_keeps_the_resolution() -> None:
    net = ResNet(EncoderConfig(width=4, bn_splits=1))
    assert net.stem(torch.randn(2, 3, 32, 32)).shape == (2, 4, 32, 32)
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, net.feature_dim) == (2, 32)
    assert (
        ResNet(EncoderConfig(width=4, max_pool=True)).stem(torch.randn(8, 3, 32, 32)).shape[-1]
        == 16
    )


def small_net(micro_batches: int, *, bn_splits: int = 4) -> ResNet:
    torch.manual_seed(0)
    net = ResNet(EncoderConfig(width=4, bn_splits=bn_splits))
    net.cut_batches(micro_batches)
    return net


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("micro_batches", [2, 4])
def test_parts_have_the_features_gradients_and_statistics_of_the_whole(
    micro_batches: int, layout: torch.memory_format
) -> None:
    views = torch.randn(2, 16, 3, 16, 16, dtype=torch.float64)
    seen = []
    for parts in (1, micro_batches):
        net = small_net(parts).double().to(memory_format=layout)
        # Two views before one gradient, and no symmetry among the images, as in a loss on all.
        first, second = (net(view.contiguous(memory_format=layout)) for view in views)
        (first @ second.T).softmax(dim=1)[:, 3].log().sum().backward()
        gradients = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
        assert len(gradients) == len(list(net.parameters()))
        seen.append({"first": first, "second": second, **gradients, **dict(net.named_buffers())})
    same(*seen)
    assert seen[1]["stem.1.num_batches_tracked"] == 2


def test_momentum_encoder_in_parts_has_the_same_keys_and_statistics() -> None:
    x = torch.randn(16, 3, 16, 16, dtype=torch.float64)
    seen = []
    for parts in (1, 2):
        copied = MomentumCopy(small_net(parts).double())
        seen.append({"keys": copied(x), **dict(copied.named_buffers())})
        assert not seen[-1]["keys"].requires_grad
    same(*seen)


def test_evaluation_does_not_split_the_batch() -> None:
    x = torch.randn(3, 3, 16, 16)  # not a multiple of them
    assert small_net(4).eval()(x).equal(small_net(1).eval()(x))


class Memory(TorchDispatchMode):
    """Peak bytes of the tensors seen under this mode that were in memory at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.held: dict[int, weakref.finalize[Any, Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is not None and storage._cdata not in self.held:
                freed = weakref.finalize(storage, self.free, storage._cdata, storage.nbytes())
                self.held[storage._cdata] = freed
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
        return out

    def free(self, key: int, size: int) -> None:
        del self.held[key]
        self.now -= size


def test_parts_reduce_the_peak_memory() -> None:
    def peak(micro_batches: int) -> int:
        net, x = small_net(micro_batches), torch.randn(32, 3, 32, 32)
        with Memory() as memory:
            net(x).square().sum().backward()
        return memory.peak

    whole = peak(1)
    assert 0.4 < peak(2) / whole < 0.7
    assert 0.2 < peak(4) / whole < 0.45


def test_parts_that_would_split_a_group_are_refused() -> None:
    message = r"bn_splits=8, runtime\.micro_batches=3; try runtime\.micro_batches=2 or 4, or"
    with pytest.raises(ValueError, match=message):
        small_net(3, bn_splits=8)


@pytest.mark.slow
def test_parts_are_the_same_when_compiled() -> None:
    x, seen = torch.randn(8, 3, 8, 8), []
    for compiled in (False, True):
        net = small_net(2, bn_splits=4)
        if compiled:
            net.compile()
        out = net(x)
        out.square().sum().backward()
        gradients = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
        seen.append({"out": out, **gradients, **dict(net.named_buffers())})
    for name in seen[0]:
        torch.testing.assert_close(seen[0][name], seen[1][name], rtol=1e-4, atol=1e-4, msg=name)
