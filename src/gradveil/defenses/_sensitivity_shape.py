"""The optimal shape √(E‖∇g_i‖² / E g_i²), with the care that small gradients need."""

from dataclasses import replace

from torch import Tensor

from gradveil._checks import check_choice, check_not_negative, check_positive
from gradveil._typing import Tensors
from gradveil.sensitivity import Moments

GRANULARITIES = ("parameter", "layer")


def check_shape_options(granularity: str, cap: float, floor: float) -> None:
    """Require options that make sense."""
    check_choice(granularity, "granularity", GRANULARITIES)
    check_positive(cap, "cap", finite=False)
    check_not_negative(floor, "floor")


def sensitivity_ratios(moments: Moments, granularity: str, cap: float, floor: float) -> Tensors:
    """r_i = min(√E‖∇g_i‖² / max(√E g_i², floor), cap); 0 where the sensitivity is 0.

    For granularity "layer" the means over each tensor take the place of the entries: one level
    for each tensor, which is the optimum among such plans.
    """
    pooled = pool(moments, granularity)
    return {
        name: _ratio(pooled.sensitivities[name], squares, cap, floor)
        for name, squares in pooled.squared_values.items()
    }


def pool(moments: Moments, granularity: str) -> Moments:
    """The moments, or for "layer" their means over each tensor in the place of every entry."""
    if granularity == "parameter":
        return moments
    return replace(
        moments,
        squared_values=_means(moments.squared_values),
        squared_sensitivities=_means(moments.sensitivities),
        variances=None,
    )


def _means(tensors: Tensors) -> Tensors:
    return {name: tensor.mean().expand(tensor.shape) for name, tensor in tensors.items()}


def _ratio(sensitivity: Tensor, square: Tensor, cap: float, floor: float) -> Tensor:
    tiny = 1e-30 if square.element_size() >= 4 else 1e-6
    return (sensitivity / square.clamp(min=max(floor**2, tiny))).clamp(max=cap**2).sqrt()
