"""Densities of sent entries in float64: noise, points, cells, and levels that are estimates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

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

SURE = 1e-6
"""Errors of a log-likelihood that change no result."""


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


def channel_log_likelihoods(
    sent: Tensor, values: Tensor, std: Tensor | float, keep: Tensor | float
) -> Tensor:
    """Σ_i log[k_i p(y_i | v_i) + (1 - k_i) p(y_i | 0)] for y_i = r_i v_i + std_i ε_i, of each v.

    p is the normal density where std_i > 0. Where it is 0, y_i is a point: log p is 0 where both
    agree, and -½ (misfit / τ_i)² where they do not, with τ_i the size of a rounding error.
    """
    y, v = sent.double(), values.double()
    level = torch.as_tensor(std, dtype=torch.float64, device=y.device)
    noisy = level > 0
    spread = level
    if not bool(noisy.all()):
        spread = torch.where(noisy, level, rounding_error(sent, where=~noisy))
    constant = torch.where(noisy, -level.clamp(min=1e-300).log() - LOG_ROOT_TAU, 0.0)
    constant = constant.expand(y.shape).sum()
    share = torch.as_tensor(keep, dtype=torch.float64, device=y.device)
    if bool(((share == 0) | (share == 1)).all()):
        return constant - 0.5 * ((y - share * v) / spread).square().reshape(len(v), -1).sum(1)
    kept, pruned = -0.5 * ((y - v) / spread).square(), -0.5 * (y / spread).square()
    logs = torch.logaddexp(kept + share.log(), pruned + (1 - share).log())
    return constant + logs.reshape(len(v), -1).sum(1)


def channel_table(
    sent: Sequence[Tensor], values: Sequence[Tensor], std: Tensor | float, keep: Tensor | float
) -> Tensor:
    """`channel_log_likelihoods` of all messages (rows) under all values (columns).

    By matrix products: with the weights w_i = 1/std_i², and both sides moved by the mean of the
    values, so that little cancels,

        Σ_i w_i (y_i - k_i v_i)² = Σ_i w_i y_i² - 2 Σ_i (w_i y_i) (k_i v_i) + Σ_i w_i (k_i v_i)².

    Where entries have no noise or are kept with a probability in between, and where noise is so
    small that rounding of what cancels could be seen, message by message.
    """
    y, v = (torch.stack([one.reshape(-1) for one in each]) for each in (sent, values))
    level, share = (
        torch.as_tensor(x, dtype=torch.float64, device=y.device).expand(sent[0].shape).reshape(-1)
        for x in (std, keep)
    )
    if bool((level > 0).all()) and bool(((share == 0) | (share == 1)).all()):
        logs = torch.zeros(len(y), len(v), dtype=torch.float64, device=y.device)
        terms = torch.zeros_like(logs)
        for start in range(0, y.shape[1], COLUMNS):
            part = slice(start, start + COLUMNS)
            own, other = y[:, part].double(), v[:, part].double() * share[part]
            own, other = own - other.mean(0), other - other.mean(0)
            weighted = own / level[part].square()
            squares = (own * weighted).sum(1, keepdim=True)
            known = (other.square() / level[part].square()).sum(1)
            logs -= 0.5 * (squares - 2 * weighted @ other.T + known)
            terms += squares + known
        if bool((CANCELLED * terms <= SURE).all()):
            return logs - (level.log() + LOG_ROOT_TAU).sum()
    return torch.stack([channel_log_likelihoods(one, v, level, share) for one in y])


EXACT = 1e-8
"""A variance of log-levels below it comes from rounding: the levels are known."""

STEPS, LARGEST_STEP, SETTLED = 12, 2.0, 1e-3
"""Of Newton's method on the logarithm of a tensor's shared factor."""


@dataclass(frozen=True)
class TensorDoubt:
    """A `Doubt`, as far as it concerns one tensor."""

    level: float
    shared: float
    kept: float
    pruned: float


def doubtful_log_likelihoods(
    sent: Sequence[Tensor], value: Tensor, std: Tensor, keep: Tensor | None, doubt: TensorDoubt
) -> Tensor:
    """log p(y) of each message for y_i = r_i v_i + std_i ε_i with levels and mask in doubt.

    All values are densities here, also where the plan has no noise: there the spread is τ_i, the
    size of a rounding error. That depends on what was sent alone, so that plans with different
    bare entries compare. An entry that was sent although the plan prunes it gets the root mean
    square level of those that the plan keeps.

    Zeros of the message are pruned entries: so the mask is seen, and an entry is on the other side
    of it than in the plan with the probabilities of the doubt. Where pruned entries have noise of
    their own, each entry is a mixture of both cases.
    """
    if keep is None:
        return torch.stack([_of_noise(one, value, std, doubt) for one in sent])
    if bool(((keep == 0) & (std > 0)).any()):
        return torch.stack([_of_mixture(one, value, std, keep, doubt) for one in sent])
    rows = torch.stack([one.flatten() for one in sent])
    return masked_log_likelihoods(rows, value.flatten(), std.flatten(), keep.flatten(), doubt)


def _of_noise(sent: Tensor, value: Tensor, std: Tensor, doubt: TensorDoubt) -> Tensor:
    misfit, error = (sent.double() - value.double()).flatten(), rounding_error(sent).flatten()
    return noise_log_likelihood(misfit, std.double().flatten(), error, doubt)


def _of_mixture(
    sent: Tensor, value: Tensor, std: Tensor, keep: Tensor, doubt: TensorDoubt
) -> Tensor:
    y, v, level, share = sent.double(), value.double(), std.double(), keep.double()
    error, chance = rounding_error(sent), _chance(share, doubt)
    full = torch.where(share > 0, level, _typical(level, share > 0))
    noise = torch.where(share == 0, level, _typical(level, share == 0))
    kept, pruned = _densities(y - v, full, error, doubt), _densities(y, noise, error, doubt)
    return torch.logaddexp(kept + chance.log(), pruned + (1 - chance).log()).sum()


def masked_log_likelihoods(
    sent: Tensor, value: Tensor, std: Tensor, keep: Tensor, doubt: TensorDoubt
) -> Tensor:
    """Of each row of `sent`, where pruned entries are 0: only the others are looked at one by one.

    An entry that is 0 was pruned, or it was sent without noise and its value is 0.
    """
    seen = sent != 0
    rows, places = seen.nonzero(as_tuple=True)
    y, v = sent[rows, places].double(), value[places].double()
    squares = torch.zeros(len(sent), dtype=torch.float64, device=sent.device)
    sizes = (squares.index_add_(0, rows, y.square()) / sent.shape[1]).sqrt()
    level = torch.where(keep > 0, std.double(), _typical(std.double(), keep > 0))
    error = rounding_at(sent.dtype, y, sizes[rows])
    counts = seen.sum(1).tolist()
    parts = zip(*(x.split(counts) for x in (y - v, level[places], error)), strict=True)
    values = torch.stack([noise_log_likelihood(m, own, e, doubt) for m, own, e in parts])
    near = rounding_at(sent.dtype, torch.zeros_like(sizes), sizes).unsqueeze(1)
    some = ((value.abs() <= near.max()) & (level == 0)).nonzero().squeeze(1)
    silent = ~seen[:, some] & (value[some].abs() <= near)
    return values + _mask_log_probability(seen, keep, some, silent, doubt)


def _mask_log_probability(
    seen: Tensor, keep: Tensor, some: Tensor, silent: Tensor, doubt: TensorDoubt
) -> Tensor:
    """Of which entries are not 0; of `some`, those that are silent are 0 even if they are sent."""
    if not bool(((keep == 0) | (keep == 1)).all()):
        chance = _chance(keep.double(), doubt)
        logs = torch.where(seen, chance, 1 - chance).log()
        logs[:, some] = torch.where(silent, 0.0, logs[:, some])
        return logs.sum(1)
    total = torch.zeros(len(seen), dtype=torch.float64, device=seen.device)
    for side, share in ((keep == 1, doubt.kept), (keep == 0, doubt.pruned)):
        found = (seen & side).sum(1).double()
        absent = side.sum() - found - (silent & side[some]).sum(1)
        total += torch.special.xlogy(found, share) + torch.special.xlogy(absent, 1 - share)
    return total


def _chance(share: Tensor, doubt: TensorDoubt) -> Tensor:
    """That an entry was kept."""
    return share * doubt.kept + (1 - share) * doubt.pruned


def noise_log_likelihood(
    misfit: Tensor, level: Tensor, error: Tensor, doubt: TensorDoubt
) -> Tensor:
    """log ∫ p(u) Π_i p(misfit_i | e^u Σ_ii) du: the whole tensor's variances may be off by e^u.

    u is normal with the doubt's shared variance; Laplace's method at the most likely u, which is
    exact up to 1/n for n entries. The variance of each entry around that is inverse-gamma, which
    makes its density Student's, with ν = 1 + 2/v degrees of freedom: trigamma(ν/2) ≈ v is the
    variance of its logarithm.
    """
    variances = level.square() + error.square()
    squares = misfit.square() / variances
    kernels = _log_kernel(squares, doubt).sum()
    known = len(squares) * _log_constant(doubt) - 0.5 * variances.log().sum() + kernels
    noisy = level > 0
    if doubt.shared <= EXACT or not bool(noisy.any()):
        return known
    if not bool(noisy.all()):
        squares = squares[noisy]
        kernels = _log_kernel(squares, doubt).sum()
    u = 0.0
    for _ in range(STEPS):
        slope, curvature = _slopes(squares, u, doubt)
        step = max(-LARGEST_STEP, min(LARGEST_STEP, slope / curvature))
        u += step
        if abs(step) < SETTLED:
            break
    moved = _log_kernel(squares * math.exp(-u), doubt).sum() - kernels - 0.5 * u * len(squares)
    return known + moved - 0.5 * u**2 / doubt.shared - 0.5 * math.log(doubt.shared * curvature)


def _slopes(squares: Tensor, u: float, doubt: TensorDoubt) -> tuple[float, float]:
    """The derivative with respect to u, and minus the second one."""
    shrunk = squares * math.exp(-u)
    if doubt.level <= EXACT:
        half = 0.5 * float(shrunk.sum())
        slope, curvature = half - 0.5 * len(squares), half
    else:
        freedom = 1 + 2 / doubt.level
        ratio = shrunk / freedom
        part = (freedom + 1) / 2 * ratio / (1 + ratio)
        slope = float(part.sum()) - 0.5 * len(squares)
        curvature = float((part / (1 + ratio)).sum())
    return slope - u / doubt.shared, curvature + 1 / doubt.shared


def _densities(misfit: Tensor, level: Tensor, error: Tensor, doubt: TensorDoubt) -> Tensor:
    """log p of each misfit, at the scale √(level² + error²)."""
    variances = level.square() + error.square()
    kernels = _log_kernel(misfit.square() / variances, doubt)
    return _log_constant(doubt) - 0.5 * variances.log() + kernels


def _log_constant(doubt: TensorDoubt) -> float:
    if doubt.level <= EXACT:
        return -LOG_ROOT_TAU
    freedom = 1 + 2 / doubt.level
    constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    return constant - 0.5 * math.log(freedom * math.pi)


def _log_kernel(squares: Tensor, doubt: TensorDoubt) -> Tensor:
    """The part of a log-density that depends on the misfit, given its square over the scale's."""
    if doubt.level <= EXACT:
        return -0.5 * squares
    freedom = 1 + 2 / doubt.level
    return -(freedom + 1) / 2 * (squares / freedom).log1p()


