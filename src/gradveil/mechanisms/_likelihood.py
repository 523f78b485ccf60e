"""The log-likelihood of sent entries, in float64."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

ROUNDING = 16.0
"""How far two computations of one value may be apart, in units of the precision of its type times
the size of the value and of its tensor (root mean square)."""

LOG_ROOT_TAU = 0.5 * math.log(2 * math.pi)

COLUMNS = 2**15
"""How many entries of all messages are brought to float64 at a time."""

CANCELLED = 64 * torch.finfo(torch.float64).eps
"""Rounding errors of a table, over the size of the terms that cancel in it."""


def rounding_error(
    sent: Tensor, least: Tensor | float = 0.0, where: Tensor | None = None
) -> Tensor:
    """τ_i, the size of rounding errors: 16 · precision · (|y_i| + root mean square + least).

    The root mean square is over the entries `where` that counts, or over all.
    """
    wide = sent.double()
    chosen = wide if where is None else wide[where.expand(wide.shape)]
    size = chosen.square().mean().sqrt() if chosen.numel() else wide.new_zeros(())
    return rounding_at(sent.dtype, wide, size + least)


def rounding_at(dtype: torch.dtype, sent: Tensor, size: Tensor) -> Tensor:
    """τ_i of entries of this type, given in float64, in a tensor of this size."""
    known = torch.finfo(dtype)
    error: Tensor = ROUNDING * known.eps * (sent.abs() + size)
    return error.clamp(min=known.tiny)


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


class Table(NamedTuple):
    """Log-likelihoods, a row for each message and a column for each of the values."""

    logs: Tensor
    error: Tensor
    """How far rounding may have moved each of them."""


def channel_table(
    sent: Sequence[Tensor],
    values: Sequence[Tensor],
    std: Tensor | float,
    keep: Tensor | float,
) -> Table:
    """`channel_log_likelihood` of all messages under all values, by matrix products.

    With the weights w_i = 1/std_i², and both sides moved by the mean of the values, so that little
    cancels,

        Σ_i w_i (y_i - k_i v_i)² = Σ_i w_i y_i² - 2 Σ_i (w_i y_i) (k_i v_i) + Σ_i w_i (k_i v_i)².

    Entries that are kept with a probability in between are taken one by one.
    """
    y, v = (torch.stack([one.reshape(-1) for one in each]) for each in (sent, values))
    level, share = (
        torch.as_tensor(x, dtype=torch.float64, device=y.device).expand(sent[0].shape).reshape(-1)
        for x in (std, keep)
    )
    bare = level == 0
    sizes = _bare_sizes(y, bare) if bool(bare.any()) else None
    logs = torch.zeros(len(y), len(v), dtype=torch.float64, device=y.device)
    terms = torch.zeros_like(logs)
    for start in range(0, y.shape[1], COLUMNS):
        part = slice(start, start + COLUMNS)
        spread = level[part].expand(1, -1)
        own, other = y[:, part].double(), v[:, part].double()
        if sizes is not None:
            spread = torch.where(bare[part], rounding_at(y.dtype, own, sizes), spread)
        block = own, other, spread, share[part]
        _add_sharp(logs, terms, *block)
        _add_mixed(logs, *block)
    constant = (-level[~bare].log() - LOG_ROOT_TAU).sum()
    return Table(constant + logs, CANCELLED * terms)


def _add_sharp(
    logs: Tensor, terms: Tensor, y: Tensor, v: Tensor, spread: Tensor, share: Tensor
) -> None:
    """Entries that are kept, or pruned: -½ Σ_i w_i (y_i - k_i v_i)², and the size of its terms."""
    sharp = (share == 0) | (share == 1)
    weights = spread.square().reciprocal() * sharp
    v = v * share
    centre = v.mean(0)
    y, v = y - centre, v - centre
    weighted = y * weights
    own, known = (y * weighted).sum(1, keepdim=True), weights @ v.square().T
    logs -= 0.5 * (own - 2 * weighted @ v.T + known)
    terms += own + known


def _add_mixed(logs: Tensor, y: Tensor, v: Tensor, spread: Tensor, share: Tensor) -> None:
    """Entries that are kept with a probability: log[k p(y | v) + (1 - k) p(y | 0)]."""
    mixed = (share > 0) & (share < 1)
    if not bool(mixed.any()):
        return
    y, v, spread, share = (
        y[:, mixed],
        v[:, mixed],
        spread[:, mixed].expand(len(y), -1),
        share[mixed],
    )
    for row, (own, level) in enumerate(zip(y, spread, strict=True)):
        kept, pruned = -0.5 * ((own - v) / level).square(), -0.5 * (own / level).square()
        logs[row] += torch.logaddexp(kept + share.log(), pruned + (1 - share).log()).sum(1)


def _bare_sizes(y: Tensor, bare: Tensor) -> Tensor:
    """The root mean square over the entries without noise, for each message."""
    return y[:, bare].double().square().mean(1, keepdim=True).sqrt()
