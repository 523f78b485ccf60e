"""What Gaussian releases keep: (ε, δ), continuous or on a grid, and bounds for any attacker.

Sampled releases are composed by the accountants of Opacus.
"""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradveil._checks import (
    WrongValue,
    check_choice,
    check_count,
    check_not_negative,
    check_number,
    check_positive,
)
from gradveil._imports import require
from gradveil._random import bernoulli
from gradveil._secure import GRID_BITS, check_bits

SCIPY = ("privacy accounting", "gradveil[privacy]", "scipy")

NEIGHBOURS = {
    "add-remove": "one {unit} more or less",
    "zero-out": "one {unit} replaced by an empty one; how many there are is not hidden",
    "replace-one": "one {unit} replaced by another",
}
"""The relations of neighbouring data sets, in words."""


def check_delta(delta: float, name: str = "delta") -> None:
    """Require a number in (0, 1)."""
    check_number(delta, name)
    if not 0 < delta < 1:
        expected = "be in (0, 1), below one over the number of examples"
        raise WrongValue(name, expected, str(delta), "Use for example 1e-5.", assigned=True)


def check_sample_rate(value: float, name: str = "sample_rate") -> None:
    """Require a probability above 0."""
    check_number(value, name)
    if not 0 < value <= 1:
        raise WrongValue(name, "be in (0, 1]", str(value), "For percentages, divide by 100.", True)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ), for one Gaussian release with Δ/σ = μ.

    T releases of noise multiplier z are one with μ = √T / z. Reference: Balle and Wang, "Improving
    the Gaussian Mechanism for Differential Privacy", 2018, Theorem 8.
    """
    require(*SCIPY)
    from scipy.special import log_ndtr  # only accounting needs it

    check_positive(mu, "mu")
    first, second = log_ndtr(mu / 2 - epsilon / mu), log_ndtr(-mu / 2 - epsilon / mu)
    return max(0.0, float(math.exp(first) - math.exp(min(0.0, epsilon + second))))


def gaussian_epsilon(delta: float, mu: float) -> float:
    """The smallest ε ≥ 0 with δ(ε) ≤ δ, see `gaussian_delta`."""
    require(*SCIPY)
    from scipy.optimize import brentq

    check_delta(delta)
    check_positive(mu, "mu")
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    most = mu * (mu / 2 + 40)  # where δ(ε) is below Φ(-40)
    return float(brentq(lambda epsilon: gaussian_delta(epsilon, mu) - delta, 0.0, most, xtol=1e-12))


def gaussian_tradeoff(guess: float, mu: float) -> float:
    """Φ(Φ⁻¹(κ) + μ): the most probable that an event of probability κ becomes.

    Reference: Dong, Roth and Su, "Gaussian Differential Privacy", 2022.
    """
    require(*SCIPY)
    from scipy.special import ndtr, ndtri

    check_sample_rate(guess, "guess")
    return float(ndtr(ndtri(guess) + mu))


def poisson_sample(count: int, rate: float, generator: torch.Generator) -> Tensor:
    """The places of those of `count` examples that are in, each with probability `rate`.

    Independently of each other and of other calls; there may be none, or all. This is the sampling
    that accountants mean. It helps only as long as nobody learns who was in: give a
    `SecureGenerator`, and a denominator that does not depend on the number drawn.

    >>> poisson_sample(4, 1.0, torch.Generator().manual_seed(0))
    tensor([0, 1, 2, 3])
    """
    check_count(count, "count", least=0)
    check_sample_rate(rate, "rate")
    chances = torch.full((count,), float(rate), dtype=torch.float64)
    return bernoulli(chances, generator).nonzero().flatten()


def epsilon_after(
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    neighbours: str = "add-remove",
) -> float:
    """ε(δ) after T releases of N(Σ_b g_b, z² C² I), ‖g_b‖ ≤ C, each g_b in with probability q.

    All of it is an upper bound. For q = 1 it is exact (`gaussian_epsilon` with μ = √T/z). For
    q < 1 and neighbours that differ by one example more or less it is the smaller of two of
    Opacus' accountants: numerical composition of the privacy loss, with its error added, and Rényi
    divergences. Where an example is replaced, g_b moves by 2C: μ = 2√T/z for q = 1; for q < 1 two
    steps of add-remove, (2ε, (1 + e^ε) δ(ε)), which is about twice as large.

    **The neighbours.** "add-remove" (one example more or less) is right where q is a public number.
    A rate that is made from the number of examples, q = B/n, is not: one example less changes the
    chances of all others. With B, z, T = 16, 5, 25 and all gradients of norm C, going from n = 17
    to 16 has ε ≥ 9.78 at δ = 10⁻⁵, where the account at either says 4.38 at most. Then n is public,
    and "zero-out" is right: one record is replaced by an empty one, whose gradient is 0, and n and
    q are as they were. *Proof that ε is that of add-remove at the same q:* let M_q(D) be one step
    on D. Whether the empty record is drawn changes nothing of the sum, and all others are drawn
    independently of it, with the same q. So M_q(D with g_b = 0) = M_q(D without b) in
    distribution: the pair is one that add-remove at a fixed q is about, its sum moves by
    ‖g_b‖ ≤ C where b is drawn, and it is dominated by the same (1 - q) N(0, z²) + q N(1, z²) and
    N(0, z²), in every step, whatever the steps before have said. For q = 1 that is μ = √T/z.

    The arguments are z, q (1 if all examples are in), T, δ, and the neighbours.

    >>> round(epsilon_after(4.0, 1.0, 16, 1e-5), 3)
    4.377
    """
    check_not_negative(noise_multiplier, "noise_multiplier")
    check_sample_rate(sample_rate)
    check_count(steps, "steps", least=0)
    check_delta(delta)
    check_choice(neighbours, "neighbours", tuple(NEIGHBOURS))
    if steps == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    if sample_rate == 1:
        moved = 2 if neighbours == "replace-one" else 1
        return gaussian_epsilon(delta, moved * math.sqrt(steps) / noise_multiplier)
    if neighbours == "replace-one":
        return _replaced(noise_multiplier, sample_rate, steps, delta)
    return _sampled(noise_multiplier, sample_rate, steps, delta)


def solve_noise_multiplier(
    target_epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    neighbours: str = "add-remove",
) -> float:
    """The smallest z with ε(δ) ≤ target after T steps, at most 0.1 % larger than needed.

    >>> z = solve_noise_multiplier(4.0, 1e-5, sample_rate=1.0, steps=16)
    >>> 3.99 < epsilon_after(z, 1.0, 16, 1e-5) <= 4.0
    True
    """
    check_positive(target_epsilon, "target_epsilon")
    check_count(steps, "steps")
    require(*SCIPY)
    from scipy.optimize import brentq

    def above(log_z: float) -> float:
        found = epsilon_after(math.exp(log_z), sample_rate, steps, delta, neighbours)
        return min(found, 1e6) - target_epsilon

    high = 0.0
    while above(high) > 0:
        high += 1.0
        if high > 14:
            expected = f"be within reach of a noise multiplier of {math.exp(14):.0e}"
            advice = "Take fewer steps, a larger target or a larger `delta`."
            raise WrongValue("target_epsilon", expected, str(target_epsilon), advice, True)
    low = high - 1.0
    while above(low) <= 0:
        low, high = low - 1.0, low
        if low < -4:
            return math.exp(high)
    log_z = float(brentq(above, low, high, xtol=2.5e-4))
    while above(log_z) > 0:
        log_z += 2.5e-4
    return math.exp(log_z)


@lru_cache(maxsize=256)
def _sampled(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """The smaller of two upper bounds."""
    renyi = renyi_epsilon(sample_rate, noise_multiplier, steps, delta)
    curve = loss_curve(sample_rate, noise_multiplier, steps, delta / 1000)
    try:
        return renyi if curve is None else min(renyi, curve.epsilon(delta))
    except ArithmeticError:
        return renyi


def _replaced(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """2ε with (1 + e^ε) δ(ε) ≤ δ: removing one example and adding another."""

    def needed(epsilon: float) -> float:
        share = delta / (1 + math.exp(epsilon))
        return renyi_epsilon(sample_rate, noise_multiplier, steps, share)

    low, high = 0.0, 1.0
    while needed(high) > high:
        low, high = high, 2 * high
        if high > 500:
            return math.inf
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if needed(middle) > middle else (low, middle)
    return 2 * high


FINE, COARSE = 1e-3, 1e-2
"""The error of ε that is aimed at, and that which is put up with where it saves time."""


@dataclass(frozen=True)
class LossCurve:
    """The privacy loss L = ln(P/Q) of T sampled releases, discretised, and its errors.

    P is the output with the example in the data, Q that without it, or with an empty one in its
    place: q is the same in both. The true loss is within `epsilon_error` of this one, except with
    probability `delta_error` (Gopi, Lee and Wutschitz, "Numerical Composition of Differential
    Privacy", 2021, Theorem 5.5).
    """

    losses: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    """Under P."""
    epsilon_error: float
    delta_error: float

    def epsilon(self, delta: float) -> float:
        """An upper bound on the smallest ε ≥ 0 with δ(ε) ≤ δ."""
        tail, other = self._tails()
        deltas = tail - np.exp(self.losses) * other  # falls with the loss
        target = delta - self.delta_error
        place = int(np.searchsorted(-deltas, -target))
        if target <= 0 or place == len(deltas):
            raise ArithmeticError("The loss has no such tail.")
        if place == 0:
            return 0.0
        return max(0.0, math.log((tail[place] - target) / other[place]) + self.epsilon_error)

    def tradeoff(self, guess: float) -> float:
        """An upper bound on min_ε (e^ε κ + δ(ε)), over all real ε.

        δ(ε) ≤ δ̃(ε - error) + δ_error makes it the discretised loss's at κ e^error, plus δ_error.
        Between two losses e^ε κ + δ̃(ε) is linear in e^ε, so the smallest is at one of them.
        """
        tail, other = self._tails()
        growth = np.exp(self.losses)
        bounds = growth * (guess * math.exp(self.epsilon_error)) + tail - growth * other
        return min(1.0, float(bounds.min()) + self.delta_error)

    def _tails(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """P(L ≥ each loss), and the same under Q."""
        masses = self.probabilities
        tail, other = (
            each[::-1].cumsum()[::-1] for each in (masses, masses * np.exp(-self.losses))
        )
        return tail, other


def renyi_epsilon(sample_rate: float, noise_multiplier: float, steps: int, delta: float) -> float:
    """ε(δ) by Rényi divergences, for add-remove or zero-out: an upper bound, not tight."""
    require(*SCIPY, "opacus")
    from opacus.accountants.analysis.rdp import get_privacy_spent

    orders, one = _renyi_of_one_step(sample_rate, noise_multiplier)
    with _quiet():
        found, _ = get_privacy_spent(orders=list(orders), rdp=list(steps * one), delta=delta)
    return max(0.0, float(found))


def loss_curve(
    sample_rate: float, noise_multiplier: float, steps: int, delta_error: float
) -> LossCurve | None:
    """The privacy loss by numerical composition; `None` where its numerics have no room."""
    require(*SCIPY, "opacus")
    from opacus.accountants.analysis.prv import compose_heterogeneous

    most = 1 << max(0, steps - 1).bit_length()  # one discretisation for many numbers of steps
    found = _discretised(sample_rate, noise_multiplier, most, delta_error)
    if found is None:
        return None
    one, error = found
    composed = compose_heterogeneous(dprvs=[one], num_self_compositions=[steps])
    masses = np.clip(composed.pmf, 0.0, None)  # the Fourier transform leaves -1e-17
    return LossCurve(composed.domain.ts, masses, error, delta_error)


@lru_cache(maxsize=64)
def _renyi_of_one_step(
    sample_rate: float, noise_multiplier: float
) -> tuple[tuple[float, ...], NDArray[np.float64]]:
    """Orders, and the Rényi divergence of one step at each."""
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis.rdp import compute_rdp

    orders = RDPAccountant.DEFAULT_ALPHAS
    with _quiet():
        rdp = compute_rdp(q=sample_rate, noise_multiplier=noise_multiplier, steps=1, orders=orders)
    return tuple(orders), np.asarray(rdp)


@lru_cache(maxsize=8)
def _discretised(
    sample_rate: float, noise_multiplier: float, most_steps: int, delta_error: float
) -> tuple[Any, float] | None:
    """The loss of one step on a mesh that is fine enough for so many, and the error of ε then."""
    from opacus.accountants.analysis import prv

    loss = prv.PoissonSubsampledGaussianPRV(sample_rate, noise_multiplier)
    size = _range(sample_rate, noise_multiplier, most_steps, delta_error)
    if not size < 500:
        return None
    with _quiet():
        share = math.sqrt(most_steps * math.log(12 / delta_error) / 2)  # error over mesh
        points = 2 * size * share  # that an error of 1 would take
        # 2¹⁸ points where that saves time, and 2²² at the most
        error = max(FINE, min(COARSE, points / 2**18), points / 2**22)
        domain = prv.Domain.create_aligned(-size, size, error / share)
        kept = prv.TruncatedPrivacyRandomVariable(loss, domain.t_min, domain.t_max)
        try:
            return prv.discretize(kept, domain), error
        except RuntimeError:  # the numerical mean is off
            return None


def _range(sample_rate: float, noise_multiplier: float, steps: int, delta_error: float) -> float:
    """The size of losses to look at; the rest has little probability (the paper's Remark 5.6).

    As `compute_safe_domain_size` of Opacus, from divergences that are known already.
    """
    whole = renyi_epsilon(sample_rate, noise_multiplier, steps, delta_error / 4)
    one = renyi_epsilon(sample_rate, noise_multiplier, 1, delta_error / (8 * steps))
    return max(whole, one, FINE) + 3


@contextmanager
def _quiet() -> Iterator[None]:
    """Opacus warns of orders at the end of its list, and of logarithms of 0 that it throws away."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


NUMBERS = 10**12
"""Sent in a whole run, entries times steps, at most."""

SHARE = 1e-5
"""Of δ, which the grid may take."""


def grid_distance(numbers: int, tail: float, bits: int = GRID_BITS) -> float:
    """η so that discrete and rounded continuous noise are within e^η, but for e^(-tail).

    Let D be n integers of the discrete Gaussian with s = 2^bits, R n continuous ones N(0, s²)
    rounded to integers, and x = y/s². A cell of R has the mass φ(y) E[exp(-t x - t²/(2s²))] over t
    uniform on [-½, ½]; D has φ(y)/Z with 1 ≤ Z ≤ 1 + 10⁻⁵⁰⁰ for s ≥ 8 (Poisson summation). With
    x²/24 - x⁴/2880 ≤ ln E e^(-tx) ≤ x²/24, and E t² between 1/12 and 1/12 + x²/360 where t has the
    density e^(-tx), the logarithm of their ratio is, with w = y²/s²,

        (w - 1) / (24 s²)  up to  (w²/2880 + w/720 + 1/128) / s⁴,

    and that is below 900/s⁴ for w ≤ 1600, beyond which both have less than 10⁻³⁰⁰. Under both,
    E e^(±λ(w - 1)) ≤ e^(2(λ+σ)²) with σ = 1/(24 s²), as long as λ + σ ≤ ¼. So by Chernoff's bound
    the sum over n numbers exceeds η = σ (2n (λ+σ)² + tail) / λ + 900 n/s⁴ with probability
    e^(-tail) at most. Hence P_D(E) ≤ e^η P_R(E) + e^(-tail), and the other way around, for every
    event E; and also for whatever is computed from the data, from who was sampled and from these
    numbers: all rounds of a training, for example.
    """
    check_count(numbers, "numbers")
    check_positive(tail, "tail")
    check_bits(bits)
    shift = 1 / (24 * 4.0**bits)
    slope = min(0.25 - shift, math.sqrt(tail / (2 * numbers)))
    chernoff = shift * (2 * numbers * (slope + shift) ** 2 + tail) / slope
    return chernoff + 900 * numbers / 16.0**bits


def epsilon_on_grid(
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    neighbours: str = "add-remove",
) -> float:
    """ε(δ) of releases on a grid, from `epsilon_after` of continuous ones: millionths more.

    What is known of the discrete Gaussian by itself are its Rényi divergences without sampling
    (Canonne, Kamath and Steinke, 2020): not those of a sampled one, and no privacy loss to compose.
    So the account goes through a neighbour. Continuous noise, rounded to the grid afterwards, is a
    function of the Gaussian mechanism of the same sensitivity: it has its ε(δ), sampled and
    composed. Discrete noise is within e^η of it but for e^(-L) (`grid_distance`). Hence, with
    (ε, δ₀) of the continuous noise, the discrete one has

        ε + 2η  at  e^η δ₀ + (1 + e^(ε+η)) e^(-L),

    which is at most δ for δ₀ = (1 - 10⁻⁵) δ and L = ε + ln(4·10⁵/δ), as long as η ≤ 5·10⁻⁶. Where η
    is larger because ε is (above 100, which protects nobody), ∞ is returned. η is that of 10¹²
    numbers in all steps together, on a grid of 20 bits or more.
    """
    found = epsilon_after(noise_multiplier, sample_rate, steps, (1 - SHARE) * delta, neighbours)
    if steps == 0 or math.isinf(found):
        return found
    distance = grid_distance(NUMBERS, found + math.log(4 / (SHARE * delta)))
    if distance > SHARE / 2:
        return math.inf
    return found + 2 * distance


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
    same `diameter` for all entries of the input: its largest minus its smallest value.

    >>> round(renyi_bound(1.0, noise_multiplier=2.0, sample_rate=1.0, steps=1), 4)
    0.1455
    """
    check_positive(diameter, "diameter")
    divergence = renyi_two(noise_multiplier, sample_rate, steps)
    return 0.0 if divergence > 700 else diameter**2 / 4 / math.expm1(divergence)
