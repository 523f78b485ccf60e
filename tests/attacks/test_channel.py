import pytest
import torch

from gradveil import GradientPruning, OptimalPruning
from gradveil.attacks._matching import open_channel
from gradveil.mechanisms import AnyMechanism, Mechanism, RoundingMechanism

from .tiny import conv_net, observed


def channel_of(planned, sent, defense=None, sensitivities=None, **changes):
    observation = observed(conv_net(1, (2, 2)), torch.zeros(1, 1, 2, 2), [0])
    object.__setattr__(observation, "defense", defense)
    for name, value in changes.items():
        object.__setattr__(observation, name, value)
    return open_channel(observation, {"w": torch.tensor(sent)}, planned, sensitivities)


def test_noise_is_weighed_by_its_variance():
    known = Mechanism(std={"w": torch.tensor([0.5, 2.0])})
    channel = channel_of(known, [1.0, -1.0], mechanism=known)
    evidence = channel.evidence(1.0, 1e-12, 4)
    torch.testing.assert_close(evidence.weight, torch.tensor([4.0, 0.25]))
    assert torch.equal(evidence.low, evidence.high)


def test_magnitude_pruning_limits_what_was_not_sent():
    keep = {"w": torch.tensor([1.0, 0.0, 1.0])}
    mechanism = Mechanism(std=0.0, keep=keep)
    channel = channel_of(mechanism, [3.0, 0.0, -2.0], GradientPruning(1 / 3))
    assert channel.high.tolist() == [3, 2, -2]
    assert channel.low.tolist() == [3, -2, -2]
    assert channel.evidence(0.0, 1e-2, 4).high.tolist() == [3, 0, -2]
    assert channel.evidence(0.5, 1e-2, 4).high.tolist() == [3, 1, -2]


def test_a_public_mask_says_nothing_of_what_it_hides():
    keep = {"w": torch.tensor([1.0, 0.0, 1.0])}
    mechanism = Mechanism(std=0.0, keep=keep)
    channel = channel_of(mechanism, [3.0, 0.0, -2.0], OptimalPruning(1 / 3))
    assert channel.evidence(1.0, 1e-2, 4).weight[1] == 0
    assert channel.evidence(0.0, 1e-2, 4).weight[1] > 0


def test_optimal_pruning_limits_by_the_sensitivity():
    keep = {"w": torch.tensor([1.0, 0.0, 0.0])}
    channel = channel_of(
        Mechanism(std=0.0, keep=keep),
        [2.0, 0.0, 0.0],
        OptimalPruning(2 / 3, source="private"),
        {"w": torch.tensor([1.0, 1.0, 4.0])},
    )
    torch.testing.assert_close(channel.high, torch.tensor([2.0, 3.0, 6.0]))  # 1.5 s_i / (1/2)


@pytest.mark.parametrize("std", [0.0, 0.5])
def test_what_was_clipped_is_compared_after_clipping(std: float):
    """-log p(y | g) = (clip(g) - y)² / 2 std², with or without noise."""
    sent = torch.tensor([1.0, -1.0, 0.5]) + std * torch.tensor([0.4, 0.4, 0.4])
    channel = channel_of(Mechanism(std=std, clip=1.0), sent.tolist())
    evidence = channel.evidence(1.0, 1e-3, 10)
    values = torch.tensor([3.0, -2.0, 0.7], requires_grad=True)
    residual = torch.stack([1 - sent[0], -1 - sent[1], values[2] - sent[2]])
    torch.testing.assert_close(evidence.residual(values), residual)
    slope = torch.autograd.grad(evidence.misfit(values), values)[0]
    torch.testing.assert_close(slope, evidence.slope(values.detach()))
    assert slope[:2].tolist() == [0, 0]
    assert evidence.curvature(values).tolist()[:2] == [0, 0]


def test_a_known_mask_silences_its_zeros_even_under_noise():
    mask = {"w": torch.tensor([1.0, 0.0, 1.0])}
    planned = Mechanism(std=0.1, keep=mask)
    observation = observed(conv_net(1, (2, 2)), torch.zeros(1, 1, 2, 2), [0])
    object.__setattr__(observation, "mechanism", planned)
    channel = open_channel(observation, {"w": torch.tensor([2.0, 0.05, -1.0])}, planned, None)
    assert channel.silent.tolist() == [False, True, False]


def test_rounding_gives_cells():
    rounded = channel_of(RoundingMechanism({"w": torch.tensor([0.5, 0.5, 0.0])}), [1.0, 0.0, 0.3])
    torch.testing.assert_close(rounded.low, torch.tensor([0.75, -0.25, 0.3]))


def test_a_mechanism_of_ones_own_is_noise_of_its_variance():
    class Heteroscedastic(AnyMechanism):
        def variance(self, values):
            return {name: 1 + value.square() for name, value in values.items()}

        def information(self, values):
            raise NotImplementedError

        def _sent(self, values, generator):
            raise NotImplementedError

    known = Heteroscedastic()
    channel = channel_of(known, [0.0, 2.0], mechanism=known)
    torch.testing.assert_close(channel.std, torch.tensor([1.0, 5.0]).sqrt())
    assert torch.equal(channel.low, channel.high)
    assert not channel.silent.any()


def test_a_mechanism_that_cannot_be_read_is_an_error_that_says_what_it_needs():
    class Opaque:
        def apply(self, values, generator=None):
            return values

    with pytest.raises(TypeError, match=r"have the methods apply, mean.*Found Opaque"):
        channel_of(Opaque(), [1.0])
