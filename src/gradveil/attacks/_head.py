"""The end of a model, from its first linear layer on: a small problem that is solved alone."""

import copy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import grad, jacfwd, vmap
from torch.nn.functional import one_hot

from gradveil._random import normal_like, seed_from
from gradveil._typing import Tensors
from gradveil.messages import FunctionalLoss

from ._attack import FINISHED
from ._descent import Descent, Watch, minimise
from ._matching import Evidence, euclidean_evidence
from ._model_layers import (
    Call,
    SmoothTwin,
    hooked,
    linear_calls,
    loss_of,
    noise_beside,
    random_inputs,
    recorded,
)
from ._observation import Observation
from ._priors import TotalVariation
from ._refine import Objective, Refined, refine
from ._targets import Run

CLEAR, ROUGH = 1e-3, 0.5
"""How large the first singular value of the layer's gradient beyond the rank of the batch may be,
over the last within it: where it is rounding, and where a little noise still shows the rank."""


@dataclass(frozen=True)
class Head:
    """u = W h + b, and all that comes after it.

    Everything that a message says of the head follows from U, the layer's outputs of all examples:
    δ_n = ∂L/∂u_n and the gradients of all later parameters. Beside them

        ∂L/∂b = Σ_n δ_n,    ∂L/∂W Wᵀ = Σ_n δ_n (u_n - b)ᵀ,    δ_n in the column space of ∂L/∂W

    with ∂L/∂W = Σ_n δ_n h_nᵀ. These are more equations than U has entries as long as a batch has
    fewer examples than the layer has units, and none of them needs the layers before.
    """

    twin: SmoothTwin
    """Of the observation in double precision."""
    call: Call
    """The layer, in the twin."""
    probe: Tensor
    """One random input."""
    outputs: Tensor
    """U at random inputs."""
    noise: float = 0.0
    """The standard deviation of noise in the layer's gradient, as its singular values show it."""

    @property
    def observation(self) -> Observation:
        """The twin's."""
        return self.twin.observation

    @property
    def layer(self) -> nn.Linear:
        """The first linear layer."""
        layer: nn.Linear = self.call.layer
        return layer

    @property
    def weight(self) -> Tensor:
        """∂L/∂W as it was sent."""
        return self.observation.sent[self.call.weight]

    @property
    def bias(self) -> Tensor | None:
        """∂L/∂b as it was sent, if it was."""
        return self.observation.sent.get(self.call.bias)

    @cached_property
    def later(self) -> list[str]:
        """The parameters that only the layers after this one have."""
        names = [n for n, m in self.observation.model.named_modules() if isinstance(m, nn.Linear)]
        after = names[names.index(self.call.name) + 1 :]
        return [n for n in self.observation.sent if n.rpartition(".")[0] in after]

    @cached_property
    def loss(self) -> FunctionalLoss:
        """Of the twin."""
        return loss_of(self.observation)

    @cached_property
    def is_last(self) -> bool:
        """Whether the model returns U as it is."""
        marked = torch.arange(self.outputs.shape[1]).to(self.outputs)[None]
        with torch.no_grad():
            returned = self._returned(marked, self.probe)
        return isinstance(returned, Tensor) and torch.equal(returned, marked)

    def _returned(self, outputs: Tensor, inputs: Tensor, **moved: Tensor) -> Tensor:
        """What the model makes of U."""
        with hooked(self.layer, lambda *_: outputs):
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
            with hooked(self.layer, lambda *_: outputs):
                return self.loss({**self.loss.parameters, **parameters}, self.probe, labels)

        if later is None:
            later = {name: self.loss.parameters[name] for name in self.later}
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

    @property
    def is_whole(self) -> bool:
        """Whether something was sent of each parameter: pruning may leave nothing of one."""
        parts = [self.weight, self.bias, *(self.observation.sent[name] for name in self.later)]
        return all(part is None or bool(part.any()) for part in parts)

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
        self.twin.set_width(1e-4 * float(self.outputs.square().mean().sqrt()))


