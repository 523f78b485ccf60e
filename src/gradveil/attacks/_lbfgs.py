"""Quasi-Newton steps with a strong Wolfe line search, as DLG, iDLG and CAFE take them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ._attack import FINISHED, INTERRUPTED, TIME_BUDGET, Progress
from ._descent import Watch


class _TimeIsUp(Exception):
    pass


@dataclass
class Point:
    """The best point so far."""

    inputs: Tensor
    cost: float = float("inf")
    history: list[tuple[int, float]] = field(default_factory=list)
    status: str = FINISHED


def minimise_lbfgs(
    cost: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    steps: int,
    watch: Watch,
    tolerance: float = 0.0,
    progress: Progress | None = None,
) -> Point:
    """Minimise the cost by L-BFGS, until it is low enough or does not fall any more.

    One that is not finite means a step back; `tolerance` is good enough to stop.
    """
    now = start.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
    best = Point(now.detach().clone())
    optimiser = torch.optim.LBFGS(
        [now], max_iter=min(20, steps), max_eval=80, history_size=100,
        tolerance_grad=0.0, tolerance_change=0.0, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        if watch.is_over() and best.cost < float("inf"):
            raise _TimeIsUp
        value = cost(now)
        (now.grad,) = torch.autograd.grad(value, now)  # and of nothing else in the graph
        value = value.detach()
        if float(value) < best.cost:
            best.cost, best.inputs = float(value), now.detach().clone()
        return value

    try:
        for step in range(0, steps, 20):
            before, done = best.cost, min(step + 20, steps)
            optimiser.step(closure)  # type: ignore[arg-type]
            best.history.append((done, best.cost))
            if progress is not None:
                progress(done, steps, best.cost)
            if best.cost <= tolerance or not best.cost < before:
                break
    except _TimeIsUp:
        best.status = TIME_BUDGET
    except KeyboardInterrupt:
        best.status = INTERRUPTED
    return best
