"""What a private release keeps from any attacker: recognition, Rényi and Fisher bounds."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from gradveil._checks import (
    WrongValue,
    all_finite,
    check_choice,
    check_count,
    check_not_negative,
    check_positive,
    check_tensor,
)

from ._epsilon import (
    check_delta,
    check_sample_rate,
    gaussian_epsilon,
    gaussian_tradeoff,
    require_scipy,
)
from ._opacus import loss_curve

_ROWS = 512
"""Examples whose distances to all others are computed at once."""


def recognition_bound(
    guess: float, noise_multiplier: float, sample_rate: float, steps: int
) -> float:
    """P[success] ≤ min_ε (e^ε κ + δ(ε)), from the privacy loss of T sampled Gaussian releases.

    Success is any event that an attacker without the release has with probability κ at most: to
    name the example among N, or to give one within some error. He may know everything but that
    example, the model and all releases included. The smallest over all real ε is the largest
    probability under P of an event of probability κ under Q, P being the releases with the example
    and Q those without, or with an empty one in its place: q is the same. For q = 1 it is
    Φ(Φ⁻¹(κ) + √T/z); for q < 1 an upper bound that the accountant's error makes larger by 0.1 %
    to 1 %.

    References: Hayes, Mahloujifar and Balle, "Bounding Training Data Reconstruction in DP-SGD",
    2023; Balle, Cherubin and Hayes, "Reconstructing Training Data with Informed Adversaries", 2022.

    Args:
        guess: κ, the chance of the best blind guess.
        noise_multiplier: z, for per-example clipping to C and noise z C.
        sample_rate: q, of Poisson sampling; 1 if all examples are in every step.
        steps: T.

    >>> round(recognition_bound(0.1, noise_multiplier=4.0, sample_rate=1.0, steps=16), 3)
    0.389
    """
    check_sample_rate(guess, "guess")
    check_not_negative(noise_multiplier, "noise_multiplier")
    check_sample_rate(sample_rate)
    check_count(steps, "steps")
    if noise_multiplier == 0:
        return 1.0
    if sample_rate == 1:
        return gaussian_tradeoff(guess, math.sqrt(steps) / noise_multiplier)
    curve = loss_curve(sample_rate, noise_multiplier, steps, delta_error=1e-4 * guess)
    return 1.0 if curve is None else curve.tradeoff(guess)


def renyi_two(noise_multiplier: float, sample_rate: float, steps: int) -> float:
    """An upper bound on the Rényi divergence of order 2 when one example is replaced.

    One step has e^D - 1 = χ²(P‖Q) with P = (1-q) M₀ + q M₁ and Q = (1-q) M₀ + q M₂, where M₀, M₁
    and M₂ are Gaussians of standard deviation zC whose means differ by the two clipped gradients.
    By joint convexity χ² ≤ q (e^(4/z²) - 1), with equality for q = 1. As Q ≥ (1-q) M₀, too,
    χ² ≤ q²/(1-q) · ∫ (M₁ - M₂)²/M₀ ≤ q²/(1-q) · 4 sinh(1/z²). Steps add up.

    >>> round(renyi_two(noise_multiplier=2.0, sample_rate=1.0, steps=1), 3)
    1.0
    """
    check_not_negative(noise_multiplier, "noise_multiplier")
    check_sample_rate(sample_rate)
    check_count(steps, "steps")
    z, q = noise_multiplier, sample_rate
    if z == 0 or 4 / z**2 > 700:
        return math.inf
    square = q * math.expm1(4 / z**2)
    if q < 1:
        square = min(square, q**2 / (1 - q) * 4 * math.sinh(1 / z**2))
    return steps * math.log1p(square)


def renyi_bound(diameter: float, noise_multiplier: float, sample_rate: float, steps: int) -> float:
    """The mean squared error per entry is at least (diam²/4) / (e^D - 1), D of `renyi_two`.

    For attackers whose estimate is unbiased, whatever the example; an attacker who uses a prior is
    biased, and may have a smaller error. Reference: Guo, Karrer, Chaudhuri and van der Maaten,
    "Bounding Training Data Reconstruction in Private (Deep) Learning", 2022, Theorem 1, with the
    same diameter for all entries.

    Args:
        diameter: The range of an entry of the input: its largest minus its smallest value.
        noise_multiplier: z.
        sample_rate: q.
        steps: T.

    >>> round(renyi_bound(1.0, noise_multiplier=2.0, sample_rate=1.0, steps=1), 4)
    0.1455
    """
    check_positive(diameter, "diameter")
    divergence = renyi_two(noise_multiplier, sample_rate, steps)
    return 0.0 if divergence > 700 else diameter**2 / 4 / math.expm1(divergence)


def fisher_bound(entries: int, trace: float) -> float:
    """The mean squared error per entry is at least d / tr J_F, J_F the release's information on x.

    For attackers whose estimate is unbiased, at this input: the Cramér-Rao bound with the mean of
    the inverse eigenvalues bounded by the inverse of their mean. References: Hannun, Guo and van
    der Maaten, "Measuring Data Leakage in Machine-Learning Models with Fisher Information", 2021;
    Guo and others, 2022, Theorem 2.

    Args:
        entries: Of the private input, d.
        trace: tr J_F (`gradveil.theory.fisher_trace`).

    >>> fisher_bound(4, 8.0)
    0.5
    """
    check_count(entries, "entries")
    if trace == 0:
        return math.inf
    check_positive(trace, "trace", finite=False)
    return entries / trace


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
    bound = partial(_epsilon, delta, confidence, assume)
    chosen = _best_threshold(inside[::2], outside[::2], bound)
    return max(0.0, bound(inside[1::2], outside[1::2], *chosen))


def _checked(scores: Tensor, name: str) -> Tensor:
    check_tensor(scores, name)
    if scores.dim() != 1 or len(scores) < 4 or not all_finite(scores):
        found = f"shape {tuple(scores.shape)}, finite: {all_finite(scores)}"
        expected = "be a finite 1-d tensor of at least 4 scores"
        raise WrongValue(name, expected, found, "Run the pipeline more often.")
    return scores.detach().to("cpu", torch.float64)


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
    from scipy.special import ndtri  # `_lower` required it

    mu = float(ndtri(low) - ndtri(high))
    return gaussian_epsilon(delta, mu) if mu > 0 else -math.inf


def _lower(tested: Tensor, confidence: float) -> float:
    """The lower end for a rate by Clopper and Pearson, half of the error probability."""
    require_scipy()
    from scipy.special import betaincinv

    count, others = int(tested.sum()), int((~tested).sum())
    return 0.0 if count == 0 else float(betaincinv(count, others + 1, (1 - confidence) / 2))
