"""Peeling: the head of a model is solved first, then the inputs from its features."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.functional import one_hot

from gradveil._checks import WrongValue
from gradveil._random import normal_like
from gradveil._tensors import Tensors
from gradveil.messages import FunctionalLoss, LocalSteps

from ._attack import FINISHED, INTERRUPTED, TIME_BUDGET, Reconstruction
from ._descent import Descent, Watch
from ._matching import euclidean_evidence
from ._model_layers import (
    Call,
    SmoothTwin,
    determined_share,
    features_of,
    linear_calls,
    loss_of,
    noise_beside,
    random_examples,
    random_inputs,
    recorded,
)
from ._observation import Observation
from ._priors import TotalVariation, total_variation
from ._refine import Objective, least_squares, refine
from ._targets import LabelledSearch, Run

CLEAR, ROUGH = 1e-3, 0.5
"""How large the first singular value of the layer's gradient beyond the rank of the batch may be,
over the last within it: where it is rounding, and where a little noise still shows the rank."""
MOST = 3000
"""Unknowns from which on whole Jacobians take too much time and memory."""
GRADIENT = LocalSteps(1.0, 1)
"""The steps of which a gradient is the weight change, but for its sign."""


@dataclass(frozen=True)
class Visits:
    """A visit is one example in one local step; tables of visits are in the order of the steps.

    >>> visits = Visits.of(LocalSteps(lr=0.1, steps=3, batch_size=2), 4)
    >>> [part.tolist() for part in visits.alike], len(visits)
    ([[[0, 4], [1, 5]], [[2], [3]]], 6)
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