def _typical(level: Tensor, where: Tensor) -> Tensor:
    """The root mean square of the levels there; 0 where there are none."""
    squares = (level.square() * where).sum()
    return (squares / where.sum().clamp(min=1)).sqrt()


MOST_STEPS = 16
"""Up to how many steps from 0 the grid itself is evidence."""

FLOOR = 1e-9
"""The least probability (density in units of 1/step) of an entry: no single one decides."""


def cell_log_likelihood(sent: Tensor, value: Tensor, step: Tensor, variance: float = 0.0) -> Tensor:
    """0 where values round to what was sent; -½ (distance to the cell / τ_i)² where they do not.

    With a variance of log step_i², these steps are estimates.
    """
    if variance > EXACT:
        return doubtful_log_probabilities(sent, value, step, variance).sum()
    width = step.double()
    outside = ((sent.double() - value.double()).abs() - width / 2).clamp(min=0)
    return -0.5 * (outside / rounding_error(sent, width)).square().sum()


def doubtful_log_probabilities(
    sent: Tensor, value: Tensor, step: Tensor, variance: float
) -> Tensor:
    """Of each rounded entry, when log step_i² is known up to this variance.

    With a log-normal step of density f around the own estimate: y_i = 0 has the probability
    P[step > 2|v_i|]; y_i ≠ 0 is n steps for some n ≥ 1, and its density is
    Σ_n f(|y_i|/n)/n over the n for which v_i rounds to n steps, ||v_i| - |y_i|| ≤ |y_i|/(2n),
    with equal signs. Further than 16 steps from 0 the grid says nothing, and y_i is uniform within
    half a step around v_i.
    """
    y, v = sent.double(), value.double()
    error, spread = rounding_error(sent), max(0.5 * math.sqrt(variance), 1e-4)
    own = torch.maximum(step.double(), error)
    silent = 0.5 * torch.erfc((2 * v.abs() / own).log() / (spread * math.sqrt(2)))
    silent = torch.where(v == 0, 1.0, silent)
    misfit, size = (y - v).abs() - error, y.abs().clamp(min=1e-300)
    density = torch.zeros_like(y)
    for n in range(1, MOST_STEPS + 1):
        score = (size / (n * own)).log() / spread
        normal = (-0.5 * score.square() - LOG_ROOT_TAU).exp() / (spread * size)  # f(|y|/n)/n
        density = density + torch.where(misfit <= size / (2 * n), normal, 0.0)
    wide = torch.where(misfit <= own / 2 * (1 + 3 * spread), 1 / own, 0.0)
    density = torch.where(size > MOST_STEPS * own, wide, density)
    seen = torch.where(y == 0, silent, density).clamp(min=0)
    floor = torch.where(y == 0, FLOOR, FLOOR / own)
    return torch.maximum(seen, floor).log()
