import pytest
import torch

from gradveil._tensors import relative_misfit
from gradveil.attacks._matching import Evidence, cosine_distance, euclidean_evidence


def test_distances_by_hand():
    y = torch.tensor([3.0, 4.0])
    assert float(cosine_distance(2 * y, y)) == pytest.approx(0, abs=1e-6)
    assert float(cosine_distance(-y, y)) == pytest.approx(2)
    assert float(cosine_distance(torch.zeros(2), y)) == 1
    assert float(relative_misfit(2 * y, y)) == pytest.approx(1)
    assert float(euclidean_evidence(y).misfit(2 * y)) == pytest.approx(1)


def test_intervals_cost_only_outside():
    evidence = Evidence(
        torch.tensor([-1.0, 2.0, 0.0]),
        torch.tensor([1.0, torch.inf, 0.0]),
        torch.tensor([1.0, 4.0, 0.0]),
    )
    values = torch.tensor([3.0, 1.0, 5.0])
    assert float(evidence.misfit(values)) == pytest.approx(0.5 * (4 + 4))
    assert evidence.residual(torch.tensor([0.5, 7.0, 0.0])).tolist() == [0, 0, 0]
    assert evidence.curvature(torch.tensor([0.5, 1.0, 0.0])).tolist() == [0, 4, 0]
