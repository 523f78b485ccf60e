"""Quasi-Newton matching of the message, from several starts, as DLG and iDLG do it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradveil._random import normal_like
from gradveil._tensors import relative_misfit

from ._attack import (
    FINISHED,
    INTERRUPTED,
    TIME_BUDGET,
    Attack,
    Progress,
    Reconstruction,
    check_settings,
)
from ._descent import Watch, clamp
from ._observation import Observation
from ._targets import SoftTargets

_BLOCK = 20  # iterations between two looks at the watch by the outer loop


class _TimeIsUp(Exception):
    pass


@dataclass
class Point:
    """The best point so far."""

    variables: tuple[Tensor, ...]
    cost: float = float("inf")
    history: list[tuple[int, float]] = field(default_factory=list)
    status: str = FINISHED


def minimise_lbfgs(
    cost: Callable[..., Tensor],
    start: tuple[Tensor, ...],
    *,
    steps: int,
    watch: Watch,
    tolerance: float = 0.0,
    progress: Progress | None = None,
) -> Point:
    """Minimise cost(*variables) by L-BFGS with a strong Wolfe line search.

    Args:
        cost: To a 0-d tensor, differentiable; not finite means: step back.
        start: The variables at the start.
        steps: Iterations at most, of one or a few evaluations each.
        watch: Says when the time is up.
        tolerance: A cost that is good enough to stop.
        progress: Told after every block of iterations how far it is.
    """
    start = tuple(v.detach().clone(memory_format=torch.contiguous_format) for v in start)
    variables = tuple(v.clone().requires_grad_() for v in start)
    best = Point(start)
    optimiser = torch.optim.LBFGS(
        variables, max_iter=min(_BLOCK, steps), max_eval=4 * _BLOCK, history_size=100,
        tolerance_grad=0.0, tolerance_change=0.0, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        if watch.is_over() and best.cost < float("inf"):
            raise _TimeIsUp
        value = cost(*variables)
        gradients = torch.autograd.grad(value, variables)  # and of nothing else in the graph
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.grad = gradient
        value = value.detach()
        if float(value) < best.cost:
            best.cost = float(value)
            best.variables = tuple(v.detach().clone() for v in variables)
        return value

    try:
        _run(optimiser, closure, best, steps, tolerance, progress)
    except _TimeIsUp:
        best.status = TIME_BUDGET
    except KeyboardInterrupt:
        best.status = INTERRUPTED
    return best


def _run(
    optimiser: torch.optim.LBFGS,
    closure: Callable[[], Tensor],
    best: Point,
    steps: int,
    tolerance: float,
    progress: Progress | None,
) -> None:
    """Blocks of iterations, until the cost is low enough or does not fall any more."""
    for step in range(0, steps, _BLOCK):
        before = best.cost
        optimiser.step(closure)  # type: ignore[arg-type]
        best.history.append((min(step + _BLOCK, steps), best.cost))
        if progress is not None:
            progress(min(step + _BLOCK, steps), steps, best.cost)
        if best.cost <= tolerance or not best.cost < before:
            return


@dataclass(frozen=True)
class LBFGSMatching(Attack):
    """Starts from N(0, 0.1² I), until one of them converges.

    The papers' N(0, I) converges several times more slowly on their own network.

    Args:
        steps: L-BFGS iterations of one start, at most.
        restarts: Starts at most; the next is tried only if none before reached `tolerance`.
        tolerance: The relative cost at which a start counts as converged.
        time_budget: Seconds after which the best so far is returned; `None`: no limit.
        progress: Called with (step, steps, cost) of the present start.
    """

    steps: int = 2000
    restarts: int = 3
    tolerance: float = 3e-8
    time_budget: float | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_settings(self, counts=("steps", "restarts"), not_negative=("tolerance",))

    def _matched(
        self, observation: Observation, targets: SoftTargets | Tensor, generator: torch.Generator
    ) -> Reconstruction:
        """The best of all starts by its own cost, ‖g(x, y) - sent‖² / ‖sent‖².

        Targets that are not known are variables of the search as the inputs are.
        """
        like, watch = next(iter(observation.sent.values())), Watch(self.time_budget)
        blanks = [like.new_zeros(observation.batch_size, *observation.input_shape)]
        if isinstance(targets, SoftTargets):
            blanks.append(targets.blank)

        def cost(inputs: Tensor, *variables: Tensor) -> Tensor:
            own = targets.relaxed(*variables) if isinstance(targets, SoftTargets) else targets
            return relative_misfit(observation.message(own)(inputs), observation.sent)

        points: list[Point] = []
        for _ in range(self.restarts):
            start = tuple(0.1 * normal_like(blank, generator) for blank in blanks)
            point = minimise_lbfgs(
                cost, start, steps=self.steps, watch=watch, tolerance=self.tolerance,
                progress=self.progress,
            )  # fmt: skip
            points.append(point)
            if points[-1].cost <= self.tolerance or points[-1].status != FINISHED:
                break
        best = min(points, key=lambda point: point.cost)
        inputs, *variables = best.variables
        inputs = clamp(inputs, observation.low, observation.high)
        found = targets.settled(*variables) if isinstance(targets, SoftTargets) else targets
        history = [(n * self.steps + k, c) for n, p in enumerate(points) for k, c in p.history]
        return Reconstruction(inputs, found, best.cost, history, points[-1].status)
