"""The shape √(E‖∇g_i‖² / E g_i²) of optimal noise, capped and floored."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from gradveil._checks import check_at_most, check_choice, check_not_negative, check_positive
from gradveil._typing import Tensors
from gradveil.sensitivity import Moments

from ._typical import typical

GRANULARITIES = ("parameter", "layer")

PIECE = 2**16
"""Entries for which ratios are computed at a time."""


def check_shape_options(granularity: str, cap: float, floor: float) -> None:
    """Require options that make sense."""
    check_choice(granularity, "granularity", GRANULARITIES)
    check_positive(cap, "cap", finite=False)
    check_not_negative(floor, "floor")
    check_at_most(floor, "floor")


def sensitivity_ratios(moments: Moments, granularity: str, cap: float, floor: float) -> Tensors:
    """r_i = √E‖∇g_i‖² / √E g_i², at most `cap` times the median ratio; 0 where s_i is 0.

    The denominator is at least `floor` times the root mean square of the entry's tensor. Both
    limits are relative, so the units of inputs, weights and loss change nothing. For granularity
    "layer" the means over each tensor take the place of the entries: one level for each tensor,
    which is the optimum among such plans.
    """
    pooled = pool(moments, granularity)
    ratios = {
        name: _ratio(
            pooled.known_squared_sensitivities[name], squares, least_square(squares, floor)
        )
        for name, squares in pooled.squared_values.items()
    }
    limit = cap * typical(ratios)
    return {n: r.clamp(max=min(limit, torch.finfo(r.dtype).max)) for n, r in ratios.items()}


def least_square(squares: Tensor, floor: float) -> float:
    """The least E g_i² that counts: floor² times the mean over the tensor, and no 0."""
    mean = float(squares.detach().mean(dtype=torch.float64)) if squares.numel() else 0.0
    return max(floor**2 * mean, torch.finfo(squares.dtype).tiny)


def pool(moments: Moments, granularity: str) -> Moments:
    """The moments, or for "layer" their means over each tensor in the place of every entry."""
    if granularity == "parameter":
        return moments
    return replace(
        moments,
        squared_values=_means(moments.squared_values),
        squared_sensitivities=_means(moments.known_squared_sensitivities),
    )


def _means(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: tensor.mean().expand(tensor.shape) for name, tensor in tensors.items()}


def _ratio(sensitivity: Tensor, square: Tensor, least: float) -> Tensor:
    """Large tensors piece by piece, so that what is computed on the way takes little memory."""
    if sensitivity.numel() <= 4 * PIECE or sensitivity.requires_grad:
        return _ratio_of_piece(sensitivity, square, least)
    ratio = torch.empty_like(sensitivity, memory_format=torch.contiguous_format)
    pieces = zip(
        ratio.view(-1).split(PIECE),
        sensitivity.reshape(-1).split(PIECE),
        square.reshape(-1).split(PIECE),
        strict=True,
    )
    for target, slopes, squares in pieces:
        target.copy_(_ratio_of_piece(slopes, squares, least))
    return ratio


def _ratio_of_piece(sensitivity: Tensor, square: Tensor, least: float) -> Tensor:
    """Roots before the quotient: no square overflows. No root of 0: its slope is infinite."""
    limits = torch.finfo(square.dtype)
    value = square.clamp(min=least).sqrt()
    ratio = (sensitivity.clamp(min=limits.tiny).sqrt() / value).clamp(max=limits.max)
    return ratio * sensitivity.sign()
