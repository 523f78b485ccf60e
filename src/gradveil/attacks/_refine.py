"""The second-order finish: Levenberg-Marquardt steps with matrix-free products."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.func import jacfwd, jvp, vjp, vmap

from gradveil._checks import check_count, check_kind, check_positive
from gradveil._tensors import conjugate_gradients

from ._attack import FINISHED, INTERRUPTED, TIME_BUDGET
from ._descent import Point, Watch, clamp, message_of
from ._matching import Evidence
from ._model_layers import SmoothTwin
from ._observation import Observation
from ._priors import START, Denoised, Energy


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
class Objective:
    """f(x) = ½ Σ_i w_i dist(g_i(x), [low_i, high_i])² + E(x), in a range if there is one."""

    message: Callable[[Tensor], Tensor]
    """From the inputs to the message, all entries in one row."""
    evidence: Evidence
    energy: Energy
    low: Tensor | None = None
    high: Tensor | None = None

    def __call__(self, inputs: Tensor) -> Tensor:
        return self.evidence.misfit(self.message(inputs)) + self.energy(inputs)


def refine(
    objective: Objective,
    start: Tensor,
    *,
    steps: int,
    products: int,
    watch: Watch | None = None,
    tolerance: float = 1e-6,
) -> Point:
    """Minimise the objective from a start near the minimum, inside of its range.

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
                return Point(inputs, cost, TIME_BUDGET)
            local = local or _Quadratic(objective, inputs)
            trial = inputs + local.step(damping, products)
            trial = clamp(trial, objective.low, objective.high)
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
        return Point(inputs, cost, INTERRUPTED)
    return Point(inputs, cost)


class _Quadratic:
    """The Gauss-Newton model of the objective around some inputs."""

    def __init__(self, objective: Objective, inputs: Tensor) -> None:
        self.message, self.inputs = objective.message, inputs
        values, self.pull_back = vjp(objective.message, inputs)[:2]
        values = values.detach()
        self.weight = objective.evidence.curvature(values)
        misfit = objective.evidence.slope(values)
        descent = -(self.pull_back(misfit)[0] + objective.energy.gradient(inputs))
        self.energy = objective.energy.curvature(inputs)
        self.free = torch.ones_like(inputs)  # 0 where the range stops an entry that would move
        if objective.low is not None:
            self.free = self.free * ~((inputs <= objective.low.to(inputs)) & (descent < 0))
        if objective.high is not None:
            self.free = self.free * ~((inputs >= objective.high.to(inputs)) & (descent > 0))
        self.right = descent * self.free
        # the unit of the damping is the curvature along the gradient
        size, along = self.right.square().sum(), (self.right * self.multiply(self.right)).sum()
        self.scale = float(along / size) if bool(size > 0) else 0.0

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
        message, seen = message_of(observation, self.labels), self.observation
        return Objective(message, self.evidence, self.energy, seen.low, seen.high)

    def misfit(self, inputs: Tensor) -> float:
        """Of the model's own message."""
        return float(self.evidence.misfit(message_of(self.observation, self.labels)(inputs)))


def refine_in_stages(
    stages: Stages,
    starts: Iterable[Tensor],
    watch: Watch,
    enough: Callable[[Tensor], bool],
    best: Point | None = None,
) -> Point | None:
    """The best of the starts after its finish; the next is tried while the best is not enough."""
    for start in starts:
        refined = refine_one(stages, start, watch)
        if best is None or refined.cost < best.cost:
            best = refined
        best = replace(best, status=refined.status)
        if refined.status != FINISHED or enough(best.inputs):
            break
    return best


def refine_one(stages: Stages, start: Tensor, watch: Watch) -> Point:
    """Through the widths and to the model itself; the start, if nothing on the way is better."""
    own, finish = stages.objective(stages.observation), stages.finish
    best, smoothed = Point(start, float(own(start))), Point(start, float("inf"))
    twin = SmoothTwin(stages.observation, 1.0)
    smooth = stages.objective(twin.observation)

    improved = partial(refine, steps=finish.steps, products=finish.products, watch=watch)
    for width in finish.widths if twin.is_smoother else ():  # the minimum is followed as it falls
        twin.set_width(width)
        smoothed = improved(smooth, smoothed.inputs, tolerance=0.05)
        if smoothed.status != FINISHED:
            return replace(best, status=smoothed.status)
    for begin in (smoothed.inputs, start):
        refined = improved(own, begin, tolerance=1e-3)
        if refined.cost < best.cost:
            return refined
        if refined.status != FINISHED:
            return replace(best, status=refined.status)
    return best


