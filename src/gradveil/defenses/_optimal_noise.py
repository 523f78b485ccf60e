"""Optimal Gaussian noise (Theorem 2, Eq. 10)."""

from dataclasses import KW_ONLY, dataclass, replace

from torch import Tensor

from gradveil._checks import check_choice, check_ratio
from gradveil._typing import Tensors
from gradveil.sensitivity import Moments

from ._gradient_noise import GradientNoise
from ._planning import (
    NoiseDefense,
    TooMuch,
    adam_levels,
    allowed_trace,
    check_shape_options,
    least_square,
    pool,
    raise_to_least,
    sensitivity_ratios,
    takes_plan,
)

UTILITIES = ("variance", "curvature", "adam")


@takes_plan
@dataclass(frozen=True)
class OptimalNoise(NoiseDefense):
    """Σ_ii = λ √(E‖∇_x g_i‖² / E g_i²), which maximises the trace bound at a given utility.

    Proof: tr J_F = Σ s_i²/Σ_ii and -U2 = Σ g_i² Σ_ii; by Cauchy their product is at least
    (Σ s_i |g_i|)², with equality for Σ_ii ∝ s_i / |g_i|.

    The same with h_i in the place of g_i²: at a given curvature cost ½ η² Σ h_i Σ_ii, what noise
    adds to the loss in a step of length η, the bound is largest for Σ_ii ∝ s_i / √h_i. And for
    Adam, which gains Σ g_i²/√(g_i² + Σ_ii) in a step, for the Σ of `adam_levels`, whose shape
    depends on the amount: (s_i/|g_i|)⁴ where there is much more noise than gradient.

    Moments of one batch give the local form (Eq. 10), Moments over a data set the global one
    (Theorem 2). By default the plan is made from the model alone, so that it says nothing of the
    batch; public examples (`Public`) make a better one. The paper's form, plan="private", shows an
    attacker who reads the noise levels what was in the batch, at any scale. No (ε, δ) guarantee
    either way.

    Args:
        scale: Or `utility_budget` or `target_error`; see `NoiseDefense` for what they mean.
        granularity: "parameter", or "layer" for one level per tensor.
        utility: The utility at which the bound is largest: "variance" (the paper's U2),
            "curvature", for which h_i = E g_{b,i}² over examples b takes the place of g_i²
            everywhere in the shape (it needs a message that is a sum over examples), or "adam".
            `utility_budget` is U2 in all cases.
        cap: The largest ratio √E‖∇g_i‖² / √E g_i² that counts, over the median ratio (appendix B:
            an entry whose gradient is near 0 would soak up all the noise).
        floor: The least √E g_i² in the denominator, over the root mean square of the entry's
            tensor. The paper's c is 1e-6 in absolute terms, which depends on units.
        least: The least standard deviation, as a share of the median one in the entry's tensor
            (and a 25th of it, of the median one in the message). An entry without any sensitivity,
            or whose value is exactly 0, gets the mean level of its tensor. So nothing is sent bare,
            or stands out, because of what happens to be 0 on this batch. 0 is the paper's form
            (appendix B), which sends such entries bare: for reproduction only. The default costs
            about 1e-4 of the optimal bound on the paper's models.
        estimator: How sensitivities are measured when the defense is called on a message.
        plan: "model" or "private": what the plan is made from when it is called on a message.

    >>> import torch
    >>> from gradveil import Moments
    >>> moments = Moments(
    ...     {"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, input_size=2
    ... )
    >>> OptimalNoise(scale=1.0).plan(moments).std["w"]
    tensor([1.2649, 0.6325])
    """

    label = "optimal noise"
    twin = GradientNoise

    _: KW_ONLY
    granularity: str = "parameter"
    utility: str = "variance"
    cap: float = 100.0
    floor: float = 1e-4
    least: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape_options(self.granularity, self.cap, self.floor)
        check_choice(self.utility, "utility", UTILITIES)
        check_ratio(self.least, "least")

    @property
    def needs_sensitivities(self) -> bool:
        """Always."""
        return True

    @property
    def needs_curvature(self) -> bool:
        """For the utility "curvature"."""
        return self.utility == "curvature"

    def shape(self, moments: Moments) -> Tensors:
        """r_i = √(E‖∇_x g_i‖² / E g_i²), capped; 0 for entries that are 0, which a floor hides."""
        if self.needs_curvature:
            moments = replace(moments, squared_values=moments.known_squared_example_values)
        ratios = sensitivity_ratios(moments, self.granularity, self.cap, self.floor)
        if self.utility == "adam":
            ratios = self._adam_levels(moments, ratios)
        if not self.least or self.granularity == "layer":
            return ratios
        squares = moments.squared_values
        return {name: ratio * (squares[name] > 0) for name, ratio in ratios.items()}

    def _adam_levels(self, moments: Moments, ratios: Tensors) -> Tensors:
        pooled = pool(moments, self.granularity).squared_values
        squares = {n: g2.clamp(min=least_square(g2, self.floor)) for n, g2 in pooled.items()}
        return adam_levels(ratios, squares, self._is_too_much(moments))

    def _is_too_much(self, moments: Moments) -> TooMuch:
        """By the option that sets the amount."""
        allowed = 0.0
        if self.target_error is not None:
            allowed = allowed_trace(self.target_error, moments, self.prior)

        def too_much(levels: Tensor, ratio: Tensor, square: Tensor, weight: float) -> bool:
            if self.scale is not None:
                return float(levels.sum()) * weight > self.scale**2 * moments.size
            if self.utility_budget is not None:
                return float((square * levels).sum()) * weight > self.utility_budget
            return float((ratio.square() * square / levels).sum()) * weight < allowed

        return too_much

    def raised(self, shape: Tensors) -> Tensors:
        """No entry below `least` of its tensor's median level."""
        return raise_to_least(shape, self.least) if self.least else shape
