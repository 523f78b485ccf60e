"""The mechanism that rounds to a grid."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_finite, check_structure, check_values
from gradveil._typing import Level, Tensors

from ._cell_likelihood import cell_log_likelihood
from ._deterministic import DeterministicMechanism
from ._doubt import Doubt, doubt_on_levels
from ._levels import check_level, check_level_structure, level_of
from ._reading import Reading, all_sent, as_tensors


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

    def log_likelihood(self, values: Tensors, sent: Tensors, doubt: Doubt | None = None) -> Tensor:
        """log P(sent | values) in float64: 0 where all values lie in the cells that were sent.

        A value that is further outside of its cell than rounding errors explain adds so large a
        negative number that nothing outweighs it. With a `doubt` these steps are estimates of the
        ones that were applied.
        """
        check_values(values)
        check_structure(sent, values, "sent", "values")
        check_level_structure(self.step, values, "step")
        steps = as_tensors(self.step, values)
        terms = []
        for name, value in values.items():
            variance = 0.0 if doubt is None else doubt.variance(name)
            terms.append(cell_log_likelihood(sent[name], value, steps[name], variance))
        return torch.stack(terms).sum()

    def doubt(self, other: "RoundingMechanism", like: Tensors) -> Doubt:
        """How far another plan from the same values is from this one; `like` gives the shapes."""
        return doubt_on_levels(as_tensors(self.step, like), as_tensors(other.step, like))

    def read(self, sent: Tensors, realised: bool = True) -> Reading:
        """The cells that were rounded to what was sent."""
        check_level_structure(self.step, sent, "step")
        half = {name: step / 2 for name, step in as_tensors(self.step, sent).items()}
        return all_sent(
            {name: y - half[name] for name, y in sent.items()},
            {name: y + half[name] for name, y in sent.items()},
            {name: torch.zeros_like(y) for name, y in sent.items()},
        )

    def _rounded(self, name: str, value: Tensor) -> Tensor:
        step = torch.as_tensor(level_of(self.step, name), dtype=value.dtype, device=value.device)
        rounded = torch.round(value / step) * step
        return torch.where(rounded.isfinite(), rounded, value)
