"""The paper's DP-SGD: entries clamped to [-P, P], then the same noise on all of them."""

from dataclasses import dataclass

from gradveil._checks import check_at_most, check_positive
from gradveil.mechanisms import Mechanism
from gradveil.sensitivity import Moments

from ._gradient_noise import GradientNoise
from ._planning import takes_plan


@takes_plan
@dataclass(frozen=True)
class DPSGD(GradientNoise):
    """y = clamp(g, -P, P) + scale · ε (Eq. 13 with Σ = scale² I).

    Formal guarantees: none of the (ε, δ) kind. This clamps each entry of the BATCH gradient, as
    the paper does; it is not the per-example norm clipping of Abadi et al., and no accountant
    applies to it.

    Args:
        scale: Or `utility_budget` or `target_error`; see `NoiseDefense` for what they mean.
        clip: The threshold P.

    >>> import torch
    >>> from gradveil import Moments
    >>> moments = Moments(
    ...     {"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, input_size=2
    ... )
    >>> mechanism = DPSGD(scale=0.5, clip=1.0).plan(moments)
    >>> mechanism.std["w"], mechanism.clip
    (tensor([0.5000, 0.5000]), 1.0)
    """

    label = "noise with clamping"
    family = "clamped noise"

    clip: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.clip, "clip")
        check_at_most(self.clip, "clip")

    def plan(self, moments: Moments) -> Mechanism:
        """Σ = λ I, everything clamped to [-P, P]."""
        return self._plan(moments, self.clip)
