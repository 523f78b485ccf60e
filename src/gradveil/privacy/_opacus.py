"""Accounting of Gaussian releases of Poisson samples, by the accountants of Opacus."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradveil._imports import require

NEEDED = ("privacy accounting", "gradveil[privacy]", "scipy", "opacus")

FINE, COARSE = 1e-3, 1e-2
"""The error of ε that is aimed at, and that which is put up with where it saves time."""

FEW_POINTS, MANY_POINTS, WIDEST = 1 << 18, 1 << 22, 500.0
"""Of a discretised loss: where time is saved, at most, and its largest range."""


@dataclass(frozen=True)
class LossCurve:
    """The privacy loss L = ln(P/Q) of T sampled releases, discretised, and its errors.

    P is the output with the example in the data, Q that without it, or with an empty one in its
    place: q is the same in both. The true loss is within
    `epsilon_error` of this one, except with probability `delta_error` (Gopi, Lee and Wutschitz,
    "Numerical Composition of Differential Privacy", 2021, Theorem 5.5).
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
    require(*NEEDED)
    from opacus.accountants.analysis.rdp import get_privacy_spent

    orders, one = _renyi_of_one_step(sample_rate, noise_multiplier)
    with _quiet():
        found, _ = get_privacy_spent(orders=list(orders), rdp=list(steps * one), delta=delta)
    return max(0.0, float(found))


def loss_curve(
    sample_rate: float, noise_multiplier: float, steps: int, delta_error: float
) -> LossCurve | None:
    """The privacy loss by numerical composition; `None` where its numerics have no room."""
    require(*NEEDED)
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
    if not size < WIDEST:
        return None
    with _quiet():
        share = math.sqrt(most_steps * math.log(12 / delta_error) / 2)  # error over mesh
        points = 2 * size * share  # that an error of 1 would take
        error = max(FINE, min(COARSE, points / FEW_POINTS), points / MANY_POINTS)
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
