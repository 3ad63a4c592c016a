"""Laws of the encoders."""

import pytest
import torch
import torchvision
from torch import nn

from ascl.config import EncoderConfig
from ascl.distributed import shuffled_keys
from ascl.encoders import ResNet, SplitBatchNorm, mlp


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
