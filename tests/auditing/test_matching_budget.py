"""What is held equal is equal."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradveil import GaussianPrior, GradientMessage, fisher_trace, measure, utility
from gradveil.auditing._defaults import DEFENSES
from gradveil.auditing._matching_budget import make_budget, solve
from gradveil.auditing._requested_defenses import requested_defenses
from gradveil.models import build_model

from .small import images

NOISE = ("noise", "optimal noise", "noise with clamping", "optimal noise with clamping")
PRUNING = ("pruning", "optimal pruning", "noisy pruning", "optimal noisy pruning")


@pytest.fixture(scope="module")
def case():
    inputs, targets = images()
    message = GradientMessage(build_model("mlp", sizes=[36, 30, 3]), cross_entropy, targets[:2])
    moments = measure(message, inputs[:2], "exact")
    return message(inputs[:2]), moments, GaussianPrior.fit(inputs[2:])


def mechanisms(match, case, **options):
    values, moments, prior = case
    budget = make_budget(match, values, moments, prior, **options)
    requested = requested_defenses(DEFENSES)
    solved = {one.name: solve(one, budget, moments) for one in requested}
    return budget, solved, {name: one.plan(moments) for name, one in solved.items()}


def test_equal_utility(case):
    values, moments, _ = case
    budget, _, planned = mechanisms("utility", case)
    found = {name: utility(values, mechanism) for name, mechanism in planned.items()}
    largest = max(float(square.max()) for square in moments.squared_values.values())
    for name in (*NOISE, "noisy pruning", "optimal noisy pruning"):
        assert -found[name].second == pytest.approx(budget.second, rel=1e-4), name
    for name in PRUNING:
        assert abs(found[name].first - budget.first) <= largest, name
    assert budget.first < found["no defense"].first


def test_optimal_twins_reveal_less_at_equal_utility(case):
    moments = case[1]
    _, _, planned = mechanisms("utility", case)
    for name in ("noise", "noise with clamping", "noisy pruning"):
        classical = fisher_trace(moments, planned[name])
        assert fisher_trace(moments, planned[f"optimal {name}"]) < classical, name


def test_equal_scale(case):
    _, solved, _ = mechanisms("scale", case, scale=0.2, ratio=0.6)
    assert {solved[name].scale for name in NOISE} == {0.2}
    assert {solved[name].ratio for name in PRUNING} == {0.6}
    assert solved["optimal noisy pruning"].noise.scale == 0.2


def test_equal_error(case):
    _, moments, prior = case
    budget, _, planned = mechanisms("error", case)
    known = prior.trace(moments.input_size)
    for name in (*NOISE, "noisy pruning", "optimal noisy pruning"):
        bound = moments.input_size / (fisher_trace(moments, planned[name]) + known)
        assert bound == pytest.approx(budget.error, rel=1e-3), name


def test_the_default_scale_is_the_root_mean_square_of_the_message(case):
    values, moments, prior = case
    row = torch.cat([value.flatten() for value in values.values()])
    budget = make_budget("utility", values, moments, prior)
    assert budget.scale == pytest.approx(float(row.square().mean().sqrt()), rel=1e-5)


def test_an_unknown_match_is_an_error(case):
    with pytest.raises(ValueError, match=r"one of \['utility', 'scale', 'error'\]"):
        make_budget("utlity", *case)