def split(stages: Stages, energy: Denoised, start: Tensor, watch: Watch) -> Point:
    """Half-quadratic splitting along falling levels τ: x ← argmin misfit + ‖x - D(x, τ)‖² / 2τ².

    One second-order step for each level: the next goes on from there. A network with kinks is
    replaced by its smooth twin, whose width falls, but in the last fit. The result is D of the last
    fit, nearer to the posterior's mean than to its mode. The start is kept where that explains the
    message worse than noise allows: by one unit of misfit for each entry of the inputs.
    """
    first, last = 0.3, 0.003
    twin = SmoothTwin(stages.observation, first)
    own = stages.objective(stages.observation)
    if energy.level is None:
        energy = replace(energy, level=_level(own, start))
    inputs, levels = start, energy.levels()
    for number, level in enumerate(levels):
        twin.set_width(first * (last / first) ** (number / len(levels)))
        objective = own if number == len(levels) - 1 else stages.objective(twin.observation)
        near = replace(energy, level=level).near(inputs)
        fit = replace(objective, energy=near)
        refined = refine(fit, inputs, steps=1, products=stages.finish.products, watch=watch)
        inputs = refined.inputs
        if refined.status != FINISHED:
            return Point(start, float(own(start)), refined.status)
    inputs = clamp(energy.guess(inputs), stages.observation.low, stages.observation.high)
    worse = stages.misfit(inputs) - stages.misfit(start)
    kept = inputs if worse < inputs.numel() else start
    return Point(kept, float(own(kept)))


def _level(objective: Objective, inputs: Tensor) -> float:
    """1 / √λ, λ the largest eigenvalue of the message's information here, by power iteration."""
    values, pull_back = vjp(objective.message, inputs)[:2]
    weight = objective.evidence.curvature(values.detach())
    row, value = torch.ones_like(inputs), 0.0
    for _ in range(15):
        row = row / row.norm()
        row = pull_back(weight * jvp(objective.message, (inputs,), (row,))[1])[0]
        value = float(row.norm())
        if not 0 < value < float("inf"):
            return START
    return float(value**-0.5)


def least_squares(
    residuals: Callable[[Tensor], Tensor],
    rows: Tensor,
    *,
    steps: int,
    watch: Watch,
    tolerance: float = 1e-3,
    good: float = 0.0,
    longest: float = math.inf,
) -> tuple[Tensor, Tensor]:
    """Minima of Σ residuals² from several starts beside each other, and their values.

    Small problems, with whole Jacobians. It ends after `steps`, where one is below `good`, or where
    no step lowers its sum by more than the share `tolerance`; no step is longer than `longest`.

    >>> found, costs = least_squares(
    ...     lambda x: x.square() - 4, torch.tensor([[1.0, -3.0]]), steps=20, watch=Watch(None))
    >>> found.round(decimals=2).tolist(), float(costs) < 1e-6
    ([[2.0, -2.0]], True)
    """
    evaluate = vmap(residuals)
    values, damping = evaluate(rows), torch.full_like(rows[:, :1], 1e-2)
    costs = values.square().sum(1).nan_to_num(torch.inf)
    for _ in range(steps):
        if watch.is_over() or float(costs.min()) < good:
            break
        jacobians: Tensor = vmap(jacfwd(residuals))(rows)
        back = jacobians.transpose(1, 2)
        matrices, slopes = back @ jacobians, back @ values[:, :, None]
        sizes = matrices.diagonal(dim1=1, dim2=2)
        sizes = sizes + 1e-4 * sizes.mean(1, keepdim=True)
        before, waits = costs, torch.ones_like(costs).bool()
        for _ in range(5):  # shorter and shorter
            if watch.is_over() or not bool(waits.any()):
                break
            shifted = matrices + torch.diag_embed(damping * sizes)
            moves = torch.linalg.solve_ex(shifted, slopes)[0][:, :, 0].nan_to_num()
            lengths = moves.norm(dim=1, keepdim=True)
            tried = rows - moves * (longest / lengths).clamp(max=1)
            found = evaluate(tried)
            sums = found.square().sum(1).nan_to_num(torch.inf)
            helps = waits & (sums < costs)
            taken, waits = helps[:, None], waits & ~helps
            damping = torch.where(taken, (damping / 5).clamp(min=1e-10), damping)
            damping = torch.where(waits[:, None], damping * 5, damping)
            rows, values = torch.where(taken, tried, rows), torch.where(taken, found, values)
            costs = torch.where(helps, sums, costs)
        if bool((before - costs < tolerance * before).all()):
            break
    return rows, costs
