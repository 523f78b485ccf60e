"""What (ε, δ) of continuous noise says of discrete noise on a grid."""

import math

from gradveil._checks import check_count, check_positive
from gradveil._secure import COARSEST, FINEST, GRID_BITS

from ._epsilon import epsilon_after

NUMBERS = 10**12
"""Sent in a whole run, entries times steps, unless it is said how many."""

SHARE = 1e-5
"""Of δ, which the grid may take."""

LARGEST = 100.0
"""ε above which nothing is protected: where the account on the grid does not reach, it is ∞."""


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

    Args:
        numbers: n.
        tail: Minus the logarithm of the exception's probability.
        bits: The fineness of the grid.

    >>> grid_distance(119_530 * 1000, tail=50) < 1e-8
    True
    """
    check_count(numbers, "numbers")
    check_positive(tail, "tail")
    if not COARSEST <= bits <= FINEST:
        raise ValueError(
            f"Parameter `bits` should be from {COARSEST} to {FINEST}. Found `bits = {bits}`."
        )
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
    *,
    numbers: int = NUMBERS,
    bits: int = GRID_BITS,
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
    is larger because ε is (above 100, which protects nobody), ∞ is returned.

    Args:
        noise_multiplier: As for `epsilon_after`, and so are the next four.
        sample_rate: q.
        steps: T.
        delta: δ.
        neighbours: "add-remove", "zero-out" or "replace-one".
        numbers: That are sent in all steps together, at most: entries of a message times T.
        bits: The fineness of the grid, at least.

    >>> round(epsilon_on_grid(4.0, 1.0, 16, 1e-5), 4), round(epsilon_after(4.0, 1.0, 16, 1e-5), 4)
    (4.3772, 4.3772)
    """
    found = epsilon_after(noise_multiplier, sample_rate, steps, (1 - SHARE) * delta, neighbours)
    if steps == 0 or math.isinf(found):
        return found
    distance = grid_distance(numbers, found + math.log(4 / (SHARE * delta)), bits)
    if distance > SHARE / 2 and found > LARGEST:
        return math.inf
    if distance > SHARE / 2:
        raise ValueError(
            "Parameter `numbers` should leave the grid fine enough. Found that discrete noise is"
            f" e^{distance:.2g} from continuous noise with `numbers = {numbers}, bits = {bits}`."
            " Take more `bits`."
        )
    return found + 2 * distance
