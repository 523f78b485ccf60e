"""Entries whose squared sensitivity is too small for a float must not be sent bare."""

import pytest
import torch
from torch import nn

from gradveil import Defense, GradientMessage, OptimalClampedNoise, OptimalNoise, measure
from gradveil.shapes import ModelSource


def confident() -> tuple[GradientMessage, torch.Tensor]:
    """The other classes have e⁻⁴⁶ and e⁻⁶⁰, so the last row of the gradient is e⁻⁶⁰ x."""
    with torch.random.fork_rng(devices=[]):
        model = nn.Linear(6, 3)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([0.0, -46.0, -60.0]))
    inputs = torch.tensor([[0.3, -1.2, 0.7, 2.0, -0.4, 0.9]])
    return GradientMessage(model, nn.functional.cross_entropy, torch.tensor([0])), inputs


@pytest.mark.parametrize("estimator", ["auto", "exact", "per-example", "sketch", "structured"])
def test_a_lost_square_is_not_taken_for_0(estimator: str):
    message, inputs = confident()
    values, moments = message(inputs), measure(message, inputs, estimator)
    squares = moments.known_squared_sensitivities["weight"]
    assert squares.dtype == torch.float64  # measured once more, where it is not lost
    assert (squares[values["weight"] != 0] > 0).all()
    assert (
        moments.known_squared_sensitivities["bias"] == 0
    ).all()  # with weights of 0 it is constant
    assert moments.hidden == 0


@pytest.mark.parametrize(
    "defense",
    [
        OptimalNoise(0.01, source="private"),
        OptimalClampedNoise(0.01, clip=1.0, source="private"),
        OptimalNoise(0.01, source=ModelSource()),
    ],
    ids=["noise", "clamped-noise", "cached"],
)
def test_what_is_sent_hides_the_inputs(defense: Defense):
    message, inputs = confident()
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):  # the cache's second step measures nothing
        sent = defense(message, inputs, generator)["weight"][2]
        shape = torch.corrcoef(torch.stack([sent, inputs[0]]))[0, 1]
        assert sent.abs().min() > 1e-15
        assert shape.abs() < 0.99


def test_what_is_constant_keeps_no_sensitivity():
    """The gradient of a bias under a loss that is linear in the outputs."""
    with torch.random.fork_rng(devices=[]):
        model = nn.Linear(3, 2)
    message = GradientMessage(model, lambda outputs, _: outputs.sum(), torch.zeros(4))
    moments = measure(message, torch.ones(4, 3), "exact")
    assert (moments.known_squared_sensitivities["bias"] == 0).all()
    assert (moments.known_squared_sensitivities["weight"] > 0).all()
