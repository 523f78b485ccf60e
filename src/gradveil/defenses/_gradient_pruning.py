"""Magnitude pruning: the classical twin of the optimal pruning."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._typing import Tensors
from gradveil.sensitivity import Moments

from ._planning import takes_plan
from ._pruning import PruningDefense


@takes_plan
@dataclass(frozen=True)
class GradientPruning(PruningDefense):
    """Prunes the entries of smallest E g_i² (Eq. 17). No guarantee unless `noise` is added.

    Give `ratio`, `utility_budget` or `target_error`; see `PruningDefense` for what they mean. Which
    entries are the largest is read off the private batch, as everybody does (plan="private"), and
    everybody can see which they are; inside of `Public` they are those of public examples.

    >>> from gradveil import Moments
    >>> moments = Moments(
    ...     {"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, input_size=2
    ... )
    >>> GradientPruning(ratio=0.5).plan(moments).apply({"w": torch.tensor([3.0, -9.0])})
    {'w': tensor([ 0., -9.])}
    """

    @property
    def label(self) -> str:
        """ "pruning" or "noisy pruning"."""
        return self.family

    plan_from: str = "private"

    @property
    def plan_varies(self) -> bool:
        """Only where sensitivities of the batch set the noise or the target."""
        return self.plan_is_private and self.needs_sensitivities

    def pruned_limits(self, sent: Tensor, pruned: Tensor, sensitivity: Tensor | None) -> Tensor:
        """The least entry that was kept is the threshold.

        With noise every kept entry g + std ε is above the threshold at least half of the time, so
        that their median is a safe limit.
        """
        kept = sent[~pruned].abs()
        limit = kept.min() if self.noise is None else kept.median()
        return torch.full_like(sent, float(limit))

    def scores(self, moments: Moments) -> Tensors:
        """The largest values first."""
        return {name: -square for name, square in moments.squared_values.items()}
