"""Denoising squares that are known to be chi-square around the truth.

A squared derivative along a Gaussian probe is truth × χ²₁; a sum over probes and examples is close
to truth × χ²_k / k with k degrees of freedom. `smooth` starts from one level for all entries and
lets groups of entries (rows, columns, positions, finally each entry) move away from it only as far
as their scatter exceeds what such noise explains: empirical Bayes, one factor after the other. With
many degrees of freedom the result is the raw estimate, with few it is a product of row, column and
position effects.
"""

from torch import Tensor

TINY = 1e-38

ENTRIES_FROM = 16
"""Single entries of a matrix are heard from so many degrees of freedom on, if not asked for."""


def smooth(
    raw: Tensor, freedom: float, start: Tensor | None = None, entries: bool = False
) -> Tensor:
    """Denoise squares with `freedom` degrees of freedom each, from `start` or their mean.

    Main effects of every axis first, then columns over the first axis, then single entries.
    """
    model = raw.mean().expand_as(raw) if start is None else start
    axes = range(raw.dim())
    groups = [tuple(j for j in axes if j != i) for i in axes if raw.dim() > 1 and raw.shape[i] > 1]
    if raw.dim() > 2 and raw.shape[0] > 1:
        groups.append((0,))
    if entries or freedom >= ENTRIES_FROM or raw.dim() < 2:
        groups.append(())
    for group in groups:
        model = _refine(raw, model, group, freedom)
    return model


def smooth_matrix(raw: Tensor, freedom: float, start: Tensor | None = None) -> Tensor:
    """`smooth` with all axes but the first taken as one: rows and columns of a weight."""
    if raw.dim() < 2:
        return smooth(raw, freedom, start)
    flat_start = None if start is None else start.flatten(1)
    return smooth(raw.flatten(1), freedom, flat_start).view_as(raw)


def smooth_sum(squares: Tensor, fourth: Tensor) -> Tensor:
    """Denoise a sum of squared derivatives over examples, given the sum of their fourth powers.

    For Gaussian derivatives Var Σ g² = ⅔ E Σ g⁴ (see `SquareSums`), so the sum has
    2 truth² / Var = 3 truth² / Σ g⁴ degrees of freedom, here the mean over all entries.
    """
    freedom = float(3 * squares.square().sum() / fourth.clamp_min(TINY)) - 2
    return smooth(squares, max(1.0, freedom))


def _refine(raw: Tensor, model: Tensor, group: tuple[int, ...], freedom: float) -> Tensor:
    """Multiply the model by one factor per group, as far as the raw squares prove it.

    The ratio r = Σ raw / Σ model of a group has the noise variance n = 2/k · Σ model² / (Σ model)²
    and scatters by τ² around 1 from group to group; the factor is 1 + (r - 1) τ² / (τ² + n), with
    τ² from E (r - 1)² = τ² + n (1 + τ²).
    """
    if group:
        observed, expected = raw.sum(group, keepdim=True), model.sum(group, keepdim=True)
        noise = model.square().sum(group, keepdim=True) / expected.square().clamp_min(TINY)
        noise = noise * (2 / freedom)
    else:
        observed, expected = raw, model
        noise = raw.new_tensor(2 / freedom)
    excess = (observed / expected.clamp_min(TINY)).sub_(1)
    weight = expected / expected.sum().clamp_min(TINY)
    mean_noise = (noise * weight).sum() if group else noise
    scatter = ((excess.square() * weight).sum() - mean_noise).clamp_min(0) / (1 + mean_noise)
    return model * excess.mul_(scatter / (scatter + noise).clamp_min(TINY)).add_(1)
