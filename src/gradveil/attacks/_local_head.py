"""The equations of a model's head along FedAvg's local steps, or in a gradient: one step."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradveil._random import normal_like
from gradveil._tensors import Tensors
from gradveil.messages import LocalSteps

from ._head import CLEAR, ROUGH, Head, head_of
from ._last_layer import outputs_of_last_layer
from ._model_layers import features_of, random_examples
from ._refine import least_squares
from ._targets import Run

GRADIENT = LocalSteps(1.0, 1)
"""The steps of which a gradient is the weight change, but for its sign."""
MOST = 3000
"""Unknowns from which on whole Jacobians take too much time and memory."""


@dataclass(frozen=True)
class Visits:
    """A visit is one example in one local step; tables of visits are in the order of the steps.

    >>> visits = Visits.of(LocalSteps(lr=0.1, steps=3, batch_size=2), 4)
    >>> [part.tolist() for part in visits.alike], len(visits), visits.cover(4)
    ([[[0, 4], [1, 5]], [[2], [3]]], 6, True)
    """

    steps: list[Tensor]
    """The examples of each step."""
    rows: list[Tensor]
    """The rows of a table of visits that belong to each step."""
    alike: list[Tensor]
    """Of each mini-batch the rows of its examples, which the same steps take: (examples, times)."""

    @classmethod
    def of(cls, local: LocalSteps, examples: int) -> "Visits":
        """Mini-batches in order, and again from the start after the last."""
        parts = torch.arange(examples).split(local.batch_size or examples)
        steps = [parts[step % len(parts)] for step in range(local.steps)]
        sizes = [len(step) for step in steps]
        rows = list(torch.arange(sum(sizes)).split(sizes))
        visited = range(min(len(parts), local.steps))
        return cls(steps, rows, [torch.stack(rows[n :: len(parts)], 1) for n in visited])

    def __len__(self) -> int:
        return sum(len(step) for step in self.steps)

    def cover(self, examples: int) -> bool:
        """Whether each of so many examples is visited."""
        return sum(len(part) for part in self.alike) == examples


class Expected:
    """A normal distribution of the coordinates of each example's visits, fitted to simulated ones.

    Examples that are visited by the same steps share their covariance, which is widened by the
    share `ridge` of its mean variance in all directions.
    """

    def __init__(self, simulated: Tensor, visits: Visits, ridge: float) -> None:
        self.mean = simulated.mean(0)
        centred = simulated - self.mean
        self._groups: list[tuple[Tensor, Tensor]] = []
        for group in visits.alike:
            rows = centred[:, group].transpose(0, 1).flatten(2).flatten(0, 1)
            covariance = rows.T @ rows / len(rows)
            covariance.diagonal().add_(ridge * covariance.diagonal().mean())
            self._groups.append((group, torch.linalg.cholesky(covariance)))

    def residuals(self, places: Tensor) -> Tensor:
        """Of coordinates, with a mean square of 1 where they are as expected; one row."""
        shifted, parts = places - self.mean, []
        for group, factor in self._groups:
            rows = shifted[group].flatten(1).T
            parts.append(torch.linalg.solve_triangular(factor, rows, upper=False).flatten())
        row: Tensor = torch.cat(parts) / places.numel() ** 0.5
        return row

    def draw(self, share: float, generator: torch.Generator) -> Tensor:
        """The mean and a share of a deviation from it."""
        drawn = self.mean.clone()
        for group, factor in self._groups:
            noise = factor @ normal_like(factor.new_empty(len(factor), len(group)), generator)
            drawn[group] += share * noise.T.reshape(*group.shape, -1)
        return drawn


class LocalHead:
    """What a weight change says of the first linear layer u = W h + b and of all after it.

    Visit v has the features h_v and δ_v = ∂L/∂u_v at the parameters of its step. The layer's change

        W_T - W_0 = -lr Σ_v δ_v h_vᵀ    (without momentum)

    has at most as many singular values as there are visits, and where their number is less than
    the layer is wide, the features lie in the span of its rows B: h_v = B m_v. In the coordinates
    m_v the layer is a small one with the weight W_0 B, and its training can be played again with
    the later layers, which gives one equation for each entry that was sent of them. How the layers
    before changed does not matter: it is in the features.

    Unknown are the m_v, and the δ_v beside them: one that is not what the model makes of its
    outputs is a residual of its own. So a unit on the wrong side of a kink spoils its own equation,
    and not all steps after it. Of a single step the δ_v are left to the model where the layer is so
    wide that they would be too many.
    """

    def __init__(self, head: Head, labels: Tensor, visits: Visits) -> None:
        local = head.observation.local
        self.head, self.visits, self.local = head, visits, local or GRADIENT
        self.labels = [labels[step] for step in visits.steps]
        sign = 1 if local else -1
        change, rank = sign * head.weight, len(visits)
        sizes, rows = torch.linalg.svd(change, full_matrices=False)[1:]
        if self.local.steps > 1:
            rank = int((sizes[:rank] > 3 * sizes[rank]).sum())
        self.basis = rows[:rank]
        self.later = {name: head.loss.parameters[name].detach() for name in head.later}
        self.weight = head.layer.weight.detach() @ self.basis.T
        bias = head.layer.bias
        self.bias = self.weight.new_zeros(len(self.weight)) if bias is None else bias.detach()
        self.sent = {name: sign * head.observation.sent[name] for name in self.later}
        if head.bias is not None:
            self.sent["own bias"] = sign * head.bias
        self.sent["own weight"] = change @ self.basis.T
        self.unit = 1.0
        room = len(visits) * (rank + len(self.weight)) <= MOST
        self.is_free = room or self.local.steps > 1

    @property
    def layer(self) -> str:
        """The name of the one whose inputs are the features."""
        return self.head.call.name

    @property
    def rank(self) -> int:
        """Of the layer's change: the number of coordinates of a visit."""
        return len(self.basis)

    @property
    def unknowns(self) -> int:
        """The coordinates and the δ of all visits."""
        return len(self.visits) * (self.rank + self.is_free * len(self.weight))

    def start(self, places: Tensor) -> Tensor:
        """The unknowns in one row: these coordinates, and the δ that they lead to."""
        if not self.is_free:
            return places.flatten()
        slopes = self.played(places)[1]
        return torch.cat([places.flatten(), (slopes / self.unit).flatten()])

    def measure(self, places: Tensor) -> None:
        """Take the size of δ at these coordinates for its unit."""
        self.unit = float(self.played(places)[1].square().mean().sqrt())

    def places(self, row: Tensor) -> Tensor:
        """The coordinates m of all visits, out of the unknowns."""
        return row[: len(self.visits) * self.rank].view(len(self.visits), self.rank)

    def residuals(self, row: Tensor) -> Tensor:
        """Of all equations, in one row: each part relative to its own size."""
        places = self.places(row)
        slopes = row[places.numel() :].view(len(places), -1) * self.unit if self.is_free else None
        changes, own = self.played(places, slopes)
        parts = [(changes[n] - sent).flatten() / sent.norm() for n, sent in self.sent.items()]
        if slopes is not None:
            parts.append((slopes - own).flatten() / (self.unit * slopes.numel() ** 0.5))
        return torch.cat(parts)

    def outputs(self, places: Tensor) -> Tensor:
        """U of all visits of a single step."""
        outputs: Tensor = places @ self.weight.T + self.bias
        return outputs

    def played(self, places: Tensor, slopes: Tensor | None = None) -> tuple[Tensors, Tensor]:
        """The changes of the head's parameters, and the δ of the model, by playing the steps again.

        The layer itself moves by `slopes` in place of the model's δ if they are given.
        """
        now: Tensors = {**self.later, "own weight": self.weight, "own bias": self.bias}
        begun, moving, deltas = now, {name: torch.zeros_like(p) for name, p in now.items()}, []
        for rows, labels in zip(self.visits.rows, self.labels, strict=True):
            own = places[rows]
            outputs = own @ now["own weight"].T + now["own bias"]
            later = {name: now[name] for name in self.later}
            gradient, delta = self.head.gradients(outputs, labels, later)
            deltas.append(delta)
            delta = delta if slopes is None else slopes[rows]
            gradient = {**gradient, "own weight": delta.T @ own, "own bias": delta.sum(0)}
            if "own bias" not in self.sent:
                gradient["own bias"] = torch.zeros_like(self.bias)
            moving = {name: self.local.momentum * moving[name] + gradient[name] for name in now}
            now = {name: now[name] - self.local.lr * moving[name] for name in now}
        return {name: now[name] - begun[name] for name in now}, torch.cat(deltas)


