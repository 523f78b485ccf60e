"""Attackers of clipped messages look at what the client clipped."""

import pytest
import torch
from torch import Tensor

from gradveil import GradientMessage, PrivateNoise
from gradveil.attacks import Adaptive, InvertingGradients, TotalVariation
from gradveil.attacks._matching import plan_channel
from gradveil.attacks._refine import Finish
from gradveil.messages import ClippedMessage, LocalSteps

from .tiny import conv_net, error, generator, observed, smooth_images

CLIP, NOISE = 0.05, 1e-3


def private(batch_size: int | None = None) -> PrivateNoise:
    return PrivateNoise(NOISE / CLIP, CLIP, batch_size=batch_size)


def two_images() -> Tensor:
    """One with a tenth of the contrast: its gradient is clipped less."""
    truth = smooth_images(2, 1, (6, 6))
    truth[0] *= 0.1
    return truth


def test_who_knows_the_defense_looks_at_the_clipped_message() -> None:
    model, truth, labels = conv_net(1, (6, 6)), two_images(), torch.tensor([0, 1])
    known = observed(model, truth, [0, 1], private(), mechanism="known")
    unaware = observed(model, truth, [0, 1], private())
    assert isinstance(known.message(labels), ClippedMessage)
    assert type(unaware.message(labels)) is GradientMessage
    at_truth = known.message(labels)(truth)
    for name, sent in known.sent.items():
        assert float((sent - at_truth[name]).abs().max()) < 5 * NOISE / 2


@pytest.mark.parametrize("batch_size", [None, 8])
def test_the_noise_that_it_expects_is_that_of_the_client(batch_size: int | None) -> None:
    model, truth, labels = conv_net(1, (6, 6)), two_images(), torch.tensor([0, 1])
    observation = observed(model, truth, [0, 1], private(batch_size), mechanism="known")
    channel = plan_channel(observation, labels, truth, generator())
    torch.testing.assert_close(
        channel.std, torch.full_like(channel.std, NOISE / (batch_size or 2)), rtol=1e-5, atol=0
    )


@pytest.mark.slow
def test_it_reads_through_the_clipping() -> None:
    """The unaware attack takes the clipped sum for a gradient, and weighs the examples wrongly."""
    truth = two_images()
    observation = observed(conv_net(1, (6, 6)), truth, [0, 1], private(), mechanism="known")
    unaware = observed(conv_net(1, (6, 6)), truth, [0, 1], private())
    few = Finish(steps=4, products=20, widths=())
    attack = InvertingGradients.strong(steps=50, restarts=1, total_variation_end=None, regress=None)
    adaptive = Adaptive(attack, prior=TotalVariation(0.5), finish=few)
    aware = adaptive(observation, generator()).inputs
    assert error(aware, truth) < 0.1 * error(attack(unaware, generator()).inputs, truth)


def test_updates_are_clipped_as_a_whole() -> None:
    truth, local = smooth_images(2, 1, (6, 6)), LocalSteps(lr=0.1, steps=2)
    defense = PrivateNoise(1e-6, 1e-3, unit="client", grid=False)
    model = conv_net(1, (6, 6))
    observation = observed(model, truth, [0, 1], defense, mechanism="known", local=local)
    values = observation.message(torch.tensor([0, 1]))(truth)
    length = torch.cat([v.reshape(-1) for v in values.values()]).norm()
    assert float(length) == pytest.approx(1e-3, rel=1e-4)
