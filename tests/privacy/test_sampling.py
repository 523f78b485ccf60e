"""Poisson samples: counts are binomial, places independent, none is possible."""

import numpy as np
import pytest
import torch
from scipy import stats

from gradveil.privacy import SecureGenerator, poisson_sample


@pytest.mark.parametrize("make", [SecureGenerator, lambda: torch.Generator().manual_seed(0)])
def test_each_is_in_with_its_probability(make):
    generator = make()
    drawn = np.zeros((4000, 10), dtype=int)
    for row in drawn:
        row[poisson_sample(10, 0.2, generator).numpy()] = 1
    counts = np.bincount(drawn.sum(1), minlength=11)
    expected = 4000 * stats.binom.pmf(np.arange(11), 10, 0.2)
    grouped = [np.append(c[:5], c[5:].sum()) for c in (counts, expected)]
    assert stats.chisquare(*grouped).pvalue > 1e-6
    assert np.abs(drawn.mean(0) - 0.2).max() < 5.5 * np.sqrt(0.16 / 4000)
    assert np.abs(np.corrcoef(drawn.T) - np.eye(10)).max() < 5.5 / np.sqrt(4000)
    assert counts[0] > 0  # an empty batch


def test_the_ends():
    generator = torch.Generator().manual_seed(0)
    assert poisson_sample(0, 0.5, generator).tolist() == []
    assert poisson_sample(5, 1.0, generator).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"Parameter `rate` should be in \(0, 1\]"):
        poisson_sample(5, 0.0, generator)
