"""What a private release keeps from any attacker: recognition, Rényi and Fisher bounds."""

import math

from gradveil._checks import check_count, check_not_negative, check_positive

from ._epsilon import check_sample_rate, gaussian_tradeoff, loss_curve


def recognition_bound(
    guess: float, noise_multiplier: float, sample_rate: float, steps: int
) -> float:
    """P[success] ≤ min_ε (e^ε κ + δ(ε)), from the privacy loss of T sampled Gaussian releases.

    κ is the chance of the best blind `guess`; z, q and T are as for `epsilon_after`.
    Success is any event that an attacker without the release has with probability κ at most: to
    name the example among N, or to give one within some error. He may know everything but that
    example, the model and all releases included. The smallest over all real ε is the largest
    probability under P of an event of probability κ under Q, P being the releases with the example
    and Q those without, or with an empty one in its place: q is the same. For q = 1 it is
    Φ(Φ⁻¹(κ) + √T/z); for q < 1 an upper bound that the accountant's error makes larger by 0.1 %
    to 1 %.

    References: Hayes, Mahloujifar and Balle, "Bounding Training Data Reconstruction in DP-SGD",
    2023; Balle, Cherubin and Hayes, "Reconstructing Training Data with Informed Adversaries", 2022.

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
    Guo and others, 2022, Theorem 2. `trace` is that of `gradveil.theory.fisher_trace`.

    >>> fisher_bound(4, 8.0)
    0.5
    """
    check_count(entries, "entries")
    if trace == 0:
        return math.inf
    check_positive(trace, "trace", finite=False)
    return entries / trace
