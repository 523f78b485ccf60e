"""The classical twin: entries of small magnitude are not sent."""

from dataclasses import dataclass

from gradveil._typing import Tensors
from gradveil.sensitivity import Moments

from ._pruning import PruningDefense


@dataclass(frozen=True)
class GradientPruning(PruningDefense):
    """Prunes the entries of smallest E g_i² (Eq. 17). No guarantee unless `noise` is added.

    Give `ratio`, `utility_budget` or `target_error`; see `PruningDefense` for what they mean.
    """

    def scores(self, moments: Moments) -> Tensors:
        """The largest values first."""
        return {name: -square for name, square in moments.squared_values.items()}
