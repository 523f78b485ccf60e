"""On data of the prior that it assumes, no attack's mean error is below the full bound."""

import pytest
import torch
from torch.nn import functional as F

from gradveil import GaussianPrior, GradientMessage, GradientNoise
from gradveil.attacks import Adaptive, InvertingGradients, Observation
from gradveil.attacks._refine import Finish
from gradveil.theory import FisherInformation

from .tiny import conv_net, generator


@pytest.mark.slow
def test_attacks_stay_above_the_bound():
    draws, shape, std = 32, (1, 4, 4), 0.3
    model = conv_net(1, (4, 4)).double()
    rows = torch.arange(16) // 4
    columns = torch.arange(16) % 4
    distance = (rows[:, None] - rows).abs() + (columns[:, None] - columns).abs()
    prior = GaussianPrior(torch.zeros(16).double(), 0.6 ** distance.double() + 0.05 * torch.eye(16))
    truth = prior.sample(draws, generator()).view(draws, 1, *shape)
    labels, mechanism = torch.tensor([1]), GradientNoise(std)
    information, observations = torch.zeros(16, 16).double(), []
    for number, x in enumerate(truth):
        message = GradientMessage(model, F.cross_entropy, labels)
        values, moments = mechanism.observe(message, x, generator())
        plan = mechanism.plan(moments)
        information += FisherInformation(message, x, plan).matrix() / draws
        observations.append(
            Observation(
                model=model,
                loss_fn=F.cross_entropy,
                sent=plan.apply(values, generator(number)),
                batch_size=1,
                input_shape=shape,
                num_classes=4,
                labels=labels,
                defense=mechanism,
            )
        )
    bound = float(torch.linalg.inv(information + prior.precision).trace()) / 16
    unaware = InvertingGradients(steps=40, total_variation=1e-2)
    few = Finish(steps=3, products=8, widths=())
    aware = Adaptive(InvertingGradients(steps=8), prior, finish=few)
    found = {
        "unaware": [unaware(o, generator(7)).inputs for o in observations],
        "adaptive": [aware(o, generator(8)).inputs for o in observations],
    }
    means = {}
    for name, guesses in found.items():
        errors = torch.stack([(g - x).square().mean() for g, x in zip(guesses, truth, strict=True)])
        means[name] = float(errors.mean())
        assert means[name] > bound - 2 * float(errors.std()) / draws**0.5, name
    assert means["adaptive"] < means["unaware"]
    prior_alone = float(prior.covariance.diagonal().mean())
    assert bound < means["adaptive"] < 1.1 * prior_alone


def test_an_attacker_who_knows_more_than_the_prior_goes_below_its_bound():
    """Pixels of ±1 have the moments of N(0, I), whose bound is 1 / (1/σ² + 1) an entry."""
    draws, size, std = 200, 16, 0.5
    truth = torch.randint(2, (draws, size), generator=generator()).double() * 2 - 1
    sent = truth + std * torch.randn(draws, size, generator=generator(1), dtype=torch.float64)
    bound = 1 / (1 / std**2 + 1)
    gaussian = (sent / (1 + std**2) - truth).square().mean()
    informed = (sent.sign() - truth).square().mean()
    assert abs(float(gaussian) - bound) < 0.02
    assert float(informed) < 0.6 * bound
