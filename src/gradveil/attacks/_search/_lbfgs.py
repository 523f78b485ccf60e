"""Quasi-Newton minimisation that can be stopped and keeps its best point."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .._attack import Progress
from .._reconstruction import FINISHED, INTERRUPTED, TIME_BUDGET
from ._optimise import Watch

_MEMORY = 100
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
        variables, max_iter=min(_BLOCK, steps), max_eval=4 * _BLOCK, history_size=_MEMORY,
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
