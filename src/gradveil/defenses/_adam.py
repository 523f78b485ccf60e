"""Noise that is optimal for training with Adam."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gradveil._typing import Tensors

SAMPLE = 2**13
"""About so many entries, evenly spread, stand for all where the multiplier is looked for."""

BISECTIONS, NEWTON_STEPS, WIDEST = 60, 10, 150.0

TooMuch = Callable[[Tensor, Tensor, Tensor, float], bool]
"""Of variances, ratios s/|g| and squares g² of a sample, each of which stands for so many entries:
whether the noise is more than what was asked for."""


def adam_levels(
    ratios: Mapping[str, Tensor], squares: Mapping[str, Tensor], too_much: TooMuch
) -> Tensors:
    """Variances v with the largest Σ g_i²/√(g_i² + v_i) at their trace Σ s_i²/v_i.

    What Adam gains in a step is the first sum: it divides by the root of what it has seen on the
    average, noise included. Its KKT condition g_i²/(g_i² + v_i)^(3/2) ∝ s_i²/v_i² is, with
    v_i = g_i² x_i, one equation for each entry,

        x_i² / (1 + x_i)^(3/2) = μ s_i² / |g_i|³,

    and one multiplier μ for all, which sets the amount. So the shape depends on the amount: it is
    s √|g| where noise is small, and (s/|g|)⁴ where it is large.

    Args:
        ratios: s_i/|g_i|; where it is 0, so is v_i.
        squares: g_i², above 0.
        too_much: Decides whether μ is too large.
    """
    rows = [(_row(ratios[name]), _row(squares[name])) for name in ratios]
    size = sum(len(ratio) for ratio, _ in rows)
    spread = max(1, size // SAMPLE)
    ratio, square = (torch.cat([row[k][::spread] for row in rows]) for k in (0, 1))
    seen = ratio > 0
    if not bool(seen.any()):
        return {name: torch.zeros_like(level) for name, level in ratios.items()}
    ratio, square = ratio[seen], square[seen]
    middle = -float(_log_k(ratio, square).median())
    low, high = middle - WIDEST, middle + WIDEST
    for _ in range(BISECTIONS):
        multiplier = (low + high) / 2
        large = too_much(_levels(ratio, square, multiplier), ratio, square, size / len(seen))
        low, high = (low, multiplier) if large else (multiplier, high)
    return {name: _of_tensor(level, squares[name], low) for name, level in ratios.items()}


def _of_tensor(ratio: Tensor, square: Tensor, multiplier: float) -> Tensor:
    """In the precision of the ratios, as far as that holds the number."""
    levels = _levels(ratio.double(), square.double(), multiplier)
    limits = torch.finfo(ratio.dtype)
    return (levels.clamp(limits.tiny, limits.max) * ratio.sign()).to(ratio.dtype)


def _levels(ratio: Tensor, square: Tensor, multiplier: float) -> Tensor:
    """g² x, with Newton's method for u = log x; from the left it never overshoots."""
    goal = multiplier + _log_k(ratio, square)
    u = torch.where(goal < 0, goal / 2, 2 * goal)
    for _ in range(NEWTON_STEPS):
        error = goal - 2 * u + 1.5 * torch.nn.functional.softplus(u)
        u = u + error / (2 - 1.5 * torch.sigmoid(u))
    return square * u.exp()


def _log_k(ratio: Tensor, square: Tensor) -> Tensor:
    """log(s²/|g|³) = 2 log(s/|g|) - log|g|."""
    return 2 * ratio.clamp(min=1e-300).log() - 0.5 * square.log()


def _row(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).double()
