"""The head along local steps: its equations hold at the truth, whatever the steps are."""

import copy
from dataclasses import replace

import pytest
import torch

from gradveil import GradientMessage
from gradveil.attacks._descent import Watch
from gradveil.attacks._peel import Expected, LocalSearch, Visits
from gradveil.attacks._targets import Run
from gradveil.messages import LocalSteps

from .local_nets import CASES, conv_net, local_head, true_features
from .small import LOSS, observed, seeded, smooth_images


@pytest.mark.parametrize("local", CASES.values(), ids=CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_the_equations_hold_at_the_truth(local, bias):
    batch, model = smooth_images(4, 1, 8, 8, dtype=torch.float64), conv_net(bias, torch.float64)
    head = local_head(observed(model, batch, local=local), batch[1])
    features = true_features(copy.deepcopy(model), batch, local)
    places = features @ head.basis.T
    torch.testing.assert_close(places @ head.basis, features, rtol=1e-5, atol=1e-6)
    head.measure(places)
    assert float(head.residuals(head.start(places)).square().sum()) < 1e-10
    assert float(head.residuals(head.start(1.1 * places)).square().sum()) > 1e-4


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("size", [None, 2])
def test_an_update_of_tiny_steps_is_the_gradient_times_what_the_rates_add_up_to(steps, size):
    """Mini-batches of half of the batch make two steps of one epoch, each of a mean over two."""
    batch, model, rate = smooth_images(4, 1, 8, 8, dtype=torch.float64), conv_net(), 1e-7
    model = model.double()
    count = steps if size is None else 2 * steps
    local = LocalSteps(rate, count, batch_size=size)
    update = local.message(model, LOSS, batch[1])(batch[0])
    gradient = GradientMessage(model, LOSS, batch[1])(batch[0])
    for name, value in gradient.items():
        torch.testing.assert_close(update[name] / (-rate * count), value, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("local", CASES.values(), ids=CASES)
def test_features_along_the_steps_are_those_of_training(local):
    batch, model = smooth_images(4, 1, 8, 8), conv_net()
    observation = observed(model, batch, local=local)
    training = LocalSearch.of(Run(observation, batch[1], seeded(), Watch(None)))
    assert training is not None
    wanted = true_features(copy.deepcopy(model), batch, local).double()
    torch.testing.assert_close(training.features(batch[0]), wanted, rtol=1e-4, atol=1e-5)


def test_what_is_expected_has_the_mean_and_the_spread_of_what_was_simulated():
    local = CASES["mini-batches, two epochs"]
    batch, model = smooth_images(4, 1, 8, 8), conv_net()
    observation = observed(model, batch, local=local)
    visits = Visits.of(local, 4)
    training = LocalSearch.of(Run(observation, batch[1], seeded(), Watch(None)))
    assert training is not None
    basis = training.local.basis
    drawn = training.simulate(None, 40)
    expected = Expected(drawn, visits, 1e-6)
    assert drawn.shape == (40, 8, len(basis))
    sizes = torch.stack([expected.residuals(each).square().sum() for each in drawn])
    assert float(sizes.mean()) == pytest.approx(1, rel=0.01)
    assert float(expected.residuals(expected.mean).abs().max()) == 0
    near = training.simulate(batch[0], 2, share=0.0)
    torch.testing.assert_close(near[0], training.features(batch[0]) @ basis.T)
    late = replace(training, run=replace(training.run, watch=Watch(0.0)))
    assert len(late.simulate(None, 40)) == 8
