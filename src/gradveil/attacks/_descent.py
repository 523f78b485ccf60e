"""Minimisation: of many candidates at once, or by quasi-Newton steps; and where they start."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from gradveil._tensors import flatten
from gradveil.messages import trainable_parameters
from gradveil.scoring import match

from ._attack import FINISHED, INTERRUPTED, TIME_BUDGET, Progress
from ._observation import Observation

Cost = Callable[..., Any]
"""(candidate, progress, *data) to what is minimised, a 0-d tensor, or to a pair of that and the
attack's own yardstick, by which the best iterate is picked. `progress` runs from 0 to 1."""

SETTLED = 7 / 8
"""From this share of the steps on nothing is annealed, and iterates are comparable."""


@dataclass(frozen=True)
class Descent:
    """How to descend: the update rule, its rate, and how long.

    Args:
        method: "signed-adam" (Adam on the signs of the gradient) or "adam".
        decay: "steps" (× 0.1 after 3/8, 5/8 and 7/8 of the steps), "cosine" or "none".
        settled: From this share of the steps on iterates compete by their own costs. Before it,
            where an annealed cost is not yet the final one, the latest one counts as the best.
    """

    steps: int = 1000
    lr: float = 0.2
    method: str = "signed-adam"
    decay: str = "steps"
    time_budget: float | None = None
    settled: float = 0.0

    def rate(self, progress: float) -> float:
        """The rate when this share of the steps is done."""
        if self.decay == "steps":
            return self.lr * 0.1 ** sum(progress >= share for share in (3 / 8, 5 / 8, 7 / 8))
        if self.decay == "cosine":
            return self.lr * (0.5 + 0.5 * float(torch.cos(torch.tensor(torch.pi * progress))))
        return self.lr


@dataclass
class Point:
    inputs: Tensor
    cost: float = float("inf")
    status: str = FINISHED


@dataclass
class Minimum:
    """The best iterate of each candidate, by its own cost."""

    inputs: Tensor
    costs: Tensor
    status: str = FINISHED

    @property
    def best(self) -> Point:
        place = self.costs.argmin()
        return Point(self.inputs[place], float(self.costs[place]), self.status)

    def beside(self, other: "Minimum") -> "Minimum":
        """The candidates of both; the first status that says that one did not finish."""
        status = other.status if self.status == FINISHED else self.status
        inputs = torch.cat([self.inputs, other.inputs])
        return Minimum(inputs, torch.cat([self.costs, other.costs]), status)


class Watch:
    """Says when to stop: the time budget, counted from when the watch was made."""

    def __init__(self, time_budget: float | None) -> None:
        self._start, self._budget = time.monotonic(), time_budget

    def left(self) -> float | None:
        """Seconds left; `None`: no limit."""
        if self._budget is None:
            return None
        return max(0.0, self._start + self._budget - time.monotonic())

    def is_over(self) -> bool:
        return self.left() == 0.0

    def share(self) -> float:
        """How much of the budget is spent, from 0 to 1; 0: no limit."""
        left = self.left()
        return 0.0 if left is None else 1 - left / self._budget if self._budget else 1.0

    def part(self, share: float) -> "Watch":
        """A watch for the next part of the work: that share of what is left."""
        left = self.left()
        return Watch(None if left is None else share * left)


def minimise(
    cost: Cost,
    start: Tensor,
    descent: Descent,
    *,
    data: tuple[Tensor, ...] = (),
    low: Tensor | None = None,
    high: Tensor | None = None,
    progress: Progress | None = None,
) -> Minimum:
    """Minimise cost(candidate, progress, *data) for each candidate, clamped to [low, high].

    The cost of one candidate must not depend on others; `data` has a row for each of them. Stopped
    by the time budget or by Ctrl-C, it returns the best so far, and says so. With a time budget,
    rates and annealing follow the time where that is ahead of the steps.
    """
    watch, evaluate = Watch(descent.time_budget), _evaluator(cost)
    best = Minimum(start.clone(), torch.full_like(start.flatten(1)[:, 0], torch.inf))
    now, update = start, _adam(descent.method, start)
    try:
        for step in range(descent.steps + 1):
            share = max(step / descent.steps, watch.share())
            gradient, own = evaluate(now, share, *data)
            better = own.isfinite() if share <= descent.settled else own < best.costs
            best.inputs = torch.where(better.view(-1, *[1] * (now.dim() - 1)), now, best.inputs)
            best.costs = torch.where(better, own.to(best.costs), best.costs)
            if progress is not None:
                progress(step, descent.steps, float(best.costs.min()))
            if step == descent.steps or watch.is_over():
                break
            now = clamp(now - update(gradient, descent.rate(share)), low, high)
        best.status = FINISHED if step == descent.steps else TIME_BUDGET
    except KeyboardInterrupt:
        best.status = INTERRUPTED
    return best


