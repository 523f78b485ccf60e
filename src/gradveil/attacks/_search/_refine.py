"""The second-order finish: Levenberg-Marquardt steps with matrix-free products."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jvp, vjp

from gradveil._checks import check_count, check_kind, check_positive
from gradveil._solve import conjugate_gradients

from .._evidence import Energy, Evidence
from .._reconstruction import FINISHED, INTERRUPTED, TIME_BUDGET
from ._optimise import Watch, clamp

MessageOf = Callable[[Tensor], Tensor]
"""From the inputs to the message, all entries in one row."""


@dataclass(frozen=True)
class Finish:
    """How to finish: at most so many steps at each width of the smooth twin, then without it.

    Args:
        steps: Levenberg-Marquardt steps at each stage.
        products: At most so many products with the Gauss-Newton matrix for a step.
        widths: Of the smooth twin's activations, before the model itself.

    >>> Finish(steps=3).products
    25
    """

    steps: int = 5
    products: int = 25
    widths: tuple[float, ...] = (0.3, 0.1, 0.03, 0.01, 0.003)

    def __post_init__(self) -> None:
        check_count(self.steps, "steps")
        check_count(self.products, "products")
        check_kind(self.widths, "widths", (tuple, list), "Give numbers above 0.")
        for width in self.widths:
            check_positive(width, "widths")


@dataclass(frozen=True)
class Refined:
    """Where the steps ended: never a higher cost than at the start."""

    inputs: Tensor
    cost: float
    status: str = FINISHED


@dataclass(frozen=True)
class Objective:
    """f(x) = ½ Σ_i w_i dist(g_i(x), [low_i, high_i])² + E(x)."""

    message: MessageOf
    evidence: Evidence
    energy: Energy

    def __call__(self, inputs: Tensor) -> Tensor:
        """The cost."""
        return self.evidence.misfit(self.message(inputs)) + self.energy(inputs)


def refine(
    objective: Objective,
    start: Tensor,
    *,
    steps: int,
    products: int,
    low: Tensor | None = None,
    high: Tensor | None = None,
    watch: Watch | None = None,
    tolerance: float = 1e-6,
) -> Refined:
    """Minimise the objective from a start near the minimum, inside of [low, high].

    A step solves (Jᵀ W J + H + λI) s = -∇f with conjugate gradients on the entries that do not
    push against the range, W being the evidence's curvature and H the energy's. λ falls after a
    step that lowers the cost and rises after one that does not, which is then not taken. It ends
    after `steps`, or where a step lowers the cost by less than the share `tolerance`.
    """
    inputs, cost = start, float(objective(start))
    watch, damping, local = watch or Watch(None), 1e-3, None
    try:
        for _ in range(steps):
            if watch.is_over():
                return Refined(inputs, cost, TIME_BUDGET)
            local = local or _Quadratic(objective, inputs, low, high)
            trial = clamp(inputs + local.step(damping, products), low, high)
            trial_cost = float(objective(trial))
            if trial_cost < cost:
                settled = cost - trial_cost < tolerance * cost
                inputs, cost, damping, local = trial, trial_cost, max(damping / 5, 1e-9), None
                if settled:
                    break
            elif damping > 10:
                break
            else:
                damping *= 8
    except KeyboardInterrupt:
        return Refined(inputs, cost, INTERRUPTED)
    return Refined(inputs, cost)


class _Quadratic:
    """The Gauss-Newton model of the objective around some inputs."""

    def __init__(
        self, objective: Objective, inputs: Tensor, low: Tensor | None, high: Tensor | None
    ) -> None:
        self.message, self.inputs = objective.message, inputs
        values, self.pull_back = vjp(objective.message, inputs)[:2]
        values = values.detach()
        self.weight = objective.evidence.curvature(values)
        misfit = objective.evidence.slope(values)
        descent = -(self.pull_back(misfit)[0] + objective.energy.gradient(inputs))
        self.energy = objective.energy.curvature(inputs)
        self.free = _free(inputs, descent, low, high)
        self.right = descent * self.free
        self.scale = self._rayleigh()

    def multiply(self, direction: Tensor) -> Tensor:
        """(Jᵀ W J + H) v on the free entries."""
        tangent = jvp(self.message, (self.inputs,), (direction,))[1]
        pulled: Tensor = self.pull_back(self.weight * tangent)[0]
        return (pulled + self.energy(direction)) * self.free

    def step(self, damping: float, products: int) -> Tensor:
        """Conjugate gradients from 0, stopped where the residual has fallen by 100."""
        shift, shape = damping * self.scale, self.right.shape

        def multiply(rows: Tensor) -> Tensor:
            direction = rows.view(shape)
            return (self.multiply(direction) + shift * direction).view(rows.shape)

        row = self.right.reshape(1, -1)
        solution, _ = conjugate_gradients(multiply, row, tolerance=1e-2, max_steps=products)
        solution = solution.view(shape)
        return solution if bool(torch.isfinite(solution).all()) else torch.zeros_like(solution)

    def _rayleigh(self) -> float:
        """The curvature along the gradient, the unit of the damping."""
        size = self.right.square().sum()
        if not bool(size > 0):
            return 0.0
        return float((self.right * self.multiply(self.right)).sum() / size)


def _free(inputs: Tensor, descent: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    """1 where an entry can move along the descent direction, 0 where the range stops it."""
    free = torch.ones_like(inputs)
    if low is not None:
        free = free * ~((inputs <= low.to(inputs)) & (descent < 0))
    if high is not None:
        free = free * ~((inputs >= high.to(inputs)) & (descent > 0))
    return free
