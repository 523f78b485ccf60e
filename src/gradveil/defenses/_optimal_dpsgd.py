"""Theorem 3 and Eq. 16: optimal noise on what clipping leaves, none on what it clamps."""

from dataclasses import dataclass, replace

import torch

from gradveil._checks import check_at_most, check_positive
from gradveil._typing import Tensors
from gradveil.mechanisms import Mechanism
from gradveil.sensitivity import Moments

from ._optimal_noise import OptimalNoise


@dataclass(frozen=True)
class OptimalDPSGD(OptimalNoise):
    """Σ_ii = λ √(E‖∇_x g_P,i‖² / E g_P,i²) with g_P = clamp(g, -P, P); 0 for clamped entries.

    A clamped entry is the constant ±P near x: it tells nothing that noise could hide. Moments
    over several batches must be measured with `measure(..., clip=P)`.

    Formal guarantees: none of the (ε, δ) kind; see `DPSGD`. Noise that depends on the private
    batch has none either.

    Args:
        scale: Or `utility_budget` or `target_error`; see `NoiseDefense` for what they mean.
        clip: The threshold P.
        granularity: See `OptimalNoise`, as for `cap` and `floor`.
    """

    clip: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.clip, "clip")
        check_at_most(self.clip, "clip")

    def plan(self, moments: Moments) -> Mechanism:
        """Σ = λ r, everything clamped to [-P, P]."""
        return self._plan(moments, self.clip)

    def shape(self, moments: Moments) -> Tensors:
        """The optimal ratios of the entries that are not clamped in every batch."""
        inside = {n: square < self.clip**2 for n, square in moments.squared_values.items()}
        unclamped = replace(
            moments,
            squared_values={
                n: torch.where(inside[n], square, 0.0)
                for n, square in moments.squared_values.items()
            },
        )
        return {name: r * inside[name] for name, r in super().shape(unclamped).items()}
