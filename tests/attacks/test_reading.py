"""What was sent, read backwards, holds the values it was made from."""

import pytest
import torch

from gradveil._tensors import flatten
from gradveil.attacks._matching import read
from gradveil.mechanisms import LaplaceMechanism, Mechanism, RoundingMechanism

VALUES = {"w": torch.tensor([[3.0, -0.2], [0.7, 0.0]]), "b": torch.tensor(1.3)}
MASK = {"w": torch.tensor([[1.0, 0.0], [0.5, 1.0]]), "b": torch.tensor(1.0)}


def test_what_cannot_be_read_is_named():
    with pytest.raises(TypeError, match="object"):
        read(object(), VALUES)


def test_a_rounded_entry_says_its_cell():
    mechanism = RoundingMechanism({"w": torch.full((2, 2), 0.5), "b": torch.tensor(0.0)})
    channel, values = read(mechanism, mechanism.apply(VALUES)), flatten(VALUES)
    assert bool(((channel.low <= values) & (values <= channel.high)).all())
    assert (channel.high - channel.low).tolist() == [0.5] * 4 + [0.0]
    assert not bool((channel.std != 0).any() | channel.silent.any())


def test_noise_and_clamping_are_told_of_each_entry():
    channel = read(Mechanism(std=0.1, clip=1.0), VALUES)
    assert torch.equal(channel.low, flatten(VALUES))
    assert torch.equal(channel.high, channel.sent)
    assert channel.std.tolist() == [pytest.approx(0.1)] * 5
    assert channel.clip.tolist() == [1.0] * 5
    assert torch.isinf(read(Mechanism(std=0.1), VALUES).clip).all()


SENT = {"w": torch.tensor([[3.0, 0.05], [0.0, 0.0]]), "b": torch.tensor(0.0)}


def test_of_a_known_mask_its_zeros_are_pruned_noisy_or_not():
    channel = read(Mechanism(std=0.1, keep=MASK), SENT)
    assert channel.silent.tolist() == [False, True, True, False, False]
    assert channel.std[:2].tolist() == [pytest.approx(0.1), 0.0]


def test_of_a_mask_that_is_not_known_any_zero_may_be_pruned():
    channel = read(Mechanism(std=0.1, keep=MASK), SENT, realised=False)
    assert channel.silent.tolist() == [False, False, True, True, True]
    assert not bool(read(Mechanism(std=0.1, keep=1.0), SENT, realised=False).silent.any())


@pytest.mark.parametrize("kind", [Mechanism, LaplaceMechanism])
def test_small_levels_of_a_plan_of_ones_own_are_lifted_to_the_root_mean_square(kind):
    sent = {"a": torch.ones(3), "b": torch.tensor(1.0)}
    mechanism = kind({"a": torch.tensor([3.0, 4.0, 0.0]), "b": torch.tensor(0.0)})
    level = (25 / 2) ** 0.5
    assert read(mechanism, sent).std.tolist() == [3.0, 4.0, 0.0, 0.0]
    assert read(mechanism, sent, realised=False).std.tolist() == pytest.approx(
        [level, 4.0, level, level]
    )
    assert not bool(read(kind(0.0), sent, realised=False).std.any())
