"""Optimal pruning (Theorem 4, Eq. 19)."""

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from gradveil._typing import Tensors
from gradveil.sensitivity import Moments

from ._gradient_pruning import GradientPruning
from ._planning import check_shape_options, least_square, pool, takes_plan
from ._pruning import PruningDefense

MARGIN = 1.5
"""By how much a pruned entry's limit is widened: the client's sensitivities are estimates, too."""


@takes_plan
@dataclass(frozen=True)
class OptimalPruning(PruningDefense):
    """Prunes the entries of LARGEST k_i = E‖∇_x g_i‖² / E g_i² (the paper prints "smallest").

    At a given first-order utility Σ_kept g_i² the information Σ_kept s_i² is least when the
    entries with the least s_i² per g_i² are kept: a fractional knapsack. Entries with E g_i² = 0
    are worth nothing and go first. With optimal noise on what is kept the order is the same.

    Args:
        ratio: Or `utility_budget` or `target_error`; see `PruningDefense` for what they mean.
        noise: On what is kept. Without it there is no guarantee.
        granularity: "parameter", or "layer" for one score per tensor.
        floor: The least √E g_i² in the denominator, over the root mean square of the
            entry's tensor.
        estimator: How sensitivities are measured when the defense is called on a message.
        plan: "model" or "private": what decides which entries are sent; see `OptimalNoise`.

    >>> from gradveil import Moments
    >>> moments = Moments(
    ...     {"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, input_size=2
    ... )
    >>> OptimalPruning(ratio=0.5).plan(moments).apply({"w": torch.tensor([3.0, -9.0])})
    {'w': tensor([ 0., -9.])}
    """

    twin = GradientPruning

    _: KW_ONLY
    granularity: str = "parameter"
    floor: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape_options(self.granularity, 1.0, self.floor)

    @property
    def label(self) -> str:
        """ "optimal pruning" or "optimal noisy pruning"."""
        return f"optimal {self.family}"

    @property
    def needs_sensitivities(self) -> bool:
        """Always."""
        return True

    @property
    def prunes_by_sensitivity(self) -> bool:
        """Always."""
        return True

    def pruned_limits(self, sent: Tensor, pruned: Tensor, sensitivity: Tensor | None) -> Tensor:
        """s_i over the threshold on s_i / |g_i|, which the kept entries show.

        It is known only as well as the sensitivities are at the attacker's estimate: at a poor one
        half of the true values were beyond it, so no limit is below the median of what was kept.
        """
        if sensitivity is None:
            return super().pruned_limits(sent, pruned, sensitivity)
        kept = sent[~pruned].abs()
        ratios = (sensitivity[~pruned] / kept).sort().values
        share = 0.98 if self.noise is None else 0.5
        threshold = ratios[int(share * (len(ratios) - 1))].clamp(min=1e-30)
        return (MARGIN * sensitivity / threshold).clamp(min=float(kept.median()))

    def scores(self, moments: Moments) -> Tensors:
        """k_i; infinite where the entry is 0."""
        pooled = pool(moments, self.granularity)
        return {
            name: torch.where(
                square > 0,
                pooled.known_squared_sensitivities[name]
                / square.clamp(min=least_square(square, self.floor)),
                torch.inf,
            )
            for name, square in pooled.squared_values.items()
        }
