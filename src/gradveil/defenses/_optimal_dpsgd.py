"""Optimal noise on clamped entries (Theorem 3, Eq. 16)."""

from dataclasses import dataclass, replace

import torch

from gradveil._checks import check_at_most, check_positive
from gradveil._typing import Tensors
from gradveil.mechanisms import Mechanism
from gradveil.sensitivity import Moments

from ._dpsgd import DPSGD
from ._optimal_noise import OptimalNoise
from ._planning import median_level, takes_plan


@takes_plan
@dataclass(frozen=True)
class OptimalDPSGD(OptimalNoise):
    """Σ_ii = λ √(E‖∇_x g_P,i‖² / E g_P,i²) with g_P = clamp(g, -P, P).

    A clamped entry is the constant ±P near x, and the theorem gives it no noise. But WHICH entries
    are clamped is a function of the private batch, and bare ±P shows it to everybody. So clamped
    entries get the median level of their tensor; what that costs in U2 is theirs alone. With
    `least=0` (the paper's form) they are sent bare, and there is no bound. Moments over several
    batches must be measured with `measure(..., clip=P)`.

    Formal guarantees: none of the (ε, δ) kind; see `DPSGD`. Noise that depends on the private
    batch has none either.

    Args:
        scale: Or `utility_budget` or `target_error`; see `NoiseDefense` for what they mean.
        clip: The threshold P.
        granularity: See `OptimalNoise`, as for `cap`, `floor` and `least`.

    >>> from gradveil import Exact, measure
    >>> message = lambda inputs: {"w": inputs.square().sum(0)}
    >>> moments = measure(message, torch.tensor([[0.5, 3.0]]), Exact(), clip=1.0)
    >>> OptimalDPSGD(scale=0.5, clip=1.0).plan(moments).std["w"].shape
    torch.Size([2])
    """

    label = "optimal noise with clamping"
    family = "clamped noise"
    twin = DPSGD

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
        ratios = {name: r * inside[name] for name, r in super().shape(unclamped).items()}
        if not self.least:
            return ratios
        return {n: torch.where(inside[n], r, median_level(r)) for n, r in ratios.items()}
