"""How much of an input its features show, against the rank of the dense derivative."""

import pytest
import torch
from torch import nn

from gradveil.attacks._model_layers import determined_share


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def layers(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(*modules).double()


@pytest.fixture(autouse=True)
def weights():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield


CASES = {
    "wide": lambda: layers(nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.Flatten()),
    "coarse": lambda: layers(nn.AvgPool2d(2), nn.Conv2d(1, 9, 3, padding=1), nn.Flatten()),
    "one channel is dead": lambda: layers(nn.Conv2d(1, 8, 2, stride=2), nn.ReLU(), nn.Flatten()),
    "the inputs themselves": nn.Flatten,
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_rank_of_the_derivative_over_the_entries(case):
    features, inputs = CASES[case](), torch.randn(40, 1, 6, 6, generator=seeded()).double()
    jacobians = [torch.autograd.functional.jacobian(features, x[None]) for x in inputs]
    ranks = [int(torch.linalg.matrix_rank(j.reshape(-1, 36), rtol=1e-3)) for j in jacobians]
    share = determined_share(features, inputs, seeded())
    assert share == pytest.approx(sum(ranks) / len(ranks) / 36, abs=0.03)


def test_fewer_features_than_entries_are_counted_without_a_derivative():
    features = layers(nn.Flatten(), nn.Linear(36, 9))
    assert determined_share(features, torch.zeros(1, 1, 6, 6).double(), seeded()) == 9 / 36


def test_features_that_do_not_depend_on_the_input_show_nothing():
    blank = torch.zeros(2, 8, dtype=torch.float64)
    assert determined_share(lambda _: blank, torch.ones(2, 4).double(), seeded()) == 0
    constant = determined_share(lambda x: 0 * torch.cat([x, x], 1), torch.ones(2, 4), seeded())
    assert constant == 0
