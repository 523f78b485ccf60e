"""Errors after matching: the truth chooses the order, so bounds place by place are none."""

import math
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor

from gradveil import GaussianPrior
from gradveil.denoising import LearnedPrior
from gradveil.mechanisms import Mechanism
from gradveil.scoring import match, score
from gradveil.theory import Bound, BoundCase, Prior, mean_bound, trace_error
from gradveil.theory._bound import matched_error

from .oracles import seeded

SHAPES = [(8, 1, 0.257), (8, 16, 0.901), (32, 4, 0.360)]


def white(entries: int) -> GaussianPrior:
    return GaussianPrior(torch.zeros(entries), torch.eye(entries))


def bound_of(examples: int, prior: Prior, std: float, method: str = "full", **more: Any) -> Bound:
    """Of the inputs themselves with noise, over batches."""
    entries = len(prior.precision)
    draws = torch.randn(8, examples, entries, generator=seeded(), dtype=torch.float64)
    cases = [BoundCase(lambda x: {"w": x}, inputs, Mechanism(std)) for inputs in draws]
    return mean_bound(cases, prior, method, generator=seeded(), **more)


def codebook(batches: Tensor, rounds: int = 15) -> Tensor:
    """A guess without any message: the mean of what is matched to it, again and again."""
    book = batches[0].clone()
    for _ in range(rounds):
        book = torch.stack([x[match(x, book)] for x in batches]).mean(0)
    return book


@pytest.mark.parametrize(("examples", "entries", "reached"), SHAPES)
def test_a_blind_codebook_stays_above_the_bound_for_matched_errors(
    examples: int, entries: int, reached: float
) -> None:
    draws = torch.randn(700, examples, entries, generator=seeded(), dtype=torch.float64)
    book = codebook(draws[:400])
    errors = torch.stack([score(book, x, ssim=False).mse.mean() for x in draws[400:]])
    bound = bound_of(examples, white(entries), std=1e4)
    assert bound.holds
    assert float(errors.mean()) == pytest.approx(reached, rel=0.05)
    assert float(errors.mean()) < 0.95 * bound.per_entry  # which is place by place
    assert 0 < bound.matched < float(errors.mean())
    assert bound.matched == pytest.approx(math.factorial(examples) ** (-2 / (examples * entries)))


def stretched() -> GaussianPrior:
    return GaussianPrior(torch.zeros(3), torch.diag(torch.tensor([9.0, 1.0, 0.01])))


@pytest.mark.parametrize("std", [0.3, 1.0, 1e4])
def test_an_attacker_who_uses_the_order_stays_above_it(std: float) -> None:
    """The posterior's mean with a spread along the widest direction, which matching undoes."""
    prior, examples = stretched(), 8
    scale = prior.covariance.diagonal().double().sqrt()
    draws = torch.randn(700, examples, 3, generator=seeded(1), dtype=torch.float64) * scale
    noise = std * torch.randn(draws.shape, generator=seeded(2), dtype=torch.float64)
    shrunk = scale**2 / (scale**2 + std**2)
    error = (scale**2 * (1 - shrunk)).sqrt()
    spread = codebook(torch.randn(400, examples, 3, generator=seeded(3), dtype=torch.float64))
    best = math.inf
    for share in (0.0, 0.3, 0.6, 1.0):
        found = shrunk * (draws + noise) + share * spread * error * (error >= 0.5 * error.max())
        pairs = zip(found, draws, strict=True)
        best = min(best, fmean(float(score(f, x, ssim=False).mse.mean()) for f, x in pairs))
    for method in ("full", "trace"):
        bound = bound_of(examples, prior, std, method)
        assert 0 < bound.matched < best
        assert bound.matched < bound.per_entry


def test_water_is_filled_from_the_top() -> None:
    """Against the definition: the level is where the logarithms add up to 2 log B!."""
    errors = torch.tensor([9.0, 9.0, 1.0, 1e-6]).double()
    low, high = 0.0, 9.0
    for _ in range(100):
        level = (low + high) / 2
        spent = float((errors / level).log().clamp(min=0).sum())
        low, high = (level, high) if spent > 2 * math.log(6) else (low, level)
    assert matched_error(errors, 3) == pytest.approx(float(errors.clamp(max=high).sum()))
    assert matched_error(errors, 1) == float(errors.sum())


@pytest.mark.parametrize("method", ["full", "trace"])
@pytest.mark.parametrize("solver", ["dense", "iterative"])
def test_a_batch_of_one_has_nothing_to_match(method: str, solver: str) -> None:
    bound = bound_of(1, stretched(), 1.0, method, solver=solver)
    assert bound.matched == pytest.approx(bound.per_entry, rel=1e-12)


def test_every_way_to_compute_it_is_at_most_the_dense_one() -> None:
    prior = stretched()
    dense = bound_of(4, prior, 1.0, solver="dense")
    iterative = bound_of(4, prior, 1.0, solver="iterative", probes=400)
    trace = bound_of(4, prior, 1.0, "trace")
    assert 0 < 0.99 * trace.matched < iterative.matched < 1.01 * dense.matched
    assert 0 < trace.matched <= dense.matched
    told = 12 * 1.0  # tr J_D of noise 1
    assert trace.matched == pytest.approx(trace_error(told, 12, prior, matched=4) / 12)


def test_no_prior_leaves_no_guarantee() -> None:
    """Nothing above what guessing the mean achieves goes without the mark."""
    draws = torch.rand(8, 4, 6, generator=seeded()).double()
    cases = [BoundCase(lambda x: {"w": x}, inputs, Mechanism(5.0)) for inputs in draws]
    for method in ("full", "trace"):
        bound = mean_bound(cases, None, method, generator=seeded())
        assert bound.per_entry > float(draws.var())
        assert not bound.holds
        assert "flat prior" in bound.reason


def test_a_learned_prior_says_nothing_of_matched_errors() -> None:
    """Its bound is by errors that cross; what is told of an order is about densities."""
    prior = LearnedPrior(torch.eye(3).double() * 0.5, level=1.0)
    assert bound_of(4, prior, 2.0).matched == 0
    assert bound_of(4, prior, 2.0).holds
    assert bound_of(1, prior, 2.0).matched > 0
