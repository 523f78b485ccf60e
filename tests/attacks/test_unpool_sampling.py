"""Positions are sampled from their exact likelihood, and found where others stop."""

import torch
from torch.distributions import MultivariateNormal

from gradveil.attacks import Watch
from gradveil.attacks._model_layers import random_examples, through
from gradveil.attacks._unpool import (
    EXACT,
    Equations,
    Fit,
    Inputs,
    Kronecker,
    Sampler,
    search_inputs,
    solve_inputs,
)

from .pooled_nets import last_equations, seen, small_net
from .small import seeded


def problem(count: int) -> tuple[Equations, torch.Tensor, Kronecker]:
    """Of the last stage: the equations, the true inputs and what inputs are like."""
    model = small_net()
    equations, inputs = last_equations(model, count)
    _, observation, stages = seen(model, count)
    samples = random_examples(observation, 64, seeded())
    return equations, inputs, Kronecker.fit(through(stages[:-1], samples).double())


def test_rows_times_inputs_are_the_gradient():
    equations, inputs = problem(2)[:2]
    rows = equations.rows(equations.positions(inputs).argmax(-1))
    maps = inputs.flatten(2).transpose(1, 2).flatten(0, 1)
    fitted = (rows @ maps).transpose(1, 2).flatten(1)
    torch.testing.assert_close(fitted, equations.gradient, rtol=1e-5, atol=1e-9)


def test_scores_are_the_dense_likelihood():
    """Of all channels' rows at once, one channel's position changing, the inputs integrated out."""
    equations, inputs, prior = problem(1)
    sampler, channel, cell = Sampler(equations, prior, seeded()), 3, 4
    truth = equations.positions(inputs).argmax(-1)
    errors = sampler.unit**2 * torch.rand(24, generator=seeded(), dtype=torch.float64)
    rows, size = equations.rows(truth), equations.weights[channel, cell]
    others = torch.arange(24) != channel
    weighted = rows[others] / errors[others, None, None]
    precision = sampler.precision + torch.einsum("osp,osq->pq", weighted, rows[others])
    pulled = sampler.pulled + torch.einsum("osp,osc->pc", weighted, sampler.gradient[others])
    rest = Inputs.given(equations.places, precision, pulled)
    fit = Fit.of(rows[channel], sampler.gradient[channel], rest, errors[channel])
    fit = fit.moved(rest, cell, -size, int(truth[channel, cell]))
    scores = fit.moved(rest, cell, size).scores()

    covariance = torch.linalg.inv(sampler.precision)
    mean, expected = covariance @ sampler.pulled, []
    for position in range(4):
        truth[channel, cell] = position
        all_rows = equations.rows(truth).flatten(0, 1)
        total = all_rows @ covariance @ all_rows.T + torch.diag(errors.repeat_interleave(9))
        columns = (sampler.gradient.flatten(0, 1) - all_rows @ mean).T
        zero = torch.zeros(len(total), dtype=total.dtype)
        expected.append(MultivariateNormal(zero, total).log_prob(columns).sum())
    oracle = torch.stack(expected)
    torch.testing.assert_close(scores - scores[0], oracle - oracle[0], rtol=1e-6, atol=1e-6)


def test_moving_there_and_back_changes_nothing():
    equations, inputs, prior = problem(1)
    sampler = Sampler(equations, prior, seeded())
    rest = Inputs.given(equations.places, sampler.precision, sampler.pulled)
    rows = equations.rows(equations.positions(inputs).argmax(-1))[0]
    before = Fit.of(rows, sampler.gradient[0], rest, torch.tensor(1e-6).to(rows))
    size = equations.weights[0, 2]
    after = before.moved(rest, 2, size, 1).moved(rest, 2, -size, 1)
    torch.testing.assert_close(tuple(after), tuple(before))


def test_positions_are_found_where_expectation_maximisation_stops():
    equations, inputs, prior = problem(2)
    shares = search_inputs(equations, prior, 8, Watch(None))
    assert solve_inputs(equations, shares)[1] > 0.01
    found, worst = Sampler(equations, prior, seeded()).solve(shares, 20, Watch(None))
    assert worst < EXACT
    torch.testing.assert_close(found, inputs, rtol=1e-4, atol=1e-6)


def test_without_sweeps_or_time_it_is_least_squares():
    equations, _, prior = problem(2)
    shares = equations.even()
    without = solve_inputs(equations, shares)
    sampler = Sampler(equations, prior, seeded())
    for sweeps, watch in ((0, Watch(None)), (5, Watch(0.0))):
        found, worst = sampler.solve(shares, sweeps, watch)
        assert worst == without[1]
        torch.testing.assert_close(found, without[0])


def test_same_seed_same_positions():
    equations, _, prior = problem(2)
    first, second = (
        list(Sampler(equations, prior, seeded(3)).sweeps(equations.even(), 2, Watch(None)))
        for _ in range(2)
    )
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
