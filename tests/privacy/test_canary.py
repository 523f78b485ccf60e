"""The canary test on a Gaussian mechanism: right noise passes, three mistakes are caught."""

import pytest
import torch
from scipy import stats

from gradveil._random import normal_like
from gradveil.privacy import epsilon_after
from tests.privacy.lower_bound import epsilon_lower_bound

ENTRIES, CLIP, DELTA = 20, 0.5, 1e-5
OTHERS = torch.randn(8, ENTRIES, generator=torch.Generator().manual_seed(5))
CANARY = torch.zeros(ENTRIES).index_fill_(0, torch.tensor(3), 40.0)


def clipped(gradients: torch.Tensor, clip: float) -> torch.Tensor:
    return gradients * (clip / gradients.norm(dim=1, keepdim=True)).clamp(max=1)


def release(gradients, noise, *, scale=1.0, clip=True) -> torch.Tensor:
    """What a private client should send, and with `scale` or without `clip` what it should not."""
    total = (clipped(gradients, CLIP) if clip else gradients).sum(0)
    return total + scale * CLIP * noise


def scores(runs: int, *, inside: bool, seed: int | None = None, **mistake) -> torch.Tensor:
    """The canary's direction in what was sent, z = 1; with a seed, the same noise in each run."""
    gradients = torch.cat([OTHERS, CANARY[None]]) if inside else OTHERS
    generator = torch.Generator().manual_seed(int(inside) if seed is None else seed)
    noise = normal_like(torch.empty(1 if seed is not None else runs, ENTRIES), generator)
    return release(gradients, noise.expand(runs, -1), **mistake)[:, 3] / CLIP


def lower(runs: int = 20_000, **mistake) -> float:
    pair = [scores(runs, inside=inside, **mistake) for inside in (True, False)]
    return epsilon_lower_bound(*pair, DELTA, 0.999, assume="gaussian")


def test_right_noise_is_below_the_claim_and_near_it():
    claimed = epsilon_after(1.0, 1.0, 1, DELTA)
    assert 0.8 * claimed < lower() < claimed


@pytest.mark.parametrize("mistake", [{"scale": 2 / 3}, {"clip": False}, {"seed": 7}])
def test_mistakes_are_caught(mistake):
    assert lower(**mistake) > epsilon_after(1.0, 1.0, 1, DELTA)


def gaussian_pair(shift: float, runs: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    inside, outside = (torch.randn(runs, generator=generator) for _ in range(2))
    return inside + shift, outside


def test_without_an_assumption_two_thirds_of_the_scale_are_caught():
    claimed = epsilon_after(1.0, 1.0, 1, 1e-2)
    assert epsilon_lower_bound(*gaussian_pair(1.0, 400_000), 1e-2) < claimed
    assert epsilon_lower_bound(*gaussian_pair(1.5, 400_000), 1e-2) > claimed


@pytest.mark.parametrize("assume", ["any", "gaussian"])
def test_the_bound_is_wrong_as_seldom_as_it_says(assume):
    """90 % confidence: of 200 audits of a mechanism that spends exactly ε, few claim more."""
    exact = epsilon_after(2.0, 1.0, 1, 0.05)
    generator = torch.Generator().manual_seed(0)
    wrong = 0
    for _ in range(200):
        inside, outside = torch.randn(2, 300, generator=generator)
        wrong += epsilon_lower_bound(inside + 0.5, outside, 0.05, 0.9, assume=assume) > exact
    assert stats.binom.sf(wrong - 1, 200, 0.1) > 1e-4


def test_the_other_side_is_looked_at_as_well():
    """Outputs that the canary makes impossible: 'not in' is the sure test."""
    generator = torch.Generator().manual_seed(1)
    inside, outside = torch.rand(2, 4000, generator=generator)
    inside = 0.5 + inside / 2
    assert epsilon_lower_bound(inside, outside, DELTA) > 4
    assert epsilon_lower_bound(-inside, -outside, DELTA) > -1


def test_equal_runs_show_nothing():
    same = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert epsilon_lower_bound(same, same, DELTA) == 0.0
    assert epsilon_lower_bound(torch.zeros(10), torch.zeros(10), DELTA, assume="gaussian") == 0.0
