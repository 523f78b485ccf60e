"""A lower bound on ε from the outputs of a real pipeline, which catches noise that is too small."""

import math

import torch
from torch import Tensor

from gradveil._checks import all_finite, check_choice, check_tensor

from ._checks import check_delta, require_scipy
from ._gaussian import gaussian_epsilon

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

    >>> inside, outside = torch.full((1000,), 1.0), torch.zeros(1000)
    >>> epsilon_lower_bound(inside, outside, delta=1e-5) > 3
    True
    """
    check_delta(delta)
    check_delta(1 - confidence, "1 - confidence")
    check_choice(assume, "assume", ("any", "gaussian"))
    inside, outside = _checked(scores_in, "scores_in"), _checked(scores_out, "scores_out")
    chosen = _best_threshold(inside[::2], outside[::2], delta, confidence, assume)
    found = _epsilon(inside[1::2], outside[1::2], *chosen, delta, confidence, assume)
    return max(0.0, found)


def _checked(scores: Tensor, name: str) -> Tensor:
    check_tensor(scores, name)
    if scores.dim() != 1 or len(scores) < 4 or not all_finite(scores):
        raise ValueError(
            f"Parameter `{name}` should be a finite 1-d tensor of at least 4 scores. Found shape"
            f" {tuple(scores.shape)}, finite: {all_finite(scores)}. Run the pipeline more often."
        )
    return scores.detach().to("cpu", torch.float64)


def _best_threshold(
    inside: Tensor, outside: Tensor, delta: float, confidence: float, assume: str
) -> tuple[float, bool]:
    """The threshold with the largest bound, and whether its complement is the better test."""
    pooled = torch.cat([inside, outside])
    shares = torch.logspace(-6, math.log10(0.5), _THRESHOLDS // 2, dtype=torch.float64)
    places = torch.cat([shares, 1 - shares]).mul(len(pooled)).long().clamp(max=len(pooled) - 1)
    thresholds = pooled.sort().values[places].unique()
    tests = [(t, side) for t in thresholds.tolist() for side in (False, True)]
    bounds = [_epsilon(inside, outside, *test, delta, confidence, assume) for test in tests]
    return tests[max(range(len(tests)), key=bounds.__getitem__)]


def _epsilon(
    inside: Tensor,
    outside: Tensor,
    threshold: float,
    complement: bool,
    delta: float,
    confidence: float,
    assume: str,
) -> float:
    """The bound of one test; minus infinity where it shows nothing."""
    true = (int((inside >= threshold).sum()), len(inside))
    false = (int((outside >= threshold).sum()), len(outside))
    if complement:  # the test says "out": right for runs without, wrong for runs with the canary
        right, wrong = (false[1] - false[0], false[1]), (true[1] - true[0], true[1])
    else:
        right, wrong = true, false
    low, high = _lower(*right, confidence), 1 - _lower(wrong[1] - wrong[0], wrong[1], confidence)
    if assume == "gaussian":
        return _gaussian(low, high, delta)
    return math.log((low - delta) / high) if low > delta else -math.inf


def _gaussian(low: float, high: float, delta: float) -> float:
    from scipy.special import ndtri

    if not low > 0 or not high < 1:
        return -math.inf
    mu = float(ndtri(low) - ndtri(high))
    return gaussian_epsilon(delta, mu) if mu > 0 else -math.inf


def _lower(count: int, of: int, confidence: float) -> float:
    """The lower end for a rate by Clopper and Pearson, half of the error probability."""
    require_scipy()
    from scipy.special import betaincinv

    return 0.0 if count == 0 else float(betaincinv(count, of - count + 1, (1 - confidence) / 2))
