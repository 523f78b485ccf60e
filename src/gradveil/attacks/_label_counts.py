"""Integer counts of classes from a noisy sum."""

import torch
from torch import Tensor

_MODEL_ERROR = 0.25  # of one example's share: how well its mean gradient is known


def fit_counts(
    reading: Tensor, trust: Tensor, variance: float, expected: Tensor, total: int
) -> tuple[Tensor, Tensor]:
    """The likeliest counts n ≥ 0 with Σ_c n_c = `total`, and their cost.

    Minimises Σ_c trust_c (reading - Σ_k n_k D_k)_c² / 2v + Σ_c log n_c!, the likelihood of the
    reading and the multinomial prior of labels drawn evenly: where noise drowns the reading, the
    counts stay even instead of following it. v is the noise's variance and a part for what is not
    known of D. Greedy choice, then exchanges of single examples as long as they help.

    Args:
        reading: Shape (classes,).
        trust: The weight of each entry.
        variance: Of the noise in each entry.
        expected: D, one row for each class.
        total: The batch size.
    """
    precision = 0.5 * trust / (variance + (_MODEL_ERROR * expected.diagonal()).square().mean())
    counts = torch.zeros(len(reading), dtype=torch.int64, device=reading.device)
    residual = reading.clone()
    for _ in range(total):
        costs = _misfit(residual - expected, precision) + torch.log1p(counts)
        best = costs.argmin()
        counts[best] += 1
        residual = residual - expected[best]
    return _exchanged(counts, residual, expected, precision)


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
