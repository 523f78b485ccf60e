"""What is held equal is equal."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, GradientNoise, GradientPruning, measure, utility
from gradveil.audit import Settings
from gradveil.audit._settings import MATCHED
from gradveil.audit.measure import Laboratory
from gradveil.audit.measure._strengths import Budget, axes_of, matched, parse_defense, solve
from gradveil.models import build_model
from gradveil.theory import fisher_trace

from ..small import image_model, images, make_subject

NOISE = ("noise", "optimal noise", "noise with clamping", "optimal noise with clamping")
PRUNING = ("pruning", "optimal pruning", "noisy pruning", "optimal noisy pruning")


@pytest.fixture(scope="module")
def case():
    inputs, targets = images()
    message = GradientMessage(build_model("mlp", sizes=[36, 30, 3]), cross_entropy, targets[:2])
    moments = measure(message, inputs[:2], "exact")
    return message(inputs[:2]), moments


def mechanisms(match, case, **options):
    values, moments = case
    budget = Budget(match, values, moments, **{"scale": 0.05, **options})
    solved = {}
    for text in ("no-defense", *MATCHED):
        spec, defense = parse_defense(text)
        solved[defense.about.label] = solve(
            defense, spec.missing, budget, lambda one: one.plan(moments)
        )
    return budget, solved, {name: one.plan(moments) for name, one in solved.items()}


def test_equal_utility(case):
    values, moments = case
    budget, _, planned = mechanisms("utility", case)
    found = {name: utility(values, mechanism) for name, mechanism in planned.items()}
    largest = max(float(square.max()) for square in moments.squared_values.values())
    for name in (*NOISE, "noisy pruning", "optimal noisy pruning"):
        assert found[name].second == pytest.approx(found["noise"].second, rel=1e-4), name
    first = budget.kept(GradientPruning(budget.ratio).plan(moments))
    for name in PRUNING:
        assert abs(found[name].first - first) <= largest, name
    assert first < found["no defense"].first


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
    """The trace form depends on the defense by the trace of its information alone."""
    _, moments = case
    budget, _, planned = mechanisms("error", case)
    reference = fisher_trace(moments, GradientNoise(budget.scale).plan(moments))
    for name in (*NOISE, "noisy pruning", "optimal noisy pruning"):
        assert fisher_trace(moments, planned[name]) == pytest.approx(reference, rel=1e-3), name


@pytest.mark.parametrize("match", ["utility", "error"])
def test_what_no_scale_can_meet_is_an_error(case, match):
    values, moments = case
    silent = {name: torch.zeros_like(value) for name, value in values.items()}
    still = replace(moments, squared_values=silent, squared_sensitivities=silent)
    budget = Budget(match, silent, still, scale=0.1)
    spec, noise = parse_defense("gradient-noise")
    with pytest.raises(ValueError, match=rf"Found match='{match}'.*prune less"):
        solve(noise, spec.missing, budget, lambda one: one.plan(still))


def test_the_default_scale_is_the_root_mean_square_of_the_message():
    inputs, targets = images()
    subject = make_subject(image_model(), cross_entropy, (inputs[:2], targets[:2]))
    laboratory = Laboratory(subject, settings=Settings(match="utility"))
    budget, _ = matched(axes_of(["gradient-noise"], subject), laboratory)
    row = torch.cat(
        [value.flatten() for value in subject.message(targets[:2])(inputs[:2]).values()]
    )
    assert budget.scale == pytest.approx(float(row.square().mean().sqrt()), rel=1e-5)
    assert budget.ratio == 0.9


def test_an_unknown_match_is_an_error():
    with pytest.raises(ValueError, match=r"one of \['utility', 'scale', 'error'\]"):
        Settings(match="utlity")
