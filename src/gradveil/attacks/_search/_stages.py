"""The finish along a falling width of the smooth twin, from several starts."""

from dataclasses import dataclass

from torch import Tensor

from .._evidence import Energy, Evidence
from .._observation import Observation
from .._reconstruction import FINISHED
from ._candidates import message_of
from ._optimise import Watch
from ._refine import Finish, Objective, Refined, refine
from ._smoothing import SmoothTwin

EXPLAINED = 1e-3
"""A relative misfit below which a start is taken to have found the truth."""
HOPELESS = 0.5
"""A relative misfit above which second-order steps from a start are not tried."""


@dataclass(frozen=True)
class Stages:
    """What all stages of a finish share."""

    observation: Observation
    labels: Tensor
    evidence: Evidence
    energy: Energy
    finish: Finish

    def objective(self, observation: Observation) -> Objective:
        """Of the model itself, or of its smooth twin."""
        message = message_of(observation)
        return Objective(lambda inputs: message(inputs, self.labels), self.evidence, self.energy)


def refine_in_stages(stages: Stages, starts: Tensor, watch: Watch) -> Refined | None:
    """The best of the starts after its finish; the next is tried while none explains the message.

    `None` where no start is near enough to the message for second-order steps to make sense.
    """
    best: Refined | None = None
    objective = stages.objective(stages.observation)
    for start in starts:
        if float(stages.evidence.misfit(objective.message(start))) > HOPELESS:
            continue
        refined = refine_one(stages, start, watch)
        if best is None or refined.cost < best.cost:
            best = refined
        explained = float(stages.evidence.misfit(objective.message(best.inputs))) < EXPLAINED
        if explained or refined.status != FINISHED:
            break
    return best


def refine_one(stages: Stages, start: Tensor, watch: Watch) -> Refined:
    """Through the widths and to the model itself; the start, if nothing on the way is better."""
    own = stages.objective(stages.observation)
    best = Refined(start, float(own(start)))
    smoothed = _along_widths(stages, start, watch)
    for begin in (smoothed.inputs, start):
        if smoothed.status != FINISHED:
            return Refined(best.inputs, best.cost, smoothed.status)
        refined = _steps(stages, own, begin, watch, 1e-3)
        better = refined if refined.cost < best.cost else best
        if better is refined or refined.status != FINISHED:
            return Refined(better.inputs, better.cost, refined.status)
    return best


def _along_widths(stages: Stages, start: Tensor, watch: Watch) -> Refined:
    """The smooth twin's minimum, followed as the width falls."""
    widths, refined = stages.finish.widths, Refined(start, float("inf"))
    twin = SmoothTwin(stages.observation, max(widths, default=1.0))
    smooth = stages.objective(twin.observation)
    for width in widths if twin.is_smoother else ():
        twin.set_width(width)
        refined = _steps(stages, smooth, refined.inputs, watch, 0.05)
        if refined.status != FINISHED:
            break
    return refined


def _steps(
    stages: Stages, objective: Objective, inputs: Tensor, watch: Watch, tolerance: float
) -> Refined:
    return refine(
        objective,
        inputs,
        steps=stages.finish.steps,
        products=stages.finish.products,
        low=stages.observation.low,
        high=stages.observation.high,
        watch=watch,
        tolerance=tolerance,
    )
