import torch

from gradveil import GaussianPrior
from gradveil.attacks._matching import Evidence, euclidean_evidence
from gradveil.attacks._priors import energy_of
from gradveil.attacks._refine import Objective, refine

from .tiny import generator


def test_refine_solves_linear_least_squares_with_a_prior():
    matrix = torch.randn(12, 6, generator=generator(), dtype=torch.float64)
    sent = torch.randn(12, generator=generator(1), dtype=torch.float64)
    cov = torch.eye(3, dtype=torch.float64) + 0.3
    prior = GaussianPrior(torch.ones(3, dtype=torch.float64), cov)
    weight = torch.linspace(0.5, 2, 12, dtype=torch.float64)
    objective = Objective(
        lambda x: matrix @ x.flatten(), Evidence(sent, sent, weight), energy_of(prior)
    )
    start = torch.zeros(2, 3, dtype=torch.float64)
    found = refine(objective, start, steps=30, products=50, tolerance=0)
    precision = torch.block_diag(prior.precision, prior.precision)
    expected = torch.linalg.solve(
        matrix.T @ (weight[:, None] * matrix) + precision,
        matrix.T @ (weight * sent) + precision @ torch.ones(6, dtype=torch.float64),
    )
    torch.testing.assert_close(found.inputs.flatten(), expected, atol=1e-6, rtol=0)


def test_refine_stays_in_the_range_and_never_goes_up():
    sent = torch.tensor([2.0, -2.0, 0.2])
    low, high = torch.tensor(-1.0), torch.tensor(1.0)
    objective = Objective(torch.flatten, euclidean_evidence(sent), energy_of(None), low, high)
    found = refine(objective, torch.zeros(1, 3), steps=20, products=10)
    torch.testing.assert_close(found.inputs, torch.tensor([[1.0, -1.0, 0.2]]), atol=1e-3, rtol=0)
