"""The last layer's equations hold at the truth, and lead to it in models that are sure."""

import pytest
import torch
from torch import Tensor

from gradveil.attacks import Observation, Watch
from gradveil.attacks._peel import LastLayer, head_of

from .small import observed, seeded, smooth_images
from .test_sure_models import LABELS, sure_net


def seen(bias: bool = True) -> tuple[Tensor, Observation]:
    inputs, model = smooth_images(3, 1, 8, 8)[0], sure_net(bias)
    with torch.no_grad():
        logits = model(inputs).double()
    return logits, observed(model, (inputs, LABELS), labels="known")


def problem_of(observation: Observation) -> LastLayer:
    head = head_of(observation, seeded())
    assert head is not None
    problem = LastLayer.of(head, LABELS)
    assert problem is not None
    return problem


@pytest.mark.parametrize("bias", [True, False])
def test_the_equations_hold_at_the_truth_and_nowhere_near(bias):
    logits, observation = seen(bias)
    problem = problem_of(observation)
    assert float(problem.residuals(logits).square().sum()) < 1e-6
    assert float(problem.residuals(1.05 * logits).square().sum()) > 1e-4


def test_the_logits_are_found_and_give_the_head():
    logits, observation = seen()
    found = problem_of(observation).solve(seeded(), Watch(None))
    assert found is not None
    errors = (found[:, None] - logits).norm(dim=2).min(1).values / logits.norm(dim=1)
    assert float(errors.max()) < 1e-3
    outputs = problem_of(observation).outputs(seeded(), Watch(None))
    assert outputs is not None
    true = observation.model[:4](smooth_images(3, 1, 8, 8)[0]).detach().double()
    errors = (outputs[:, None] - true).norm(dim=2).min(1).values / true.norm(dim=1)
    assert float(errors.max()) < 0.01


def test_without_time_there_is_no_solution():
    observation = seen()[1]
    problem = problem_of(observation)
    assert problem.solve(seeded(), Watch(0.0)) is None


def test_a_batch_as_large_as_the_number_of_classes_is_left_to_the_search():
    inputs = smooth_images(10, 1, 8, 8)[0]
    observation = observed(sure_net(), (inputs, torch.arange(10)), labels="known")
    head = head_of(observation, seeded())
    assert head is None or LastLayer.of(head, torch.arange(10)) is None