SOLVED = 1e-9
"""The squared residual of the head's equations that counts as 0."""
ALMOST = 1e-2
"""That of inputs from whose own training the model's own equations are tried at once."""


@dataclass(frozen=True)
class LocalSearch:
    """Solves the equations of a `LocalHead`: smooth activations, and much weight on `Expected`.

    Both fall together, to the model's own activations and to the equations alone.
    """

    run: Run
    local: LocalHead

    @classmethod
    def of(cls, run: Run, share: float = 1.0) -> "LocalSearch | None":
        """In a share of the time where that is rough or takes long; `None`: there is no head.

        That is where noise or pruning hide its rank, or a step moves others after it unseen.
        """
        seen = run.observation
        visits = Visits.of(seen.local or GRADIENT, seen.batch_size)
        if not visits.cover(seen.batch_size):
            return None
        head = head_of(seen, run.generator, CLEAR if seen.local else ROUGH, visits=len(visits))
        if head is None or (len(visits.steps) > 1 and not head.is_all):
            return None
        local = LocalHead(head, run.labels, visits)
        if local.unknowns > MOST:
            return None
        if seen.local or head.noise > 0:
            run = replace(run, watch=run.watch.part(share))
        return cls(run, local)

    def solve(self, guess: Tensor | None) -> tuple[Tensor, float]:
        """The coordinates of all visits, and the squared residual that is left.

        They start from the features that a guess of the inputs has in its own training, or, at
        larger widths of the activations, from nothing. Of a gradient the last layer alone is tried
        before: of trained models it is the easier problem.
        """
        local, run = self.local, self.run
        generator = run.generator
        if guess is None and run.observation.local is None and local.head.noise == 0:
            outputs = outputs_of_last_layer(local.head, run.labels, generator, run.watch)
            if outputs is not None:
                places = local.head.features(outputs, run.labels)[0] @ local.basis.T
                local.measure(places)
                found = self._end(local.start(places))
                if found[1] < ALMOST:
                    return found
        simulated = self.simulate(local.basis, guess)
        expected = Expected(simulated, local.visits, 0.1 if guess is None else 0.02)
        if guess is None:
            local.head.twin.set_width(2.0 * self._scale)
            local.measure(expected.mean)
            row = local.start(expected.draw(0.3, generator))
            return self._end(self._anneal(row, expected, 2.0, 0.7, 12, 0.1))
        local.head.twin.set_width(1e-9)
        row = local.start(self.features(guess) @ local.basis.T)
        local.head.sharpen()
        if float(local.residuals(row).square().sum()) < ALMOST:
            found = self._end(row)
            if found[1] < SOLVED:
                return found
        return self._end(self._anneal(row, expected, 0.13, 0.5, 5, 0.01))

    def features(self, inputs: Tensor) -> Tensor:
        """Of all visits in double precision; shape (visits, features)."""
        found = []
        for examples, parameters in self.walk(inputs):
            features = features_of(self.local.layer, self.run.observation, parameters)
            with torch.no_grad():
                found.append(features(inputs[examples]))
        return torch.cat(found).double()

    def walk(self, inputs: Tensor) -> Iterator[tuple[Tensor, Tensors]]:
        """Play the local steps: each one's examples, and the parameters that it starts from.

        `inputs` may be filled in on the way: a step reads its own when the next one is asked for.
        """
        seen = self.run.observation
        local = seen.local or GRADIENT
        message = local.message(seen.model, seen.loss_fn, self.run.labels)
        now = message.parameters
        moving = {name: torch.zeros_like(value) for name, value in now.items()}
        for number, examples in enumerate(self.local.visits.steps):
            if number > 0:
                before = self.local.visits.steps[number - 1]
                gradient = message.gradient_at(now, self.run.labels[before])(inputs[before])
                now, moving = message.advance(now, moving, gradient)
            now = {name: value.detach() for name, value in now.items()}
            yield examples, now

    def at(self, parameters: Tensors, examples: int) -> Run:
        """The run with the model's parameters of a step, of so many examples."""
        seen = self.run.observation
        model = copy.deepcopy(seen.model)
        with torch.no_grad():
            for name, own in model.named_parameters():
                own.copy_(parameters.get(name, own))
        moved = replace(seen, model=model, batch_size=examples, labels=None, label_counts=None)
        return replace(self.run, observation=moved)

    def simulate(
        self, basis: Tensor, around: Tensor | None, count: int = 48, share: float = 0.3
    ) -> Tensor:
        """Coordinates of random batches' features in the basis; shape (batches, visits, rank).

        `around`: inputs to which only this share of the random ones is added.
        """
        run, found = self.run, []
        seen = run.observation
        for number in range(count):
            if number >= 8 and run.watch.is_over():
                break
            inputs = random_examples(seen, len(run.labels), run.generator)
            if around is not None:
                centre = inputs.mean() if seen.low is None else (seen.low + seen.high) / 2  # type: ignore[operator]
                inputs = run.clamp(around + share * (inputs - centre))
            found.append(self.features(inputs) @ basis.T)
        return torch.stack(found)

    @property
    def _scale(self) -> float:
        return float(self.local.head.outputs.square().mean().sqrt())

    def _anneal(
        self, row: Tensor, expected: Expected, width: float, fall: float, count: int, weight: float
    ) -> Tensor:
        """So many widths, in units of the head's outputs, and weights of what is expected."""
        for number in range(count):
            share = fall**number
            self.local.head.twin.set_width(width * self._scale * share)
            beside = (weight * share**1.5) ** 0.5

            def residuals(row: Tensor, beside: float = beside) -> Tensor:
                others = beside * expected.residuals(self.local.places(row))
                return torch.cat([self.local.residuals(row), others])

            watch = self.run.watch
            row = least_squares(residuals, row[None], steps=4, watch=watch)[0][0]
        return row

    def _end(self, row: Tensor) -> tuple[Tensor, float]:
        """The model's own equations, with nothing beside them; longer where they nearly hold."""
        self.local.head.sharpen()
        rows, residuals, watch = row[None], self.local.residuals, self.run.watch
        for _ in range(3):
            rows, costs = least_squares(residuals, rows, steps=20, watch=watch, good=1e-3 * SOLVED)
            if not SOLVED < float(costs) < ALMOST / 10:
                break
        return self.local.places(rows[0]), float(costs)
