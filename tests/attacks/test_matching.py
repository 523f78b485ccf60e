import pytest
import torch
from torch.func import vmap

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


def test_distances_of_tensors_are_those_of_the_row(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(s, generator=generator, dtype=torch.float64) for s in ((3, 2), (4,), ())]
    row = torch.cat([p.reshape(-1) for p in parts])
    sent = torch.randn(11, generator=generator, dtype=torch.float64)
    plain = 1 - torch.nn.functional.cosine_similarity(row, sent, dim=0)
    for short in (0, 100):
        monkeypatch.setattr("gradveil.attacks._matching.SHORT", short)
        for values in (row, parts):
            torch.testing.assert_close(cosine_distance(values, sent), plain)
        leaves = [p.clone().requires_grad_() for p in parts]
        assert torch.autograd.gradcheck(lambda *p: cosine_distance(p, sent), leaves)
    rows = torch.stack([row, 2 * row + 1])
    many = vmap(lambda one: cosine_distance(one, sent))(rows)
    torch.testing.assert_close(many, torch.stack([cosine_distance(r, sent) for r in rows]))
    zero = cosine_distance(torch.zeros(11, dtype=torch.float64), sent)
    assert float(zero) == 1.0
