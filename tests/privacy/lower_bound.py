"""A lower bound on ε from many runs of a pipeline: shows that noise or clipping is missing."""

import math
from collections.abc import Callable
from functools import partial

import torch
from scipy.special import betaincinv, ndtri
from torch import Tensor

from gradveil.privacy._releases import gaussian_epsilon

_THRESHOLDS = 100
"""How many are tried on the first half of the scores."""


def epsilon_lower_bound(
    scores_in: Tensor,
    scores_out: Tensor,
    delta: float,
    confidence: float = 0.95,
    *,
    assume: str = "any",
) -> float:
    """ε is at least this, with the given confidence, if the scores come from one of two runs.

    Run the pipeline many times with a canary in the data and many times without, and score each
    output (for example by its inner product with the canary). An (ε, δ)-private pipeline has
    P[in] ≤ e^ε P[out] + δ and P[not in] ≤ e^ε P[not out] + δ for every test; so
    ε ≥ ln((p - δ)/f), p a lower bound on the rate of true alarms and f an upper bound on that of
    false ones (Clopper and Pearson, half of the error probability each), or the same of the
    complements. The threshold and the side are chosen on the first half of the scores and judged on
    the second, so choosing costs no confidence.

    A bound above the ε that is claimed shows an error: noise of 2/3 of the scale, a missing clip, a
    seed that is used again. A bound below it shows nothing.

    With ``assume="gaussian"`` the trade-off is taken to be that of a Gaussian release (true for
    q = 1): μ ≥ Φ⁻¹(p) - Φ⁻¹(f) and ε = ε(δ; μ). It needs a hundred times fewer runs: any threshold
    shows the scale, not the tails alone.

    References: Jagielski, Ullman and Oprea, "Auditing Differentially Private Machine Learning",
    2020; Nasr and others, "Tight Auditing of Differentially Private Machine Learning", 2023.

    Args:
        scores_in: One for each run with the canary, in the order of the runs.
        scores_out: One for each run without.
        delta: δ of the claim.
        confidence: How sure the bound is.
        assume: "any" or "gaussian".
    """
    inside, outside = scores_in.double(), scores_out.double()
    bound = partial(_epsilon, delta, confidence, assume)
    chosen = _best_threshold(inside[::2], outside[::2], bound)
    return max(0.0, bound(inside[1::2], outside[1::2], *chosen))


def _best_threshold(
    inside: Tensor, outside: Tensor, bound: Callable[..., float]
) -> tuple[float, bool]:
    """The threshold with the largest bound, and whether its complement is the better test."""
    pooled = torch.cat([inside, outside])
    shares = torch.logspace(-6, math.log10(0.5), _THRESHOLDS // 2, dtype=torch.float64)
    places = torch.cat([shares, 1 - shares]).mul(len(pooled)).long().clamp(max=len(pooled) - 1)
    thresholds = pooled.sort().values[places].unique()
    tests = [(t, side) for t in thresholds.tolist() for side in (False, True)]
    bounds = [bound(inside, outside, *test) for test in tests]
    return tests[max(range(len(tests)), key=bounds.__getitem__)]


def _epsilon(
    delta: float,
    confidence: float,
    assume: str,
    inside: Tensor,
    outside: Tensor,
    threshold: float,
    complement: bool,
) -> float:
    """The bound of one test; minus infinity where it shows nothing."""
    if complement:  # the test says "out": right for runs without, wrong for runs with the canary
        right, wrong = outside < threshold, inside < threshold
    else:
        right, wrong = inside >= threshold, outside >= threshold
    low, high = _lower(right, confidence), 1 - _lower(~wrong, confidence)
    if assume == "any":
        return math.log((low - delta) / high) if low > delta else -math.inf
    if not low > 0 or not high < 1:
        return -math.inf
    mu = float(ndtri(low) - ndtri(high))
    return gaussian_epsilon(delta, mu) if mu > 0 else -math.inf


def _lower(tested: Tensor, confidence: float) -> float:
    """The lower end for a rate by Clopper and Pearson, half of the error probability."""
    count, others = int(tested.sum()), int((~tested).sum())
    return 0.0 if count == 0 else float(betaincinv(count, others + 1, (1 - confidence) / 2))
