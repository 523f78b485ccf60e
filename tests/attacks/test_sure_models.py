"""The head's equations are solved in models that are sure of their examples, too."""

import pytest
import torch
from torch import nn

from gradveil.attacks import Watch
from gradveil.attacks._peel import SOLVED, LocalSearch
from gradveil.attacks._targets import Run

from .small import observed, seeded, smooth_images

LABELS = torch.tensor([4, 4, 7])


def sure_net(bias: bool = True) -> nn.Module:
    """Scores of a size that only training gives."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.LeakyReLU(), nn.Flatten(),
            nn.Linear(6 * 64, 16), nn.LeakyReLU(), nn.Linear(16, 10, bias=bias),
        ).eval()  # fmt: skip
    with torch.no_grad():
        net[3].weight.mul_(8)
        net[5].weight.mul_(5)
        net[5].weight[4] += net[3:5](net[:3](smooth_images(3, 1, 8, 8)[0]))[0] / 20
    return net


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("most", [3000, 0], ids=["free gradients", "the model's gradients"])
def test_the_features_are_found(monkeypatch, bias, most):
    monkeypatch.setattr("gradveil.attacks._peel.MOST", most or 10)
    inputs, model = smooth_images(3, 1, 8, 8)[0], sure_net(bias)
    observation = observed(model, (inputs, LABELS), labels="known")
    search = LocalSearch.of(Run(observation, LABELS, seeded(), Watch(None)))
    assert search is not None
    assert search.local.is_free == bool(most)
    places, cost = search.solve(None)
    assert cost < SOLVED
    with torch.no_grad():
        true = model[:3](inputs).double()
    errors = torch.cdist(true, places @ search.local.basis).min(1).values / true.norm(dim=1)
    assert float(errors.max()) < 1e-3


def test_without_time_there_is_no_solution():
    batch = smooth_images(3, 1, 8, 8)[0], LABELS
    search = LocalSearch.of(Run(observed(sure_net(), batch), LABELS, seeded(), Watch(0.0)))
    assert search is not None
    assert not search.solve(None)[1] < SOLVED
