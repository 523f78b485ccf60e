import pytest
import torch
from torch.func import grad

from gradveil import GaussianPrior
from gradveil.attacks import TotalVariation
from gradveil.attacks._priors import energy_of, total_variation

from .tiny import generator


def test_total_variation_by_hand():
    image = torch.tensor([[[[0.0, 1.0], [2.0, 3.0]]]])
    assert float(total_variation(image)) == pytest.approx((2 + 2 + 1 + 1) / 4)
    assert float(total_variation(torch.ones(2, 5))) == 0


def test_total_variation_with_a_smooth_corner_by_hand():
    image = torch.tensor([[[[0.0, 3.0], [0.0, 3.0]]]])
    expected = (2 * (9 + 16) ** 0.5 + 2 * 4) / 4  # two differences of 3, two of 0
    assert float(total_variation(image, corner=4.0)) == pytest.approx(expected)
    image.requires_grad_()
    slope = torch.autograd.grad(total_variation(image, corner=1e-3), image)[0]
    assert bool(slope.isfinite().all())


@pytest.mark.parametrize("kind", ["variation", "gaussian", "flat"])
def test_an_energy_s_gradient_is_its_gradient(kind, monkeypatch):
    monkeypatch.setattr("gradveil.attacks._priors.CORNER", 1e-9)
    inputs = torch.randn(2, 1, 4, 5, generator=generator(), dtype=torch.float64)
    cov = torch.eye(20, dtype=torch.float64) * 0.5 + 0.1
    prior = GaussianPrior(torch.full((20,), 0.3, dtype=torch.float64), cov)
    energy = energy_of({"variation": TotalVariation(2.0), "gaussian": prior, "flat": None}[kind])
    torch.testing.assert_close(energy.gradient(inputs), grad(energy)(inputs))
    v = torch.randn(inputs.shape, generator=generator(1), dtype=inputs.dtype)
    assert float((v * energy.curvature(inputs)(v)).sum()) >= 0
