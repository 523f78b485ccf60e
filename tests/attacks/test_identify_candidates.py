"""The likelihoods of all candidates against one message computed for each."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradveil import GradientMessage, GradientNoise
from gradveil.attacks import Identify, Observation
from gradveil.messages import LocalSteps, LossFunction, trainable_parameters
from gradveil.sensitivity import Moments
from gradveil.shapes import Shape
from tests.attacks.tiny import conv_net, smooth_images

MODELS = {
    "layers that take examples one by one": lambda: conv_net(1, (4, 4)),
    "batch normalisation in training mode": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(16, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4)
    ),
}
LOSSES: dict[str, LossFunction] = {
    "mean": F.cross_entropy,
    "sum": partial(F.cross_entropy, reduction="sum"),
    "weights by class": partial(F.cross_entropy, weight=torch.arange(1, 5).double()),
    "not a sum over examples": lambda o, y: F.cross_entropy(o, y) ** 2,
}


SCALE = 0.1


def candidates(
    model: nn.Module, loss: LossFunction, rest: int, local: LocalSteps | None = None
) -> tuple[Identify, Observation]:
    images, labels = smooth_images(6 + rest, 1, (4, 4)).double(), torch.arange(6 + rest) % 4
    model = model.double()
    sent = {n: torch.randn_like(p) * SCALE for n, p in trainable_parameters(model).items()}
    shape, moments = Shape.isotropic(sent), Moments.of_values(sent, 16)
    mechanism = GradientNoise(SCALE).mechanism(shape, moments)
    observation = Observation(
        model, loss, sent, 1 + rest, (1, 4, 4), 4, local=local, mechanism=mechanism
    )
    known = (images[6:], labels[6:]) if rest else None
    return Identify((images[:6], labels[:6]), known), observation


def by_hand(made: Identify, observation: Observation) -> torch.Tensor:
    """-‖y - g_k‖² / 2σ²."""
    found = []
    for index in range(6):
        inputs, labels = made.batch(index)
        assert torch.equal(inputs[0], made.candidates[0][index])
        assert labels[0] == made.candidates[1][index]
        local = observation.local
        message = (
            GradientMessage(observation.model, observation.loss_fn, labels)
            if local is None
            else local.message(observation.model, observation.loss_fn, labels)
        )
        away = [(observation.sent[n] - g).square().sum() for n, g in message(inputs).items()]
        found.append(-sum(away) / (2 * SCALE**2))
    return torch.stack(found)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rest", [0, 3])
def test_each_message_is_that_of_its_batch(model: str, loss: str, rest: int) -> None:
    if "normalisation" in model and not rest:
        pytest.skip("a batch of one has no statistics")
    made, observation = candidates(MODELS[model](), LOSSES[loss], rest)
    found, expected = made(observation).log_likelihoods, by_hand(made, observation)
    torch.testing.assert_close(found - found[0], expected - expected[0])


def test_local_steps_are_taken_for_each() -> None:
    steps = LocalSteps(lr=0.1, steps=2, batch_size=2)
    made, observation = candidates(conv_net(1, (4, 4)), F.cross_entropy, 3, steps)
    found, expected = made(observation).log_likelihoods, by_hand(made, observation)
    torch.testing.assert_close(found - found[0], expected - expected[0])


def test_nothing_is_drawn_from_the_global_generator(request: pytest.FixtureRequest) -> None:
    made, observation = candidates(conv_net(1, (4, 4)), F.cross_entropy, 2)
    request.getfixturevalue("global_rng_watch")
    made(observation)
