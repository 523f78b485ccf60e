"""Clipped messages read by estimators and bounds, like any other message."""

import pytest
import torch
from torch.func import jacrev, jvp

from gradveil import measure, reconstruction_bound
from gradveil.mechanisms import Mechanism
from gradveil.messages import ClippedMessage, ClippedUpdate, separates
from gradveil.sensitivity import Exact, PerExample
from gradveil.theory import fisher_trace
from tests.messages.compare import assert_same
from tests.zoo import named

from .oracle import between, norm, own_gradients, shapes


def half_clipped(name: str, batch_size: int | None = None) -> tuple[ClippedMessage, torch.Tensor]:
    case = named(name)
    clip = between([norm(g) for g in own_gradients(case)])
    factors = shapes(case.message().parameters)["rows and columns"].factors
    return ClippedMessage(case.message(), 3 * clip, factors, batch_size), case.inputs()


@pytest.mark.parametrize("name", ["mlp", "conv_net", "attention", "group_norm"])
@pytest.mark.parametrize("batch_size", [None, 5])
def test_derivatives_are_those_of_what_is_sent(name: str, batch_size: int | None):
    """Along random directions, by differences of the fast form."""
    message, inputs = half_clipped(name, batch_size)
    generator = torch.Generator().manual_seed(0)
    step = 1e-6 * torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype)
    ends = [message.values(inputs + side * step) for side in (0.5, -0.5)]
    moved = {n: ends[0][n] - value for n, value in ends[1].items()}
    assert_same(jvp(message, (inputs,), (step,))[1], moved, tolerance=1e-5, noise=1e-8)


def test_examples_move_only_what_they_add():
    """∂ĝ/∂x_b is that of the clipped gradient of example b alone."""
    message, inputs = half_clipped("mlp", 4)
    jacobian = jacrev(message)(inputs)
    for b in range(len(inputs)):
        alone = ClippedMessage(
            message.message.of(message.targets[b : b + 1]), message.clip, message.factors, 4
        )
        own = jacrev(alone)(inputs[b : b + 1])
        assert_same({n: j[..., b, :] for n, j in jacobian.items()},
                    {n: j[..., 0, :] for n, j in own.items()})  # fmt: skip


def test_examples_add_up_for_the_estimator_that_needs_it():
    message, inputs = half_clipped("mlp")
    assert separates(message, inputs)
    exact = measure(message, inputs, Exact()).known_squared_sensitivities
    many = measure(
        message, inputs, PerExample(20_000), generator=torch.Generator().manual_seed(0)
    ).known_squared_sensitivities
    for name, square in exact.items():
        torch.testing.assert_close(many[name], square, rtol=0.1, atol=1e-3 * float(square.max()))


def test_the_trace_of_the_information_is_read_off_its_jacobian():
    message, inputs = half_clipped("mlp", 4)
    trace = fisher_trace(measure(message, inputs, Exact()), Mechanism(0.1))
    jacobian = jacrev(message)(inputs)
    expected = sum(float(part.square().sum()) for part in jacobian.values()) / 0.01
    assert trace == pytest.approx(expected, rel=1e-8)
    bound = reconstruction_bound(message, inputs, Mechanism(0.1), method="trace")
    assert bound.total == pytest.approx(inputs.numel() ** 2 / expected, rel=0.5)


def test_an_update_clipped_as_a_whole():
    case = named("mlp")
    update = case.local_update()
    plain = update(case.inputs())
    shape = shapes(plain)["rows and columns"]
    length = norm(plain, shape.levels(plain))
    for clip, factor in ((0.25 * length, 0.25), (4 * length, 1.0)):
        clipped = ClippedUpdate(update, clip, shape.factors)
        expected = {n: factor * v for n, v in plain.items()}
        assert_same(clipped.values(case.inputs()), expected)
        assert_same(clipped(case.inputs()), expected)
        assert clipped.targets is update.targets
        assert_same(clipped.parameters, update.parameters)
    assert not hasattr(clipped, "separates")
