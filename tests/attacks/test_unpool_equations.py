"""The truth solves the equations, and they show the positions."""

import pytest
import torch
from torch import nn

from .pooled_nets import last_equations, small_net


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("activation", [nn.LeakyReLU, nn.ReLU])
def test_the_truth_solves_them(count, activation):
    equations, inputs = last_equations(small_net(activation), count)
    shares = equations.positions(inputs)
    fitted = equations.delta(shares) @ equations.patches(inputs).T
    torch.testing.assert_close(fitted, equations.gradient, rtol=1e-5, atol=1e-9)
    least = equations.gaps(inputs).min(-1).values
    torch.testing.assert_close(least[equations.seen], torch.zeros_like(least[equations.seen]))


def test_slopes_are_pulled_back_as_autograd_does():
    equations, inputs = last_equations(small_net(), 2)
    shares, inputs = equations.positions(inputs), inputs.requires_grad_()
    u = equations.stage.linear(inputs).transpose(0, 1).flatten(1)
    total = (u * equations.delta(shares) / equations.stage.scale[:, None]).sum()
    (slope,) = torch.autograd.grad(total, inputs)
    torch.testing.assert_close(equations.pulled_back(shares), slope)


@pytest.mark.parametrize("activation", [nn.LeakyReLU, nn.ReLU])
def test_the_expected_misfit_is_the_mean_over_positions(activation):
    """Of one cell that is open, the others' positions being fixed and wrong."""
    equations, inputs = last_equations(small_net(activation))
    noise, shares = torch.tensor(0.01).to(inputs), equations.positions(inputs).roll(1, -1)
    patches, gaps = equations.patches(inputs), 3 * equations.gaps(inputs)

    def misfit(shares):
        residual = equations.gradient - equations.delta(shares) @ patches.T
        of_u = (shares * gaps.square() * equations.seen[:, :, None]).sum()
        return 0.5 * residual.square().sum() / noise**2 + 0.5 * of_u

    each = []
    for position in range(4):
        shares[5, 3] = nn.functional.one_hot(torch.tensor(position), 4)
        each.append(misfit(shares))
        found = equations.expected(patches, gaps, shares, noise)
        torch.testing.assert_close(found, each[-1])
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4]).to(inputs)
    shares[5, 3] = weights
    found = equations.expected(patches, gaps, shares, noise)
    torch.testing.assert_close(found, (weights * torch.stack(each)).sum())


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
            u = equations.stage.linear(inputs).transpose(0, 1).flatten(1)[channel, places]
            u = u + equations.stage.shift[channel]
            gaps = (value - u) / blur
            fit = -0.5 * (rest - weight * patches[places]).square().sum(1) / noise**2
            below = torch.special.log_ndtr(gaps)
            scores = fit - 0.5 * gaps.square() + below.sum() - below
            expected[channel, cell] = torch.softmax(scores, -1)
    torch.testing.assert_close(found, expected)
