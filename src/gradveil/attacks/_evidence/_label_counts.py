"""Integer counts of classes from a noisy sum."""

import math

import torch
from torch import Tensor

_MODEL_ERROR = 0.25  # of one example's share: how well its mean gradient is known
_MISTAKES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02)


def fit_counts(
    reading: Tensor,
    trust: Tensor,
    variance: float,
    expected: Tensor,
    total: int,
    model_error: float = _MODEL_ERROR,
) -> tuple[Tensor, Tensor]:
    """The likeliest counts n ≥ 0 with Σ_c n_c = `total`, and their cost.

    Minimises Σ_c trust_c (reading - Σ_k n_k D_k)_c² / 2v + ½ C log v + Σ_c log n_c!, the likelihood
    of the reading and the multinomial prior of labels drawn evenly: where noise drowns the reading,
    the counts stay even instead of following it. v is the noise's variance and a part for what is
    not known of D. Greedy choice, then exchanges of single examples as long as they help.

    Args:
        reading: Shape (classes,).
        trust: The weight of each entry.
        variance: Of the noise in each entry.
        expected: D, one row for each class.
        total: The batch size.
        model_error: How well D is known, as a share of one example's.
    """
    spread = variance + (model_error * expected.diagonal()).square().mean()
    precision = 0.5 * trust / spread
    counts = torch.zeros(len(reading), dtype=torch.int64, device=reading.device)
    residual = reading.clone()
    for _ in range(total):
        costs = _misfit(residual - expected, precision) + torch.log1p(counts)
        best = costs.argmin()
        counts[best] += 1
        residual = residual - expected[best]
    counts, cost = _exchanged(counts, residual, expected, precision)
    return counts, cost + 0.5 * len(reading) * torch.log(spread.clamp_min(1e-30))


def fit_counts_of_trained(
    reading: Tensor, trust: Tensor, variance: float, expected: Tensor, unit: Tensor, total: int
) -> Tensor:
    """The same where D, evaluated at random inputs, may say nothing of real ones.

    A trained model gives an example of class c about the probabilities (1 - ε) e_c + ε q_c, with
    q_c even over the other classes, so D_c = ε (q_c - e_c) / B. ε is not known, and varies between
    examples with a variance of about ε (1 - ε) / 2: where a model is nearly always right its
    gradient says little of the labels, and the counts stay even. The likeliest of some ε and of D
    as given is taken.

    Args:
        reading: As in `fit_counts`, and so on.
        unit: (q_c - e_c) / B, one row for each class.
    """
    fits = [fit_counts(reading, trust, variance, expected, total)]
    for mistake in _MISTAKES:
        scatter = total / len(reading) * (1 - mistake) / (2 * mistake)
        error = math.sqrt(_MODEL_ERROR**2 + scatter)
        fits.append(fit_counts(reading, trust, variance, mistake * unit, total, error))
    return min(fits, key=lambda fit: float(fit[1]))[0]


def fit_counts_and_scale(
    reading: Tensor, trust: Tensor, variance: float, expected: Tensor, total: int
) -> Tensor:
    """The same where the reading is known only up to a factor, the size of the features."""
    factors = torch.logspace(-0.5, 0.5, 21, dtype=torch.float64).tolist()
    fits = [
        fit_counts(reading / factor, trust, variance / factor**2, expected, total)
        for factor in factors
    ]
    return min(fits, key=lambda fit: float(fit[1]))[0]


def _exchanged(
    counts: Tensor, residual: Tensor, expected: Tensor, precision: Tensor
) -> tuple[Tensor, Tensor]:
    """Swap one example's class for another as long as that lowers the cost."""
    swaps = expected[:, None] - expected[None, :]  # [i, j]: one i fewer, one j more
    while True:
        now = _misfit(residual, precision)
        prior = torch.log1p(counts)[None, :] - torch.log(counts)[:, None]
        change = _misfit(residual + swaps, precision) - now + prior
        change[counts == 0] = torch.inf
        change.fill_diagonal_(torch.inf)
        best = int(change.argmin())
        if not float(change.flatten()[best]) < -1e-6 * float(now):
            return counts, now + torch.lgamma(counts + 1.0).sum()
        out, into = divmod(best, len(counts))
        counts[out] -= 1
        counts[into] += 1
        residual = residual + swaps[out, into]


def _misfit(residuals: Tensor, precision: Tensor) -> Tensor:
    return (precision * residuals.square()).sum(dim=-1)
