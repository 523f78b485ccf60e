"""Theorem 2 and Eq. 10: noise in proportion to what an entry reveals over what it is worth."""

from dataclasses import KW_ONLY, dataclass

from gradveil._typing import Tensors
from gradveil.sensitivity import Moments

from ._noise import NoiseDefense
from ._sensitivity_shape import check_shape_options, sensitivity_ratios


@dataclass(frozen=True)
class OptimalNoise(NoiseDefense):
    """Σ_ii = λ √(E‖∇_x g_i‖² / E g_i²), which maximises the trace bound at a given utility.

    Proof: tr J_F = Σ s_i²/Σ_ii and -U2 = Σ g_i² Σ_ii; by Cauchy their product is at least
    (Σ s_i |g_i|)², with equality for Σ_ii ∝ s_i / |g_i|.

    Moments of one batch give the local form (Eq. 10), Moments over a data set the global one
    (Theorem 2). A plan from the private batch itself leaks through its noise levels
    (`plan_information`); one from public data does not. No (ε, δ) guarantee either way.

    Args:
        scale: Or `utility_budget` or `target_error`; see `NoiseDefense` for what they mean.
        granularity: "parameter", or "layer" for one level per tensor.
        cap: The largest ratio √E‖∇g_i‖² / √E g_i² that counts (appendix B: an entry whose
            gradient is near 0 would soak up all the noise).
        floor: The least √E g_i² in the denominator, the paper's c.
        estimator: How sensitivities are measured when the defense is called on a message.
    """

    _: KW_ONLY
    granularity: str = "parameter"
    cap: float = 100.0
    floor: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape_options(self.granularity, self.cap, self.floor)

    @property
    def needs_sensitivities(self) -> bool:
        """Always."""
        return True

    @property
    def is_entrywise(self) -> bool:
        """Not with one level per tensor."""
        return self.granularity == "parameter"

    def shape(self, moments: Moments) -> Tensors:
        """r_i = √(E‖∇_x g_i‖² / E g_i²), capped."""
        return sensitivity_ratios(moments, self.granularity, self.cap, self.floor)
