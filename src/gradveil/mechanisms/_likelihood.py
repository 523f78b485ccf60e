"""The log-likelihood of sent entries, in float64."""

import math

import torch
from torch import Tensor

ROUNDING = 16.0
"""How far two computations of one value may be apart, in units of the precision of its type times
the size of the value and of its tensor (root mean square)."""

LOG_ROOT_TAU = 0.5 * math.log(2 * math.pi)


def rounding_error(
    sent: Tensor, least: Tensor | float = 0.0, where: Tensor | None = None
) -> Tensor:
    """τ_i, the size of rounding errors: 16 · precision · (|y_i| + root mean square + least).

    The root mean square is over the entries `where` that counts, or over all.
    """
    precision, wide = torch.finfo(sent.dtype).eps, sent.double()
    chosen = wide if where is None else wide[where.expand(wide.shape)]
    size = chosen.square().mean().sqrt() if chosen.numel() else wide.new_zeros(())
    error: Tensor = ROUNDING * precision * (wide.abs() + size + least)
    return error.clamp(min=torch.finfo(sent.dtype).tiny)


def channel_log_likelihood(
    sent: Tensor, value: Tensor, std: Tensor | float, keep: Tensor | float
) -> Tensor:
    """Σ_i log[k_i p(y_i | v_i) + (1 - k_i) p(y_i | 0)] for y_i = r_i v_i + std_i ε_i.

    p is the normal density where std_i > 0. Where it is 0, y_i is a point: log p is 0 where both
    agree, and -½ (misfit / τ_i)² where they do not, with τ_i the size of a rounding error.
    """
    y, v = sent.double(), value.double()
    level = torch.as_tensor(std, dtype=torch.float64, device=y.device)
    noisy = level > 0
    spread = level
    if not bool(noisy.all()):
        spread = torch.where(noisy, level, rounding_error(sent, where=~noisy))
    constant = torch.where(noisy, -level.clamp(min=1e-300).log() - LOG_ROOT_TAU, 0.0)
    constant = constant.expand(y.shape).sum()
    share = torch.as_tensor(keep, dtype=torch.float64, device=y.device)
    if bool(((share == 0) | (share == 1)).all()):
        return constant - 0.5 * ((y - share * v) / spread).square().sum()
    kept, pruned = -0.5 * ((y - v) / spread).square(), -0.5 * (y / spread).square()
    return constant + torch.logaddexp(kept + share.log(), pruned + (1 - share).log()).sum()
