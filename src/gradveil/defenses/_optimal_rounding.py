"""Rounding with a step of its own for each entry, in the shape of the optimal noise."""

from dataclasses import KW_ONLY, dataclass

from gradveil._checks import check_positive
from gradveil.mechanisms import RoundingMechanism
from gradveil.sensitivity import Estimator, Moments

from ._base import Defense
from ._optimal_noise import OptimalNoise
from ._planning import check_plan_from, takes_plan
from ._rounding import Rounding


@takes_plan
@dataclass(frozen=True)
class OptimalRounding(Defense):
    """y_i = step_i · round(g_i / step_i) with step_i² ∝ √(E‖∇_x g_i‖² / E g_i²).

    A grid of step a errs like noise of variance a²/12, so the steps follow the standard deviations
    of the optimal noise, with √(mean_i step_i²) = step. That is an analogy and not a theorem:
    rounding is deterministic, and has no bound and no guarantee.

    Args:
        step: The root mean square of the steps.
        granularity: See `OptimalNoise`, as for `cap`, `floor` and `least`.
        estimator: How sensitivities are measured when the defense is called on a message.
        plan: "model" or "private": what the steps are made from; see `OptimalNoise`.

    >>> import torch
    >>> from gradveil import Moments
    >>> moments = Moments(
    ...     {"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, input_size=2
    ... )
    >>> OptimalRounding(step=1.0).plan(moments).apply({"w": torch.tensor([3.3, -9.1])})
    {'w': tensor([ 3.7947, -8.8544])}
    """

    label = "optimal rounding"
    family = "rounding"
    amount_name = "step"
    twin = Rounding

    step: float
    _: KW_ONLY
    granularity: str = "parameter"
    cap: float = 100.0
    floor: float = 1e-4
    least: float = 0.25
    estimator: Estimator | str = "auto"
    plan_from: str = "model"

    def __post_init__(self) -> None:
        check_positive(self.step, "step")
        check_plan_from(self.plan_from)
        self._noise()

    def plan(self, moments: Moments) -> RoundingMechanism:
        """The optimal noise's standard deviations as steps."""
        std = self._noise().plan(moments).std
        return RoundingMechanism(std)

    def _noise(self) -> OptimalNoise:
        return OptimalNoise(
            self.step,
            granularity=self.granularity,
            cap=self.cap,
            floor=self.floor,
            least=self.least,
        )
