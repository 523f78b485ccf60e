"""Noise and keep levels: one number for all entries, or a tensor for each parameter."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from gradveil._checks import check_number, check_structure
from gradveil._typing import Level, Tensors


def constant_like(number: float, values: Mapping[str, Tensor]) -> Tensors:
    """A tensor of one number in the shape of each value; it takes no memory.

    >>> constant_like(0.5, {"w": torch.zeros(2)})
    {'w': tensor([0.5000, 0.5000])}
    """
    numbers: dict[tuple[torch.dtype, torch.device], Tensor] = {}
    constants = {}
    for name, value in values.items():
        kind = value.dtype, value.device
        if kind not in numbers:
            numbers[kind] = value.new_tensor(number)
        constants[name] = numbers[kind].expand(value.shape)
    return constants


def level_of(level: Level, name: str) -> Tensor | float:
    """The level of one parameter: a number wherever it is the same for all of its entries."""
    if isinstance(level, Mapping):
        tensor = level[name]
        return _only(tensor) if _is_constant(tensor) else tensor
    return float(level)


def as_tensors(level: Level, like: Mapping[str, Tensor]) -> Tensors:
    """A level as one tensor for each parameter, in its shape, dtype and place."""
    levels = {n: (level_of(level, n), v) for n, v in like.items()}
    return {
        n: torch.as_tensor(found, dtype=v.dtype, device=v.device).expand(v.shape)
        for n, (found, v) in levels.items()
    }


def check_level(level: Level, name: str, low: float, high: float) -> None:
    """Require every level to be in [low, high] and finite."""
    if not isinstance(level, Mapping):
        check_number(level, name)
        level = {"": torch.tensor(float(level), dtype=torch.float64)}
    for key, tensor in level.items():
        if not isinstance(tensor, Tensor) or tensor.is_complex() or tensor.is_meta:
            kind = f"{tensor.dtype} on {tensor.device}" if isinstance(tensor, Tensor) else ""
            raise TypeError(
                f"Parameter `{name}` should be a number, or hold tensors of real numbers by"
                f" parameter name. Found {kind or type(tensor).__name__} for `{key}`. Convert it"
                " with torch.as_tensor."
            )
        if tensor.numel() == 0:
            continue
        least, most = _ends(tensor)
        if not (low <= least and most <= high and math.isfinite(most)):
            where = f" in `{key}`" if key else ""
            raise ValueError(
                f"Parameter `{name}` should be finite and in [{low:g}, {high:g}]. Found values"
                f" from {least:g} to {most:g}{where}."
            )


def check_level_structure(level: Level, values: Mapping[str, Tensor], name: str) -> None:
    """Require a level given by parameter to have the names and shapes of the values."""
    if isinstance(level, Mapping):
        check_structure(level, values, name, "values")


def _ends(tensor: Tensor) -> tuple[float, float]:
    if _is_constant(tensor):
        return (_only(tensor),) * 2
    least, most = torch.aminmax(tensor)
    return least.item(), most.item()


def _only(constant: Tensor) -> float:
    return float(constant.as_strided((), ()).item())


def _is_constant(tensor: Tensor) -> bool:
    """Whether it is one number, expanded."""
    return not any(tensor.stride()) and tensor.numel() > 0
