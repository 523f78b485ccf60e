"""Inputs of a stage: exact from mostly right positions, and found from nothing."""

import pytest
import torch

from gradveil.attacks import Watch
from gradveil.attacks._model_layers import random_examples, through
from gradveil.attacks._unpool import Kronecker, search_inputs, solve_inputs

from .pooled_nets import last_equations, seen, small_net
from .small import seeded


def test_wrong_positions_in_some_channels_do_not_matter():
    equations, inputs = last_equations(small_net())
    shares = equations.positions(inputs)
    shares[:4] = shares[:4].roll(1, -1)
    found, worst = solve_inputs(equations, shares)
    assert worst < 1e-5
    torch.testing.assert_close(found, inputs, rtol=1e-4, atol=1e-6)


def test_a_wrong_solution_shows():
    equations, inputs = last_equations(small_net())
    assert solve_inputs(equations, equations.positions(inputs).roll(1, -1), rounds=1)[1] > 0.01


def test_positions_are_found_from_nothing():
    model = small_net()
    equations, inputs = last_equations(model)
    _, observation, stages = seen(model)
    samples = through(stages[:-1], random_examples(observation, 64, seeded())).double()
    shares = search_inputs(equations, Kronecker.fit(samples), 40, Watch(None))
    found, worst = solve_inputs(equations, shares)
    assert worst < 1e-5
    torch.testing.assert_close(found, inputs, rtol=1e-4, atol=1e-6)


def test_products_with_the_prior():
    maps = torch.randn(50, 3, 2, 2, generator=seeded(), dtype=torch.float64)
    prior = Kronecker.fit(maps)
    dense = torch.kron(prior.channels, prior.places)
    torch.testing.assert_close(prior.multiply(maps[:2]).flatten(1), maps[:2].flatten(1) @ dense)
    torch.testing.assert_close(prior.inverse().multiply(prior.multiply(maps[:2])), maps[:2])
    spread = (maps - maps.mean(0)).square().mean().sqrt()
    assert float(prior.deviation) == pytest.approx(float(spread), rel=0.1)