def head_of(
    observation: Observation,
    generator: torch.Generator,
    gap: float = CLEAR,
    visits: int | None = None,
) -> Head | None:
    """The head of the model; `None` where a message does not determine it.

    All information must flow through one linear layer with more outputs than there are examples,
    and the layer's weight gradient must have the rank of the batch: noise and pruning destroy that.
    FedAvg's weight change has at most the rank of the `visits`: an example is visited by each local
    step that takes it.

    Args:
        observation: A gradient's, or with `visits` a weight change's.
        generator: Of the random inputs.
        gap: `CLEAR` or `ROUGH`.
        visits: Of FedAvg.
    """
    if visits is None and observation.local is not None:
        return None
    probe = random_inputs(observation, 32, generator)
    for call in linear_calls(observation, probe)[0]:
        weight = observation.sent.get(call.weight)
        if weight is None or call.inputs.dim() != 2 or len(call.inputs) != len(probe):
            continue
        noise = _noise(weight.double(), observation.batch_size, visits, gap)
        if noise is None:
            return None
        sent = {name: value.double() for name, value in observation.sent.items()}
        model = copy.deepcopy(observation.model).double()
        twin = SmoothTwin(replace(observation, model=model, sent=sent), 1.0)
        outputs = call.layer(call.inputs).detach().double()
        own = call._replace(layer=twin.observation.model.get_submodule(call.name))
        head = Head(twin, own, probe[:1].double(), outputs, noise)
        return head if head.is_whole and head.is_a_cut(probe.double()) else None
    return None


def _noise(weight: Tensor, examples: int, visits: int | None, gap: float) -> float | None:
    """The standard deviation of what is beside the rank; `None` where that is hidden."""
    rank = examples if visits is None else visits
    if rank >= min(weight.shape):
        return None
    sizes = torch.linalg.svdvals(weight)
    ratio = float(sizes[rank] / sizes[examples - 1])
    if not ratio < gap:
        return None
    return 0.0 if ratio < CLEAR else noise_beside(sizes, weight.shape, rank)


class HeadEquations:
    """The head's equations in one row, each block relative to its own size."""

    def __init__(self, head: Head, labels: Tensor) -> None:
        self.head, self.labels = head, labels
        self.offset = 0.0 if head.layer.bias is None else head.layer.bias.detach()
        left = torch.linalg.svd(head.weight, full_matrices=True)[0]
        self.outside = left[:, len(labels) :]
        blocks = [head.observation.sent[name] for name in head.later]
        blocks += [] if head.bias is None else [head.bias]
        blocks += [head.weight @ head.layer.weight.detach().T]
        sizes = [float(block.square().sum()) for block in blocks]
        # the unit of what lies outside of the column space is ‖Δ‖² at random outputs
        delta = head.gradients(head.outputs[:1].expand(len(labels), -1), labels)[1]
        blocks.append(delta.new_zeros(len(labels), self.outside.shape[1]))
        sizes.append(float(delta.square().sum()))
        target = torch.cat([block.flatten() for block in blocks])
        weights = [torch.full_like(b, 2 / s).flatten() for b, s in zip(blocks, sizes, strict=True)]
        self.evidence = Evidence(target, target, torch.cat(weights))

    def __call__(self, outputs: Tensor) -> Tensor:
        later, delta = self.head.gradients(outputs, self.labels)
        blocks = [later[name] for name in self.head.later]
        blocks += [] if self.head.bias is None else [delta.sum(0)]
        blocks += [delta.T @ (outputs - self.offset), delta @ self.outside]
        return torch.cat([block.flatten() for block in blocks])


