"""A denoiser with its held-out samples: the prior that fits a message."""

import pytest
import torch

from gradveil.denoising import LearnedPriors
from gradveil.mechanisms import Mechanism
from gradveil.theory import BoundCase, largest_information, mean_bound
from tests.theory.oracles import linear, normal, seeded

SAMPLES, LABELS = normal(60, 3).float(), torch.arange(60) % 2


def fitted(seed: int = 0) -> LearnedPriors:
    return LearnedPriors.fit(SAMPLES, LABELS, steps=5, generator=seeded(seed))


def test_a_fifth_is_kept_back_with_its_labels():
    priors, again = fitted(), fitted()
    assert len(priors.samples) == len(priors.labels) == 12
    assert torch.equal(priors.samples, again.samples)
    a, b = (p.at(0.5, generator=seeded(1)) for p in (priors, again))
    assert torch.equal(a.precision, b.precision)
    for sample, label in zip(priors.samples, priors.labels, strict=True):
        place = (sample == SAMPLES).all(1).nonzero()
        assert LABELS[place] == label


def test_the_largest_information_is_the_largest_eigenvalue():
    message, cases = linear(), []
    for std in (0.5, 1.0):
        cases.append(BoundCase(message, normal(2, 3), Mechanism(std=std)))
    mean = message.matrix.T @ message.matrix * (4 + 1) / 2
    expected = float(torch.linalg.eigvalsh(mean).max())
    assert largest_information(cases, seeded()) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("top", [1.1, 1.5])
def test_one_direction_among_many_is_found(top: float):
    factors = torch.ones(600, dtype=torch.float64).index_fill(0, torch.tensor(3), top**0.5)
    case = BoundCase(lambda x: {"w": (factors * x).flatten()}, normal(1, 600), Mechanism(std=1.0))
    assert largest_information([case], seeded()) == pytest.approx(top, rel=1e-3)


def test_the_covering_prior_is_one_for_which_the_bound_holds():
    cases = [BoundCase(linear(), normal(2, 3), Mechanism(std=0.7))] * 8
    prior = fitted().covering(cases, seeded(2))
    assert prior.level == pytest.approx(largest_information(cases, seeded()) ** -0.5, rel=0.02)
    assert mean_bound(cases, prior, generator=seeded(3)).holds


def test_levels_stay_where_the_denoiser_was_trained():
    priors = fitted()
    assert priors.at(1e9, generator=seeded()).level == priors.denoiser.levels[1]
    silent = [BoundCase(lambda x: {"w": 0 * x.sum()[None]}, normal(1, 3), Mechanism(std=1.0))]
    assert priors.covering(silent, seeded()).level == priors.denoiser.levels[1]
    with pytest.raises(ValueError, match="at least 10 examples"):
        LearnedPriors.fit(SAMPLES[:5])
