"""The mechanism that rounds to a grid."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_finite, check_values
from gradveil._typing import Level, Tensors

from ._deterministic import DeterministicMechanism
from ._levels import check_level, check_level_structure, level_of


@dataclass(frozen=True)
class RoundingMechanism(DeterministicMechanism):
    """y_i = step_i · round(g_i / step_i), to the nearest, ties to even; step 0 sends g_i itself.

    So does a step so small that the number of steps overflows.

    Deterministic: the Cramér-Rao argument says nothing about it, and the bound is 0.

    >>> RoundingMechanism(step=0.5).apply({"w": torch.tensor([0.6, -1.4])})["w"]
    tensor([ 0.5000, -1.5000])
    """

    step: Level

    def __post_init__(self) -> None:
        check_level(self.step, "step", 0, float("inf"))

    def apply(self, values: Tensors, generator: torch.Generator | None = None) -> Tensors:
        """Round; nothing is drawn."""
        check_values(values)
        check_finite(values)
        check_level_structure(self.step, values, "step")
        return {name: self._rounded(name, value) for name, value in values.items()}

    def _rounded(self, name: str, value: Tensor) -> Tensor:
        step = torch.as_tensor(level_of(self.step, name), dtype=value.dtype, device=value.device)
        rounded = torch.round(value / step) * step
        return torch.where(rounded.isfinite(), rounded, value)