@dataclass(frozen=True)
class LastLayer:
    """Equations for the logits z_n of a batch in what was sent of the last layer z = V a + c.

    With e_n = ∂L/∂z_n, which z_n alone determines, the message holds G = ∂L/∂V = Σ_n e_n a_nᵀ and
    ∂L/∂c = Σ_n e_n. Let G = Q S Rᵀ with as many singular values as the batch has examples. Then

        S⁻¹ Qᵀ Σ_n e_n (z_n - c)ᵀ = Rᵀ Vᵀ,   e_n in the span of Q,   S⁻¹ Qᵀ (Σ_n e_n - ∂L/∂c) = 0.

    A trained model is sure of most of its examples: their e_n are thousands of times smaller than
    others'. Divided by the singular values, and e_n by its own length, all examples count alike.
    """

    head: Head
    layer: nn.Linear
    labels: Tensor
    gradient: Tensor
    bias: Tensor | None

    def residuals(self, logits: Tensor) -> Tensor:
        """Of all equations, in one row."""
        slopes = self.slopes(logits)
        left, sizes, right = self._factors
        inside, outside = left[:, : len(sizes)], left[:, len(sizes) :]
        shares = (slopes @ inside).T / sizes[:, None]
        lengths = slopes.norm(dim=1, keepdim=True) + torch.finfo(slopes.dtype).tiny
        target = right @ self.layer.weight.detach().T
        blocks = [shares @ (logits - self.offset) - target, slopes @ outside / lengths]
        if self.bias is not None:
            blocks.append(shares.sum(1) - inside.T @ self.bias / sizes)
        return torch.cat([block.flatten() for block in blocks])

    def slopes(self, logits: Tensor) -> Tensor:
        """e, one row for each example."""
        found: Tensor = grad(self.head.observation.loss_fn)(logits, self.labels)
        return found

    @property
    def offset(self) -> Tensor | float:
        """The layer's bias c."""
        return 0.0 if self.layer.bias is None else self.layer.bias.detach()

    @cached_property
    def _factors(self) -> tuple[Tensor, Tensor, Tensor]:
        left, sizes, right = torch.linalg.svd(self.gradient, full_matrices=True)
        count = len(self.labels)
        return left, sizes[:count], right[:count]

    def starts(self, count: int, generator: torch.Generator) -> Tensor:
        """Logits of many kinds; of every other start the labels' scores fit ∂L/∂c.

        They deviate by up to 6, the margins of their labels are up to 14: a trained model's.
        """
        blank = self.gradient.new_empty(count, len(self.labels), len(self.gradient))
        scores = 6 * _uniform(blank[:, :1, :1], generator) * normal_like(blank, generator)
        own = one_hot(self.labels, len(self.gradient)).to(blank)
        margins = 14 * _uniform(blank[:, :, 0], generator)
        if self.bias is not None:
            others = scores.masked_fill(own > 0, -torch.inf).logsumexp(2)
            doubts = self._doubts(self.bias, count, generator)
            fitting = others + (1 - doubts).log() - doubts.log() - (scores * own).sum(2)
            margins[::2] = fitting[::2]
        return self.offset + scores + margins[:, :, None] * own

    def _doubts(self, bias: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """1 - p of each label: -∂L/∂c at the label, split at random among equal ones."""
        examples, classes = len(self.labels), len(self.gradient)
        slopes = self.slopes(self.gradient.new_zeros(examples, classes))
        unit = -slopes[0, self.labels[0]] / (1 - 1 / classes)
        seen = (-bias / unit)[self.labels].clamp(min=1e-4)
        parts = _uniform(self.gradient.new_empty(count, examples), generator) + 0.05
        same = (self.labels[:, None] == self.labels).to(parts)
        jitter = (0.5 * normal_like(parts, generator)).exp()
        return (seen * parts / (parts @ same) * jitter).clamp(1e-5, 0.99)


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn: Tensor = torch.special.ndtr(normal_like(like, generator))
    return drawn


def last_layer_of(head: Head, labels: Tensor) -> LastLayer | None:
    """The layer after the head's first one, if it is the only one and returns class scores."""
    if head.is_last or labels.dim() != 1 or labels.is_floating_point():
        return None
    sent, names = head.observation.sent, {name.rpartition(".")[0] for name in head.later}
    call = Call(min(names, default=""), None, labels)
    gradient = sent.get(call.weight)
    if len(names) != 1 or gradient is None or not len(labels) < min(gradient.shape):
        return None
    if gradient.shape != (head.observation.num_classes, head.outputs.shape[1]):
        return None
    layer = head.observation.model.get_submodule(call.name)
    assert isinstance(layer, nn.Linear)
    return LastLayer(head, layer, labels, gradient, sent.get(call.bias))


def solve_last(problem: LastLayer, generator: torch.Generator, watch: Watch) -> Tensor | None:
    """The logits; `None` where no start leads to a solution: other draws may.

    80 Levenberg-Marquardt steps of 384 starts beside each other; after 12 the best 64 go on.
    """
    shape = (len(problem.labels), len(problem.gradient))

    def residuals(row: Tensor) -> Tensor:
        return problem.residuals(row.view(shape))

    def costs_of(values: Tensor) -> Tensor:
        return values.square().sum(1).nan_to_num(torch.inf)

    rows = problem.starts(384, generator).flatten(1)
    values, damping = vmap(residuals)(rows), torch.full_like(rows[:, :1], 0.1)
    costs = costs_of(values)
    for step in range(80):
        if watch.is_over():
            return None
        jacobians: Tensor = vmap(jacfwd(residuals))(rows)
        back = jacobians.transpose(1, 2)
        matrices, slopes = back @ jacobians, back @ values[:, :, None]
        sizes = matrices.diagonal(dim1=1, dim2=2)
        sizes = sizes + 1e-6 * sizes.mean(1, keepdim=True) + 1e-12
        shifted = matrices + torch.diag_embed(damping * sizes)
        steps = torch.linalg.solve_ex(shifted, slopes)[0][:, :, 0].nan_to_num()
        tried = rows - 10 * steps / steps.norm(dim=1, keepdim=True).clamp(min=10)
        found = vmap(residuals)(tried)
        helps = (costs_of(found) < costs)[:, None]  # a step is taken where it does
        damping = torch.where(helps, damping / 3, damping * 4).clamp(1e-12, 1e8)
        rows, values = torch.where(helps, tried, rows), torch.where(helps, found, values)
        costs = costs_of(values)
        if float(costs.min()) < 1e-11:
            break
        if step == 12:
            best = costs.argsort()[:64]
            rows, values, damping, costs = rows[best], values[best], damping[best], costs[best]
    least = costs.argmin()
    return rows[least].view(shape) if float(costs[least]) < 1e-5 else None


SOLVED = 1e-3
"""The relative misfit of the head's equations that counts as 0."""


def solve_head(head: Head, run: Run, steps: int) -> tuple[Tensor | None, str]:
    """U from the last layer's logits, or else from many starts around what random inputs give.

    Where both fail, the last layer is tried again: of trained models it is the easier problem. It
    has no equations to spare for noise, and is left out where there is some.
    """
    equations, found, status = HeadEquations(head, run.labels), None, FINISHED
    aside = torch.Generator().manual_seed(seed_from(run.generator))  # the starts stay the same
    for is_last in (False,) if head.noise > 0 else (True, False, True):
        if is_last:
            found = _from_last_layer(equations, aside, run.watch)
        else:
            found, status = _search(equations, run, steps)
        if found is not None or status != FINISHED:
            break
    return found, status


def _search(equations: HeadEquations, run: Run, steps: int) -> tuple[Tensor | None, str]:
    """From many starts, the smooth twin's width falling."""
    head = equations.head
    scale = float(head.outputs.square().mean().sqrt())
    blank = head.outputs.new_empty(64, len(run.labels), head.outputs.shape[1])
    start = head.outputs.mean(0) + scale * normal_like(blank, run.generator)
    left = run.watch.left()
    descent = Descent(steps, scale / 8, "adam", "cosine", time_budget=left, settled=0.9)

    def cost(outputs: Tensor, progress: float) -> Tensor:
        head.twin.set_width(scale * 1e-3 ** min(1.0, progress / 0.9))
        return equations.evidence.misfit(equations(outputs))

    minimum = minimise(cost, start, descent, progress=run.progress)
    refined = _refined(equations, minimum.inputs[int(minimum.costs.argmin())], run.watch)
    status = minimum.status if minimum.status != FINISHED else refined.status
    limit = SOLVED if head.noise == 0 else 0.05  # which is put down to noise
    return (refined.inputs if refined.cost < limit else None), status


def _refined(equations: HeadEquations, outputs: Tensor, watch: Watch) -> Refined:
    equations.head.sharpen()
    objective = Objective(equations, equations.evidence, TotalVariation(0.0))
    return refine(objective, outputs, steps=10, products=100, watch=watch, tolerance=1e-3)


def _from_last_layer(
    equations: HeadEquations, generator: torch.Generator, watch: Watch
) -> Tensor | None:
    """U whose image under the layers in between is what the last layer's equations give."""
    head = equations.head
    problem = last_layer_of(head, equations.labels)
    logits = None if problem is None else solve_last(problem, generator, watch)
    if problem is None or logits is None:
        return None
    head.sharpen()
    features = torch.linalg.pinv(problem.slopes(logits).T) @ problem.gradient
    objective = Objective(
        lambda outputs: head.inputs_of(problem.layer, outputs),
        euclidean_evidence(features.flatten()),
        TotalVariation(0.0),
    )
    begun = refine(objective, features, steps=10, products=100, watch=watch, tolerance=1e-9)
    refined = _refined(equations, begun.inputs, watch)
    return refined.inputs if refined.cost < SOLVED and refined.status == FINISHED else None
