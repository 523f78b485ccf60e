"""Rounding of every entry to a grid: the same for all, or in the shape of the optimal noise."""

from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property

from gradveil._checks import check_positive
from gradveil.mechanisms import RoundingMechanism, constant_like
from gradveil.sensitivity import Estimator, Moments, check_moments
from gradveil.shapes import Shape, Source

from ._base import About, Defense, check_source
from ._fixed import FixedDefense
from ._noise import OptimalNoise


@dataclass(frozen=True)
class Rounding(FixedDefense):
    """y_i = step · round(g_i / step). Deterministic, so it has no bound and no guarantee.

    Args:
        step: The distance of the grid's points.

    >>> import torch
    >>> Rounding(step=0.5)(lambda inputs: {"w": inputs.sum(0)}, torch.tensor([[1.2, -0.6]]))
    {'w': tensor([ 1.0000, -0.5000])}
    """

    step: float

    def __post_init__(self) -> None:
        check_positive(self.step, "step")

    @cached_property
    def about(self) -> About:
        return replace(super().about, amount="step")

    def mechanism(self, shape: Shape, moments: Moments) -> RoundingMechanism:
        """The same step everywhere."""
        check_moments(moments)
        return RoundingMechanism(constant_like(self.step, moments.like))


@dataclass(frozen=True)
class OptimalRounding(Defense):
    """y_i = step_i · round(g_i / step_i) with step_i² ∝ √(E‖∇_x g_i‖² / E g_i²).

    A grid of step a errs like noise of variance a²/12, so the steps follow the standard deviations
    of the optimal noise, with √(mean_i step_i²) = step. That is an analogy and not a theorem:
    rounding is deterministic, and has no bound and no guarantee.

    Args:
        step: The root mean square of the steps.
        granularity: See `OptimalNoise`, as for `cap`, `floor`, `least` and `source`.
        estimator: How sensitivities are measured when the defense is called on a message.

    >>> import torch
    >>> from gradveil import Moments
    >>> moments = Moments(
    ...     {"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, input_size=2
    ... )
    >>> OptimalRounding(step=1.0).plan(moments).apply({"w": torch.tensor([3.3, -9.1])})
    {'w': tensor([ 3.7947, -8.8544])}
    """

    step: float
    _: KW_ONLY
    granularity: str = "parameter"
    cap: float = 100.0
    floor: float = 1e-4
    least: float = 0.25
    estimator: Estimator | str = "auto"
    source: Source | str = "model"

    def __post_init__(self) -> None:
        check_positive(self.step, "step")
        check_source(self)
        self._noise()

    @cached_property
    def about(self) -> About:
        return replace(super().about, family="rounding", amount="step", twin=Rounding)

    def shape(self, moments: Moments) -> Shape:
        """The optimal noise's."""
        return self._noise().shape(moments)

    def mechanism(self, shape: Shape, moments: Moments) -> RoundingMechanism:
        """The optimal noise's standard deviations as steps."""
        return RoundingMechanism(self._noise().mechanism(shape, moments).std)

    def _noise(self) -> OptimalNoise:
        return OptimalNoise(
            self.step,
            granularity=self.granularity,
            cap=self.cap,
            floor=self.floor,
            least=self.least,
        )
