"""What DLG and iDLG share: squared matching of the message, by L-BFGS from several starts."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import (
    check_count,
    check_not_negative,
    check_optional_callable,
    check_positive,
)
from gradveil._random import generator_or_fresh, normal_like
from gradveil._tensors import relative_misfit

from .._attack import Attack, Progress
from .._observation import Observation
from .._reconstruction import FINISHED
from ._lbfgs import Point, minimise_lbfgs
from ._optimise import Watch


@dataclass(frozen=True)
class LBFGSMatching(Attack):
    """Starts from standard normal variables, until one of them converges.

    Args:
        steps: L-BFGS iterations of one start, at most.
        restarts: Starts at most; the next is tried only if none before reached `tolerance`.
        tolerance: The relative cost at which a start counts as converged.
        start_scale: Standard deviation of the normal starts. The papers' 1 converges several times
            more slowly on their own network than 0.1.
        time_budget: Seconds after which the best so far is returned; `None`: no limit.
        progress: Called with (step, steps, cost) of the present start.
    """

    steps: int = 2000
    restarts: int = 3
    tolerance: float = 3e-8
    start_scale: float = 0.1
    time_budget: float | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_count(self.steps, "steps")
        check_count(self.restarts, "restarts")
        check_not_negative(self.tolerance, "tolerance")
        check_positive(self.start_scale, "start_scale")
        if self.time_budget is not None:
            check_not_negative(self.time_budget, "time_budget")
        check_optional_callable(self.progress, "progress", "Give a function, or None.")

    @property
    def work(self) -> float:
        """All iterations of all starts."""
        return float(self.steps * self.restarts)

    @property
    def reports(self) -> float:
        """Those of one start: mostly the first converges."""
        return float(self.steps)

    def _search(
        self,
        cost: Callable[..., Tensor],
        blanks: tuple[Tensor, ...],
        generator: torch.Generator | None,
    ) -> Point:
        """The best point of all starts by its own cost; `blanks` have the variables' shapes."""
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        points: list[Point] = []
        for _ in range(self.restarts):
            start = tuple(self.start_scale * normal_like(blank, generator) for blank in blanks)
            point = minimise_lbfgs(
                cost,
                start,
                steps=self.steps,
                watch=watch,
                tolerance=self.tolerance,
                progress=self.progress,
            )
            points.append(point)
            if point.cost <= self.tolerance or point.status != FINISHED:
                break
        best = min(points, key=lambda point: point.cost)
        history = [
            (i * self.steps + step, c) for i, p in enumerate(points) for step, c in p.history
        ]
        return Point(best.variables, best.cost, history, points[-1].status)


def blank_inputs(observation: Observation) -> Tensor:
    """Zeros in the shape of the private batch."""
    reference = next(iter(observation.sent.values()))
    return reference.new_zeros(observation.batch_size, *observation.input_shape)


def message_distance(observation: Observation, inputs: Tensor, targets: Tensor) -> Tensor:
    """‖g(x, y) - sent‖² / ‖sent‖²."""
    return relative_misfit(observation.message(targets)(inputs), observation.sent)
