"""Laws of the encoders."""

import copy
import weakref
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ascl.config import EncoderConfig
from ascl.distributed import shuffled_keys
from ascl.encoders import ResNet, SplitBatchNorm, in_parts, mlp
from ascl.momentum import MomentumCopy


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


@pytest.mark.parametrize("shape", [(12, 5), (12, 5, 4, 3)])
@pytest.mark.parametrize("splits", [1, 2, 3])
def test_split_batch_norm_is_plain_batch_norm_of_each_group(
    shape: tuple[int, ...], splits: int
) -> None:
    x = torch.randn(shape)
    split = SplitBatchNorm(5, splits=splits)
    plain = [(nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d)(5) for _ in range(splits)]
    expected = torch.cat([bn(part) for bn, part in zip(plain, x.chunk(splits), strict=True)])
    torch.testing.assert_close(split(x), expected)
    means = torch.stack([bn.running_mean for bn in plain]).mean(dim=0)
    variances = torch.stack([bn.running_var for bn in plain]).mean(dim=0)
    torch.testing.assert_close(split.running_mean, means)
    torch.testing.assert_close(split.running_var, variances)
    assert split.num_batches_tracked == 1


def test_split_batch_norm_in_evaluation_is_plain() -> None:
    split, plain = SplitBatchNorm(5, splits=4), nn.BatchNorm2d(5)
    for bn in (split, plain):
        nn.init.constant_(bn.running_mean, 0.3)
    x = torch.randn(3, 5, 2, 2)
    torch.testing.assert_close(split.eval()(x), plain.eval()(x))


def test_a_batch_that_the_groups_do_not_divide_gets_a_sentence() -> None:
    with pytest.raises(ValueError, match="a batch of 10, 8 groups"):
        SplitBatchNorm(5, splits=8)(torch.randn(10, 5))


def test_channels_last_memory_survives_split_batch_norm() -> None:
    x = torch.randn(8, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    assert SplitBatchNorm(4, splits=2)(x).is_contiguous(memory_format=torch.channels_last)


def test_shuffle_then_unshuffle_is_the_identity() -> None:
    x = torch.randn(10, 4)
    assert shuffled_keys(nn.Identity(), x, torch.randperm(10)).equal(x)


def test_shuffling_moves_keys_between_groups() -> None:
    x, bn = torch.randn(8, 3), SplitBatchNorm(3, splits=2)
    swap = torch.tensor([4, 1, 2, 3, 0, 5, 6, 7])
    assert not torch.allclose(shuffled_keys(bn, x, swap), bn(x))


def test_a_head_has_batch_norm_only_if_asked() -> None:
    assert not any(isinstance(m, SplitBatchNorm) for m in mlp(4, 8, 2))
    assert any(isinstance(m, SplitBatchNorm) for m in mlp(4, 8, 2, bn_splits=1))


# -- micro-batches


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


def test_a_copy_without_gradient_goes_in_parts_to_the_same_keys_and_statistics() -> None:
    x = torch.randn(16, 3, 16, 16, dtype=torch.float64)
    seen = []
    for parts in (1, 2):
        copied = MomentumCopy(small_net(parts).double())
        seen.append({"keys": copied(x), **dict(copied.named_buffers())})
        assert not seen[-1]["keys"].requires_grad
    same(*seen)


def test_in_evaluation_there_are_no_parts() -> None:
    x = torch.randn(3, 3, 16, 16)  # not a multiple of them
    assert small_net(4).eval()(x).equal(small_net(1).eval()(x))


class Memory(TorchDispatchMode):
    """The most bytes of the tensors met under it that were in memory at once."""

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


def test_parts_need_the_memory_of_one() -> None:
    def peak(micro_batches: int) -> int:
        net, x = small_net(micro_batches), torch.randn(32, 3, 32, 32)
        with Memory() as memory:
            net(x).square().sum().backward()
        return memory.peak

    whole = peak(1)
    assert 0.4 < peak(2) / whole < 0.7
    assert 0.2 < peak(4) / whole < 0.45


def test_parts_that_would_cut_a_group_get_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"bn_splits=8, runtime\.micro_batches=3; try 2 or 4, or"):
        small_net(3, bn_splits=8)


@pytest.mark.slow
def test_parts_are_the_same_when_compiled() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), SplitBatchNorm(4, splits=2), nn.ReLU())
    x, seen = torch.randn(8, 3, 8, 8), []
    for run in (in_parts, torch.compile(in_parts)):
        own = copy.deepcopy(net)
        out = run(own, x, 2)
        out.square().sum().backward()
        gradients = {name: p.grad for name, p in own.named_parameters() if p.grad is not None}
        seen.append({"out": out, **gradients, **dict(own.named_buffers())})
    for name in seen[0]:
        torch.testing.assert_close(seen[0][name], seen[1][name], rtol=1e-4, atol=1e-4, msg=name)
