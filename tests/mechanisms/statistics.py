"""Statistical checks of what is sent. With fixed seeds a check passes or fails, always."""

from collections.abc import Callable

import numpy as np
import torch
from scipy import stats
from torch import Tensor

Tensors = dict[str, Tensor]

LEVEL = 1e-6
"""The p-value below which a check fails. Hundreds of entries are looked at in each."""


def draws(send: Callable[[torch.Generator], Tensors], count: int, seed: int = 0) -> Tensors:
    """What `send` sends, `count` times over, stacked along a new first axis."""
    generator = torch.Generator().manual_seed(seed)
    sent = [send(generator) for _ in range(count)]
    return {name: torch.stack([one[name] for one in sent]) for name in sent[0]}


def assert_noise_scale(residuals: Tensors, std: Tensors) -> None:
    """Every entry's noise has its own standard deviation, and 2/3 or 3/2 of it would be noticed.

    n residuals of N(0, σ²) have Σ r² / σ² ~ χ²_n. Entries of std 0 must have no noise at all.
    """
    assert residuals.keys() == std.keys()
    for name, residual in residuals.items():
        sigma, count = std[name].double(), len(residual)
        assert bool((residual[:, sigma == 0] == 0).all()), f"noise on a silent entry of {name}"
        noisy = sigma > 0
        squares = (residual.double()[:, noisy] / sigma[noisy]).square().sum(0).numpy()
        p_values = _two_sided(squares, count)
        worst = p_values.argmin() if len(p_values) else 0
        assert (p_values > LEVEL).all(), (
            f"{name}: the noise has {np.sqrt(squares[worst] / count):.3g} times the planned"
            f" standard deviation (p = {p_values[worst]:.2g})"
        )
        for wrong in (2 / 3, 3 / 2):
            assert (_two_sided(squares / wrong**2, count) < LEVEL).all(), (
                f"{name}: {count} draws do not tell {wrong:.2f} of the scale from the scale"
            )


def assert_normal(residuals: Tensors, std: Tensors) -> None:
    """All entries together, each over its standard deviation, pass for N(0, 1)."""
    scores = [(residuals[n] / s)[:, s > 0].flatten() for n, s in std.items()]
    pooled = torch.cat(scores).numpy()
    assert stats.kstest(pooled, "norm").pvalue > 1e-4


def assert_mean(samples: Tensor, expected: Tensor | float) -> None:
    """The mean over the first axis is the expected one, within 5 standard errors of each entry."""
    samples = samples.double()
    error = samples.std(0) / len(samples) ** 0.5
    off = (samples.mean(0) - expected).abs()
    assert bool((off <= 5 * error + 1e-12 * samples.abs().max()).all()), (
        f"found {samples.mean(0)} ± {error} instead of {expected}"
    )


def _two_sided(squares: np.ndarray, count: int) -> np.ndarray:
    low, high = stats.chi2.cdf(squares, count), stats.chi2.sf(squares, count)
    return np.asarray(2 * np.minimum(low, high))
