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


@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize("name", ["mlp", "conv_net"])
def test_entries_are_powers_of_the_root_mean_square(name: str, power: float):
    case, squares = named(name), mean_squares(name)
    shape = rms_shape(case.message(), case.inputs(), power=power, granularity="entry", least=1e-12)
    for n, level in shape.levels(squares).items():
        torch.testing.assert_close(level, squares[n] ** (power / 2), rtol=1e-6, atol=1e-12)


def test_rows_and_columns_have_the_means_of_the_squares():
    case, squares = named("mlp"), mean_squares("mlp")
    shape = rms_shape(case.message(), case.inputs(), power=2.0, least=1e-12)
    levels = shape.levels(squares)
    for n in ("0.weight", "2.weight"):
        torch.testing.assert_close(levels[n].mean(1), squares[n].mean(1))
        torch.testing.assert_close(levels[n].mean(0), squares[n].mean(0))
    torch.testing.assert_close(levels["0.bias"], squares["0.bias"])
    assert shape.numbers == (6 + 5) + 6 + (3 + 6) + 3


def test_one_level_for_each_layer():
    case, squares = named("mlp"), mean_squares("mlp")
    shape = rms_shape(case.message(), case.inputs(), granularity="layer")
    assert shape.numbers == 4
    for n, level in shape.levels(squares).items():
        torch.testing.assert_close(level, squares[n].mean().sqrt().expand(level.shape))


def test_silent_entries_keep_a_level():
    """Units that no public example reaches, and a layer that is never used."""
    case = named("unused")
    for granularity in ("entry", "rows and columns", "layer"):
        shape = rms_shape(case.message(), case.inputs(), granularity=granularity, least=0.1)
        levels = shape.levels(case.message().parameters)
        rows = torch.cat([level.reshape(-1) for level in levels.values()])
        assert float(rows.min()) > 0
        assert float(rows.max() / rows.min()) < 1e4


def test_it_beats_isotropic_noise_in_what_it_minimises():
    """Σ_ii · E Σ_i g_bi² / Σ_ii over the same for Σ = I; 1 is isotropic, less is better."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 6, generator=generator) * torch.tensor([9.0, 3, 1, 1, 0.3, 0.1])
    message = GradientMessage(
        nn.Linear(6, 3), cross_entropy, torch.randint(3, (40,), generator=generator)
    )
    squares = {
        n: torch.cat([g[n] for g in example_gradients(message, inputs)]).square().mean(0)
        for n in message.parameters
    }

    def cost(**options: object) -> float:
        levels = rms_shape(message, inputs, least=1e-6, **options).levels(squares)
        noise = sum(float(level.sum()) for level in levels.values())
        return noise * sum(float((squares[n] / level).sum()) for n, level in levels.items())

    isotropic = 21 * sum(float(s.sum()) for s in squares.values())
    best = cost(granularity="entry")
    assert best < cost() < isotropic
    assert best < cost(granularity="entry", power=2.0)
    assert best < cost(granularity="layer") < isotropic
    optimum = sum(float(s.sqrt().sum()) for s in squares.values()) ** 2
    assert best == pytest.approx(optimum, rel=1e-5)


def test_noise_takes_it():
    case = named("mlp")
    shape = rms_shape(case.message(), case.inputs())
    sent = PrivateNoise(1.0, 1.0, shape, 4)(case.message(), case.inputs())
    assert sent.keys() == case.message().parameters.keys()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"power": 0.0}, "`power` should be a finite number above 0"),
        ({"granularity": "row"}, "`granularity` should be one of"),
        ({"least": 0.0}, "`least` should be a finite number above 0"),
        ({"least": 2.0}, r"`least` should be in \[0, 1\]"),
    ],
)
def test_wrong_options(options: dict[str, object], text: str):
    case = named("mlp")
    with pytest.raises(ValueError, match=text):
        rms_shape(case.message(), case.inputs(), **options)