@dataclass(frozen=True)
class Head:
    """u = W h + b, and all that comes after it.

    All that a message says of it follows from U, the layer's outputs of all examples: the later
    parameters' gradients, and ∂L/∂W = Σ_n δ_n h_nᵀ with δ_n = ∂L/∂u_n. As long as a batch has fewer
    examples than the layer has units these are more equations than U has entries, and none of them
    needs the layers before.
    """

    twin: SmoothTwin
    """Of the observation in double precision."""
    call: Call
    """The layer, in the twin."""
    probe: Tensor
    """One random input."""
    outputs: Tensor
    """U at random inputs."""
    visits: Visits
    noise: float = 0.0
    """The standard deviation of noise in the layer's gradient, as its singular values show it."""

    @property
    def observation(self) -> Observation:
        return self.twin.observation

    @property
    def weight(self) -> Tensor:
        return self.observation.sent[self.call.weight]

    @cached_property
    def later(self) -> list[str]:
        """The parameters that only the layers after this one have."""
        names = [n for n, m in self.observation.model.named_modules() if isinstance(m, nn.Linear)]
        after = names[names.index(self.call.name) + 1 :]
        return [n for n in self.observation.sent if n.rpartition(".")[0] in after]

    @cached_property
    def loss(self) -> FunctionalLoss:
        return loss_of(self.observation)

    @cached_property
    def scale(self) -> float:
        return float(self.outputs.square().mean().sqrt())

    @cached_property
    def is_last(self) -> bool:
        """Whether the model returns U as it is."""
        marked = torch.arange(self.outputs.shape[1]).to(self.outputs)[None]
        with torch.no_grad():
            returned = self._returned(marked, self.probe)
        return isinstance(returned, Tensor) and torch.equal(returned, marked)

    def _returned(self, outputs: Tensor, inputs: Tensor, **moved: Tensor) -> Tensor:
        """What the model makes of U."""
        with self.call.layer.register_forward_hook(lambda *_: outputs):
            returned: Tensor = self.loss.outputs({**self.loss.parameters, **moved}, inputs)
        return returned

    def gradients(
        self, outputs: Tensor, labels: Tensor, later: Tensors | None = None
    ) -> tuple[Tensors, Tensor]:
        """Of the loss, with respect to the later parameters and to U; `later`: if they moved."""
        labels = labels.to(outputs) if labels.is_floating_point() else labels
        if self.is_last:
            return {}, grad(self.loss.loss_fn)(outputs, labels)

        def loss_of(parameters: Tensors, outputs: Tensor) -> Tensor:
            with self.call.layer.register_forward_hook(lambda *_: outputs):
                return self.loss({**self.loss.parameters, **parameters}, self.probe, labels)

        later = later or {name: self.loss.parameters[name] for name in self.later}
        gradients: tuple[Tensors, Tensor] = grad(loss_of, argnums=(0, 1))(later, outputs)
        return gradients

    def inputs_of(self, layer: nn.Linear, outputs: Tensor) -> Tensor:
        """What a later layer reads if U is this, in one row."""
        with recorded([("", layer)]) as seen:
            self._returned(outputs, self.probe)
        return seen[0].inputs.flatten()

    def features(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """H = Δ⁺ ∂L/∂W, the inputs of the layer, from its outputs; and E‖error‖² of each.

        The error is that of noise: features · std² · [(Δ Δᵀ)⁻¹]_nn.
        """
        inverse: Tensor = torch.linalg.pinv(self.gradients(outputs, labels)[1].T)
        noise = self.weight.shape[1] * self.noise**2 * inverse.square().sum(1)
        return inverse @ self.weight, noise

    @property
    def is_all(self) -> bool:
        """Whether no other parameters act after the layer: those would move unseen."""
        others = {n: p for n, p in self.loss.parameters.items() if n not in self.later}

        def size(parameters: Tensors) -> Tensor:
            return self._returned(self.outputs[:1], self.probe, **parameters).square().sum()

        return not any(bool(slope.any()) for slope in grad(size)(others).values())

    def is_a_cut(self, probe: Tensor) -> bool:
        """Whether the model's outputs are a function of U alone, example by example."""
        try:
            with torch.no_grad():
                one, other = (self._returned(self.outputs, alone) for alone in probe[:2].split(1))
        except (RuntimeError, ValueError, IndexError):
            return False
        same = isinstance(one, Tensor) and one.shape[:1] == probe.shape[:1]
        return same and torch.equal(one, other)

    def sharpen(self) -> None:
        """Make the twin's activations nearly the model's own."""
        self.twin.set_width(1e-4 * self.scale)


def head_of(observation: Observation, generator: torch.Generator) -> Head | None:
    """The head of the model; `None` where a message does not determine it.

    All information must flow through one linear layer with more outputs than there are examples,
    and the layer's weight gradient must have the rank of the batch up to a gap: noise and pruning
    destroy that. FedAvg's weight change has at most the rank of the visits, which must cover the
    batch, and no step may move anything after the layer unseen.
    """
    local, count = observation.local, observation.batch_size
    visits = Visits.of(local or GRADIENT, count)
    if len(torch.cat(visits.steps).unique()) < count:
        return None
    probe = random_inputs(observation, 32, generator)
    for call in linear_calls(observation, probe)[0]:
        weight = observation.sent.get(call.weight)
        if weight is None or call.inputs.dim() != 2 or len(call.inputs) != len(probe):
            continue
        rank, sizes = len(visits), torch.linalg.svdvals(weight.double())
        ratio = float(sizes[rank] / sizes[count - 1]) if rank < len(sizes) else torch.inf
        if not ratio < (CLEAR if local else ROUGH):
            return None
        noise = 0.0 if ratio < CLEAR else noise_beside(sizes, weight.shape, rank)
        sent = {name: value.double() for name, value in observation.sent.items()}
        model = copy.deepcopy(observation.model).double()
        twin = SmoothTwin(replace(observation, model=model, sent=sent), 1.0)
        outputs = call.layer(call.inputs).detach().double()
        own = call._replace(layer=twin.observation.model.get_submodule(call.name))
        head = Head(twin, own, probe[:1].double(), outputs, visits, noise)
        # pruning may leave nothing of a parameter
        whole = all(sent[n].any() for n in (call.weight, call.bias, *head.later) if n in sent)
        known = whole and head.is_a_cut(probe.double())
        return head if known and (len(visits.steps) == 1 or head.is_all) else None
    return None


class LastLayer:
    """Equations for the logits z_n of a batch in what was sent of the last layer z = V a + c.

    With e_n = ∂L/∂z_n, which z_n alone determines, the message holds G = ∂L/∂V = Σ_n e_n a_nᵀ and
    ∂L/∂c = Σ_n e_n. Let G = Q S Rᵀ with as many singular values as the batch has examples. Then

        S⁻¹ Qᵀ Σ_n e_n (z_n - c)ᵀ = Rᵀ Vᵀ,   e_n in the span of Q,   S⁻¹ Qᵀ (Σ_n e_n - ∂L/∂c) = 0.

    A trained model is sure of most of its examples: their e_n are thousands of times smaller than
    others'. Divided by the singular values, and e_n by its own length, all examples count alike.
    """

    def __init__(self, head: Head, name: str, labels: Tensor) -> None:
        sent, count = head.observation.sent, len(labels)
        layer: Any = head.observation.model.get_submodule(name)
        self.head, self.layer, self.labels = head, layer, labels
        self.gradient, self.bias = sent[f"{name}.weight"], sent.get(f"{name}.bias")
        self.offset = 0.0 if layer.bias is None else layer.bias.detach()
        left, sizes, right = torch.linalg.svd(self.gradient, full_matrices=True)
        self.inside, self.outside, self.sizes = left[:, :count], left[:, count:], sizes[:count]
        self.target = right[:count] @ layer.weight.detach().T

    @classmethod
    def of(cls, head: Head, labels: Tensor) -> "LastLayer | None":
        """The layer after the head's first one, if it is the only one and returns class scores."""
        sent, names = head.observation.sent, {name.rpartition(".")[0] for name in head.later}
        if head.is_last or len(names) != 1 or labels.dim() != 1 or labels.is_floating_point():
            return None
        (name,) = names
        shape = (head.observation.num_classes, head.outputs.shape[1])
        weight = sent.get(f"{name}.weight")
        fits = weight is not None and weight.shape == shape and len(labels) < min(shape)
        return cls(head, name, labels) if fits else None

    def residuals(self, logits: Tensor) -> Tensor:
        """Of all equations, in one row."""
        slopes = self.slopes(logits)
        shares = (slopes @ self.inside).T / self.sizes[:, None]
        lengths = slopes.norm(dim=1, keepdim=True) + torch.finfo(slopes.dtype).tiny
        blocks = [shares @ (logits - self.offset) - self.target, slopes @ self.outside / lengths]
        if self.bias is not None:
            blocks.append(shares.sum(1) - self.inside.T @ self.bias / self.sizes)
        return torch.cat([block.flatten() for block in blocks])

    def slopes(self, logits: Tensor) -> Tensor:
        """e, one row for each example."""
        found: Tensor = grad(self.head.observation.loss_fn)(logits, self.labels)
        return found

    def _starts(self, count: int, generator: torch.Generator) -> Tensor:
        """Logits that deviate by up to 6, labels' margins of up to 14: a trained model's."""
        blank = self.gradient.new_empty(count, len(self.labels), len(self.gradient))
        sizes = 6 * torch.special.ndtr(normal_like(blank[:, :1, :1], generator))  # even in [0, 6]
        scores = sizes * normal_like(blank, generator)
        margins = 14 * torch.special.ndtr(normal_like(blank[:, :, :1], generator))
        own = one_hot(self.labels, len(self.gradient)).to(blank)
        logits: Tensor = self.offset + scores + margins * own
        return logits

    def solve(self, generator: torch.Generator, watch: Watch) -> Tensor | None:
        """The logits; `None` where no start leads to a solution: other draws may.

        80 Levenberg-Marquardt steps of 384 starts beside each other; after 13 the best 64 go on.
        """
        shape = (len(self.labels), len(self.gradient))

        def solved(rows: Tensor, steps: int) -> tuple[Tensor, Tensor]:
            return least_squares(
                lambda row: self.residuals(row.view(shape)), rows,
                steps=steps, watch=watch, tolerance=0.0, good=1e-11, longest=10.0,
            )  # fmt: skip

        rows, costs = solved(self._starts(384, generator).flatten(1), 13)
        rows, costs = solved(rows[costs.argsort()[:64]], 67)
        least = costs.argmin()
        found = not watch.is_over() and float(costs[least]) < 1e-5
        return rows[least].view(shape) if found else None

    def outputs(self, generator: torch.Generator, watch: Watch) -> Tensor | None:
        """U whose image under the layers in between is what the logits give."""
        logits = self.solve(generator, watch)
        if logits is None:
            return None
        self.head.sharpen()
        features = torch.linalg.pinv(self.slopes(logits).T) @ self.gradient
        objective = Objective(
            lambda outputs: self.head.inputs_of(self.layer, outputs),
            euclidean_evidence(features.flatten()),
            TotalVariation(0.0),
        )
        found = refine(objective, features, steps=10, products=100, watch=watch, tolerance=1e-9)
        return found.inputs


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

    def __init__(self, head: Head, labels: Tensor) -> None:
        local, visits = head.observation.local, head.visits
        self.head, self.visits, self.local = head, visits, local or GRADIENT
        self.labels = [labels[step] for step in visits.steps]
        sign = 1 if local else -1
        change, rank = sign * head.weight, len(visits)
        sizes, rows = torch.linalg.svd(change, full_matrices=False)[1:]
        if self.local.steps > 1:
            rank = int((sizes[:rank] > 3 * sizes[rank]).sum())
        self.basis = rows[:rank]
        sent, weight = head.observation.sent, head.call.layer.weight.detach() @ self.basis.T
        bias = head.call.layer.bias
        bias = weight.new_zeros(len(weight)) if bias is None else bias.detach()
        self.begun: Tensors = {name: head.loss.parameters[name].detach() for name in head.later}
        self.begun |= {"own weight": weight, "own bias": bias}
        self.sent = {name: sign * sent[name] for name in head.later}
        if head.call.bias in sent:
            self.sent["own bias"] = sign * sent[head.call.bias]
        self.sent["own weight"] = change @ self.basis.T
        self.unit = 1.0
        self.is_free = len(visits) * (rank + len(weight)) <= MOST or self.local.steps > 1
        self.unknowns = len(visits) * (rank + self.is_free * len(weight))

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
        rank = len(self.basis)
        return row[: len(self.visits) * rank].view(-1, rank)

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
        outputs: Tensor = places @ self.begun["own weight"].T + self.begun["own bias"]
        return outputs

    def played(self, places: Tensor, slopes: Tensor | None = None) -> tuple[Tensors, Tensor]:
        """The changes of the head's parameters, and the δ of the model, by playing the steps again.

        The layer itself moves by `slopes` in place of the model's δ if they are given.
        """
        now, deltas = self.begun, list[Tensor]()
        moving = {name: torch.zeros_like(value) for name, value in now.items()}
        for rows, labels in zip(self.visits.rows, self.labels, strict=True):
            own = places[rows]
            outputs = own @ now["own weight"].T + now["own bias"]
            later = {name: now[name] for name in self.head.later}
            gradient, delta = self.head.gradients(outputs, labels, later)
            deltas.append(delta)
            delta = delta if slopes is None else slopes[rows]
            gradient = {**gradient, "own weight": delta.T @ own, "own bias": delta.sum(0)}
            if "own bias" not in self.sent:
                gradient["own bias"] = torch.zeros_like(now["own bias"])
            moving = {name: self.local.momentum * moving[name] + gradient[name] for name in now}
            now = {name: now[name] - self.local.lr * moving[name] for name in now}
        return {name: now[name] - self.begun[name] for name in now}, torch.cat(deltas)


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
        """In a share of the time where that is rough or takes long; `None`: there is no head."""
        head = head_of(run.observation, run.generator)
        if head is None or (local := LocalHead(head, run.labels)).unknowns > MOST:
            return None
        if run.observation.local or head.noise > 0:
            run = replace(run, watch=run.watch.part(share))
        return cls(run, local)

    def solve(self, guess: Tensor | None) -> tuple[Tensor, float]:
        """The coordinates of all visits, and the squared residual that is left.

        They start from the features that a guess of the inputs has in its own training, or, at
        larger widths of the activations, from nothing. Of a gradient the last layer alone is tried
        before: of trained models it is the easier problem.
        """
        local, run, generator = self.local, self.run, self.run.generator
        if guess is None and run.observation.local is None and local.head.noise == 0:
            last = LastLayer.of(local.head, run.labels)
            outputs = None if last is None else last.outputs(generator, run.watch)
            if outputs is not None:
                places = local.head.features(outputs, run.labels)[0] @ local.basis.T
                local.measure(places)
                found = self._end(local.start(places))
                if found[1] < ALMOST:
                    return found
        expected = Expected(self.simulate(guess), local.visits, 0.1 if guess is None else 0.02)
        if guess is None:
            local.head.twin.set_width(2.0 * local.head.scale)
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
            features = features_of(self.local.head.call.name, self.run.observation, parameters)
            with torch.no_grad():
                found.append(features(inputs[examples]))
        return torch.cat(found).double()

    def walk(self, inputs: Tensor) -> Iterator[tuple[Tensor, Tensors]]:
        """Play the local steps: each one's examples, and the parameters that it starts from.

        `inputs` may be filled in on the way: a step reads its own when the next one is asked for.
        """
        seen = self.run.observation
        message = self.local.local.message(seen.model, seen.loss_fn, self.run.labels)
        now = message.parameters
        moving = {name: torch.zeros_like(value) for name, value in now.items()}
        for number, examples in enumerate(self.local.visits.steps):
            if number > 0:
                before = self.local.visits.steps[number - 1]
                gradient = message.gradient_at(now, self.run.labels[before])(inputs[before])
                now, moving = message.advance(now, moving, gradient)
            now = {name: value.detach() for name, value in now.items()}
            yield examples, now

    def simulate(self, around: Tensor | None, count: int = 48, share: float = 0.3) -> Tensor:
        """Coordinates of random batches' features; shape (batches, visits, rank).

        `around`: inputs to which only this share of the random ones is added.
        """
        run, seen, found = self.run, self.run.observation, []
        for number in range(count):
            if number >= 8 and run.watch.is_over():
                break
            inputs = random_examples(seen, len(run.labels), run.generator)
            if around is not None:
                centre = inputs.mean() if seen.low is None else (seen.low + seen.high) / 2  # type: ignore[operator]
                inputs = run.clamp(around + share * (inputs - centre))
            found.append(self.features(inputs) @ self.local.basis.T)
        return torch.stack(found)

    def _anneal(
        self, row: Tensor, expected: Expected, width: float, fall: float, count: int, weight: float
    ) -> Tensor:
        """So many widths, in units of the head's outputs, and weights of what is expected."""
        for number in range(count):
            share = fall**number
            self.local.head.twin.set_width(width * self.local.head.scale * share)
            beside = (weight * share**1.5) ** 0.5

            def residuals(row: Tensor, beside: float = beside) -> Tensor:
                others = beside * expected.residuals(self.local.places(row))
                return torch.cat([self.local.residuals(row), others])

            row = least_squares(residuals, row[None], steps=4, watch=self.run.watch)[0][0]
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


FOUND = 1e-6
"""That of an image's features, relative to random inputs', from which on it is not tried again."""
CLOSE = 1e-3
"""The same, from which on an image counts as found."""
NEAR = 0.1
"""The misfit of the message, over the least of some random batches', where a guess may be right."""
DETERMINED, WORTH = 0.99, 0.5
"""The share of an input that the features show (`determined_share`) where they determine it, and
where finding it is tried at all."""
ROUGH_SHARE = 0.4
"""Of the time, for heads with noise and for those of updates: their guesses are rough, or take so
long that a short budget does not see their end, and a descent needs the rest."""


@dataclass(frozen=True)
class Peel(LabelledSearch):
    """Exact features of a batch from the gradient of the head, then images from their features.

    1. The features that the first linear layer reads, from the equations of it and of all layers
       after it (`Head`, `LocalHead`): a problem of a few hundred variables. FedAvg's weight change
       is solved along all local steps, if so few visit its batch that the change shows the rank.
    2. Inputs with these features, each image by itself: min ‖h(x) - H‖² + a little total variation.
    3. Where the equations have residuals left, these images tell where to start the next of up to
       six passes.

    Repeated labels do not matter. It needs a message with all entries, and a batch smaller than the
    layer's width; elsewhere it finds nothing. A little noise or rounding, which leaves the rank of
    ∂L/∂W visible, is averaged over the layer's units: the guess is then rough, and step 2 weighs
    total variation by what is known of the features' noise.

    Args:
        steps: 25 for each pass.
        image_steps: Of one descent of the images.
        rounds: How often images that were not found start again.
        total_variation: Its weight in step 2, beside the relative misfit of the features.

    >>> Peel(rounds=2).steps
    1000
    """

    steps: int = 1000
    image_steps: int = 400
    rounds: int = 10
    total_variation: float = 1e-5

    def search(self, run: Run) -> Reconstruction:
        """Its best guess, whose `loss` is the relative misfit of the message."""
        search = LocalSearch.of(run)
        if search is None:
            raise WrongValue(
                "observation",
                "be of a gradient with next to no noise and all entries, of a model with a linear"
                " layer that is wider than the batch and through which all information flows",
                "a message that does not determine the layer's outputs",
                "Use `InvertingGradients`.",
            )
        return self._guess(search) or run.blank(TIME_BUDGET)

    def solve(self, run: Run) -> Reconstruction | None:
        """The batch; `None` where the head is not determined, or shows too little of the inputs."""
        search = LocalSearch.of(run, ROUGH_SHARE)
        if search is None:
            return None
        own = features_of(search.local.head.call.name, run.observation)
        probe = random_inputs(run.observation, 2, run.generator)
        share = determined_share(own, probe, run.generator)
        if share < WORTH:
            return None
        peel = self if share >= DETERMINED else replace(self, rounds=1)
        guess = peel._guess(search)
        return guess and replace(guess, is_certain=guess.is_certain and share >= DETERMINED)

    def _guess(self, search: LocalSearch) -> Reconstruction | None:
        """The best images by their message, from features to images and back until equations hold.

        `None` where time is over before there are any. Where there is noise equations never hold,
        and one pass is enough.
        """
        run, best, latest = search.run, None, None
        count = 1 if search.local.head.noise > 0 else max(1, min(6, self.steps // 25))
        try:
            for number in range(count):
                guess = self._pass(search, latest)
                if guess is None:
                    return best and replace(best, status=TIME_BUDGET)
                if run.progress is not None:
                    run.progress(number + 1, count, guess.loss)
                if guess.is_certain:
                    return guess
                latest = guess.inputs
                best = guess if best is None or guess.loss < best.loss else best
                best = replace(best, status=guess.status)
                if guess.status != FINISHED or (number >= 2 and best.loss > 0.5):
                    break  # no more passes help
        except KeyboardInterrupt:
            return replace(best or run.blank(INTERRUPTED), status=INTERRUPTED)
        return best

    def _pass(self, search: LocalSearch, latest: Tensor | None) -> Reconstruction | None:
        """One of them; `None` where time is over before there are images.

        An example of which a trained model is sure hardly shows in the message: for certainty each
        image must have its features, and the misfit be small by itself, too, not only beside that
        of random images.
        """
        run, peel = search.run, self
        places, cost = search.solve(latest)
        if run.watch.is_over():
            return None
        if search.local.head.noise > 0:
            peel = replace(peel, rounds=min(2, peel.rounds))
        elif cost >= SOLVED:
            peel = replace(peel, rounds=2, image_steps=150, total_variation=1e-3)
        inputs, misfits, status = peel._images(search, places)
        guess = Reconstruction(inputs, run.labels, run.misfit(inputs), status=status)
        if cost >= SOLVED:
            return guess
        limit = min(1e-3, NEAR * run.random_misfit())
        found = status == FINISHED and bool((misfits < CLOSE).all())
        return replace(guess, is_certain=found and guess.loss < limit)

    def _images(self, search: LocalSearch, places: Tensor) -> tuple[Tensor, Tensor, str]:
        """Inputs with the features of their first visits, those of earlier steps first."""
        run, local = search.run, search.local
        features, errors = places @ local.basis, places.new_zeros(len(places))
        if local.head.noise > 0:
            features, errors = local.head.features(local.outputs(places), run.labels)
        inputs = run.noise(1)[0]
        misfits, status = inputs.new_full((len(inputs),), torch.inf), FINISHED
        steps = zip(search.walk(inputs), local.visits.rows, strict=True)
        for (examples, parameters), own in steps:
            if status != FINISHED or bool(misfits[examples].isfinite().all()):
                break
            target, noise = features[own].to(inputs), errors[own].to(inputs)
            inputs[examples], misfits[examples], status = self.invert(
                local.head.call.name, run, parameters, target, noise
            )
        return run.clamp(inputs), misfits, status

    def invert(
        self, name: str, run: Run, parameters: Tensors, features: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, str]:
        """Inputs with these features and their misfits; new starts for images not yet found.

        `name` is the layer that reads the features, `parameters` are the model's, and `noise` is
        the squared error that each image's features have.
        """
        seen = run.observation
        own = features_of(name, seen, parameters)
        blank = features.new_empty(1, len(features), *seen.input_shape)
        best = normal_like(blank, run.generator)[0]
        with torch.no_grad():
            others = own(random_inputs(seen, 8, run.generator))
            spread = (others[:, None] - features).square().sum(2).mean(0)
            unit = (own(best) - features).square().sum(1).mean()
        misfits, status = torch.full_like(spread, torch.inf), FINISHED
        each = float(noise.mean() / unit) * best[0].numel() / features.shape[1]
        smooth = max(self.total_variation, min(2 * each, 1e-2))  # as for differences of 1
        twin, known = SmoothTwin(seen, 1.0), seen.low is not None and seen.high is not None
        twins = features_of(name, twin.observation, parameters)
        rate = float((seen.high - seen.low).mean()) / 3 if known else 1.0  # type: ignore[operator]
        for _ in range(self.rounds):
            open_ = misfits > FOUND + noise / spread
            if status != FINISHED or not bool(open_.any()):
                break
            wanted = features[open_]

            def cost(inputs: Tensor, progress: float, wanted: Tensor = wanted) -> Tensor:
                twin.set_width(0.1 * 0.01**progress)
                misfit = (twins(inputs) - wanted).square().sum() / unit
                weight: float = 1e-2 * (smooth / 1e-2) ** progress
                return misfit + weight * len(inputs) * total_variation(inputs)

            left = run.watch.left()
            descent = Descent(self.image_steps, rate, "adam", "cosine", left, settled=1.0)
            start = normal_like(blank, run.generator)[:, open_]
            minimum = replace(run, progress=None).minimise(cost, start, descent)
            status = minimum.status
            with torch.no_grad():
                errors = (own(minimum.inputs[0]) - wanted).square().sum(1) / spread[open_]
            better = errors < misfits[open_]
            places = open_.nonzero().flatten()[better]
            best[places], misfits[places] = minimum.inputs[0][better], errors[better]
        return best, misfits, status
