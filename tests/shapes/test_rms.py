"""Shapes from the root mean squares of examples' gradients."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, PrivateNoise
from gradveil.messages import example_gradients
from gradveil.shapes import rms_shape
from tests.messages.clipped.oracle import own_gradients
from tests.zoo import named


def mean_squares(name: str) -> dict[str, torch.Tensor]:
    gradients = own_gradients(named(name))
    return {n: torch.stack([g[n] for g in gradients]).square().mean(0) for n in gradients[0]}


@pytest.mark.parametrize("name", ["mlp", "conv_net", "attention", "gru"])
def test_gradients_of_examples_are_those_of_a_loop(name: str):
    case = named(name)
    found = list(example_gradients(case.message(), case.inputs()))
    for parameter in case.message().parameters:
        expected = torch.stack([g[parameter] for g in own_gradients(case)])
        torch.testing.assert_close(torch.cat([part[parameter] for part in found]), expected)


def test_levels_are_roots_of_products_of_the_means_over_rows_and_columns():
    case, squares = named("mlp"), mean_squares("mlp")
    shape = rms_shape(case.message(), case.inputs())
    levels = shape.levels(squares)
    for n in ("0.weight", "2.weight"):
        kept = squares[n].clamp(min=0.05**2 * squares[n].mean())
        torch.testing.assert_close(levels[n].square().mean(1), kept.mean(1))
        torch.testing.assert_close(levels[n].square().mean(0), kept.mean(0))
    kept = squares["0.bias"].clamp(min=0.05**2 * squares["0.bias"].mean())
    torch.testing.assert_close(levels["0.bias"].square(), kept)
    assert shape.numbers == (6 + 5) + 6 + (3 + 6) + 3


def test_silent_entries_keep_a_level():
    """Units that no public example reaches, and a layer that is never used."""
    case = named("unused")
    levels = rms_shape(case.message(), case.inputs()).levels(case.message().parameters)
    rows = torch.cat([level.reshape(-1) for level in levels.values()])
    assert float(rows.min()) > 0
    assert float(rows.max() / rows.min()) < 1e4


def test_it_beats_isotropic_noise_in_what_it_minimises():
    """Σ_ii · E Σ_i g_bi² / Σ_ii over the same for Σ = I; less is better."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 6, generator=generator) * torch.tensor([9.0, 3, 1, 1, 0.3, 0.1])
    message = GradientMessage(
        nn.Linear(6, 3), cross_entropy, torch.randint(3, (40,), generator=generator)
    )
    squares = {
        n: torch.cat([g[n] for g in example_gradients(message, inputs)]).square().mean(0)
        for n in message.parameters
    }
    levels = rms_shape(message, inputs).levels(squares)
    noise = sum(float(level.sum()) for level in levels.values())
    cost = noise * sum(float((squares[n] / level).sum()) for n, level in levels.items())
    isotropic = 21 * sum(float(s.sum()) for s in squares.values())
    optimum = sum(float(s.sqrt().sum()) for s in squares.values()) ** 2
    assert optimum <= cost < 0.5 * (optimum + isotropic)


def test_noise_takes_it():
    case = named("mlp")
    shape = rms_shape(case.message(), case.inputs())
    sent = PrivateNoise(1.0, 1.0, shape, 4)(case.message(), case.inputs())
    assert sent.keys() == case.message().parameters.keys()