def minimise_lbfgs(
    cost: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    steps: int,
    watch: Watch,
    tolerance: float = 0.0,
    progress: Progress | None = None,
) -> Point:
    """Minimise the cost by L-BFGS with a strong Wolfe line search, until it does not fall any more.

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
            raise TimeoutError
        value = cost(now)
        (now.grad,) = torch.autograd.grad(value, now)  # and of nothing else in the graph
        value = value.detach()
        if float(value) < best.cost:
            best.cost, best.inputs = float(value), now.detach().clone()
        return value

    try:
        for step in range(0, steps, 20):
            before = best.cost
            optimiser.step(closure)  # type: ignore[arg-type]
            if progress is not None:
                progress(min(step + 20, steps), steps, best.cost)
            if best.cost <= tolerance or not best.cost < before:
                break
    except TimeoutError:
        best.status = TIME_BUDGET
    except KeyboardInterrupt:
        best.status = INTERRUPTED
    return best


def clamp(inputs: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    """The inputs moved into the range, as far as it is known."""
    if low is not None:
        inputs = inputs.clamp(min=low.to(inputs))
    return inputs if high is None else inputs.clamp(max=high.to(inputs))


def _adam(method: str, like: Tensor) -> Callable[[Tensor, float], Tensor]:
    """(gradient, rate) to what Adam (Kingma and Ba, 2015) subtracts; on signs, if so called."""
    mean, square, steps = torch.zeros_like(like), torch.zeros_like(like), 0

    def update(gradient: Tensor, rate: float) -> Tensor:
        nonlocal mean, square, steps
        gradient = torch.nan_to_num(gradient)
        if method == "signed-adam":
            gradient = gradient.sign()
        steps += 1
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient.square()
        spread = (square / (1 - 0.999**steps)).sqrt() + 1e-8
        return rate * (mean / (1 - 0.9**steps)) / spread

    return update


def _evaluator(cost: Cost) -> Callable[..., tuple[Tensor, Tensor]]:
    """Gradients and own costs of all candidates: one after the other, or from one batched pass.

    On a processor the transforms cost more than they save, but for many small candidates.
    """

    def paired(candidate: Tensor, share: float, *data: Tensor) -> tuple[Tensor, Tensor]:
        result = cost(candidate, share, *data)
        return result if isinstance(result, tuple) else (result, result)

    def alone(candidate: Tensor, share: float, *data: Tensor) -> tuple[Tensor, Tensor]:
        candidate = candidate.detach().requires_grad_()
        with torch.enable_grad():
            value, own = paired(candidate, share, *data)
        return torch.autograd.grad(value, candidate)[0], own.detach()

    def evaluate(candidates: Tensor, share: float, *data: Tensor) -> tuple[Tensor, Tensor]:
        many = len(candidates) > 1
        if candidates.device.type == "cpu":
            many = len(candidates) >= 4 and candidates[0].numel() <= 4096
        if not many:
            pairs = [alone(row, share, *rest) for row, *rest in zip(candidates, *data, strict=True)]
            gradients, owns = zip(*pairs, strict=True)
            return torch.stack(gradients), torch.stack(owns)
        batched = vmap(
            lambda candidate, *rows: grad_and_value(paired, has_aux=True)(candidate, share, *rows),
            randomness="same",
        )
        gradients, (_, own) = batched(candidates, *data)
        return gradients, own.detach()

    return evaluate


def message_of(observation: Observation, labels: Tensor) -> Callable[[Tensor], Tensor]:
    """From inputs to the message that they would make with these labels, in one row."""
    message = observation.message(labels)
    return lambda inputs: flatten(message(inputs))


def sent_row(observation: Observation) -> Tensor:
    """What was sent, in the order of the message's names."""
    names = trainable_parameters(observation.model)
    return flatten({name: observation.sent[name] for name in names})


def consensus(seeds: Tensor, labels: Tensor) -> Tensor:
    """For each seed the mean over seeds, whose images are matched first, in its own order."""
    orders = [order_like(seed, seeds[0], labels) for seed in seeds]
    mean = torch.stack([seed[order] for seed, order in zip(seeds, orders, strict=True)]).mean(0)
    return torch.stack([mean[order.argsort()] for order in orders])


def order_like(seed: Tensor, reference: Tensor, labels: Tensor) -> Tensor:
    """The images of a seed in the reference's order, exchanged only within a label (or target)."""
    order = torch.arange(len(labels), device=labels.device)
    rows = labels.reshape(len(labels), -1)
    for row in rows.unique(dim=0):
        places = torch.nonzero((rows == row).all(1)).flatten()
        if len(places) > 1:
            order[places] = places[match(seed[places], reference[places])]
    return order
