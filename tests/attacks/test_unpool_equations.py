"""The truth solves the equations, and they show the positions."""

import pytest
import torch
from torch import nn

from .pooled_nets import last_equations, small_net
from .small import seeded


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("activation", [nn.LeakyReLU, nn.ReLU])
def test_the_truth_solves_them(count, activation):
    equations, inputs = last_equations(small_net(activation), count)
    shares = equations.positions(inputs)
    fitted = equations.delta(shares) @ equations.patches(inputs).T
    torch.testing.assert_close(fitted, equations.gradient, rtol=1e-5, atol=1e-9)
    least = equations.gaps(inputs).min(-1).values
    torch.testing.assert_close(least[equations.seen], torch.zeros_like(least[equations.seen]))


def test_adjoints():
    equations, inputs = last_equations(small_net(), 2)
    draw = torch.randn(inputs.shape, generator=seeded(), dtype=inputs.dtype)
    for forward, back in (
        (equations.patches, equations.patches_transposed),
        (equations.linear, equations.linear_transposed),
    ):
        image = forward(draw)
        other = torch.randn(image.shape, generator=seeded(1), dtype=image.dtype)
        torch.testing.assert_close((image * other).sum(), (draw * back(other)).sum())


def test_positions_are_found_at_the_truth():
    equations, inputs = last_equations(small_net())
    true = equations.positions(inputs)
    tiny = torch.tensor(1e-9, dtype=inputs.dtype)
    shares = equations.estimate(inputs, true, tiny, 1e3 * tiny)
    torch.testing.assert_close(shares, true)


def test_one_sweep_is_the_mean_field_formula():
    equations, inputs = last_equations(small_net())
    noise, blur = torch.tensor(1e-3).to(inputs), torch.tensor(0.05).to(inputs)
    shares = equations.even()
    found = equations.estimate(inputs, shares, noise, blur)  # 9 cells: one after the other
    patches, expected = equations.patches(inputs).T, shares.clone()
    for cell, places in enumerate(equations.cells.tolist()):
        for channel in range(len(shares)):
            others = equations.weights[channel, :, None] * expected[channel]
            others[cell] = 0
            rest = equations.gradient[channel] - torch.einsum(
                "kj,kjf->f", others, patches[equations.cells]
            )
            weight, value = equations.weights[channel, cell], equations.values[channel, cell]
            u = (equations.linear(inputs) + equations.stage.shift[:, None])[channel, places]
            gaps = (value - u) / blur
            fit = -0.5 * (rest - weight * patches[places]).square().sum(1) / noise**2
            below = torch.special.log_ndtr(gaps)
            scores = fit - 0.5 * gaps.square() + below.sum() - below
            expected[channel, cell] = torch.softmax(scores, -1)
    torch.testing.assert_close(found, expected)
