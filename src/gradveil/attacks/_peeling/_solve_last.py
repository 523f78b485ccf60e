"""The model's last linear layer solved alone: a few dozen unknowns, whatever the training did."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import grad, jacfwd, vmap
from torch.nn.functional import one_hot

from gradveil._random import normal_like

from .._search import Head, Watch

STARTS, STEPS = 384, 80
KEPT, EARLY = 64, 12
"""How many of the starts go on after the first steps."""
SPREAD, MARGIN = 6.0, 14.0
"""The largest deviation of the starts' logits, and the largest margin of their labels."""
LONGEST = 10.0
"""A step's largest length."""
FOUND, GOOD = 1e-5, 1e-11
"""The squared residual that counts as solved, and that from which on nothing is gained."""


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

    def features(self, logits: Tensor) -> Tensor:
        """The layer's inputs a, by least squares."""
        found: Tensor = torch.linalg.pinv(self.slopes(logits).T) @ self.gradient
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

    def starts(self, generator: torch.Generator) -> Tensor:
        """Logits of many kinds; of every other start the labels' scores fit ∂L/∂c."""
        blank = self.gradient.new_empty(STARTS, len(self.labels), len(self.gradient))
        scores = SPREAD * _uniform(blank[:, :1, :1], generator) * normal_like(blank, generator)
        own = one_hot(self.labels, len(self.gradient)).to(blank)
        margins = MARGIN * _uniform(blank[:, :, 0], generator)
        if self.bias is not None:
            others = scores.masked_fill(own > 0, -torch.inf).logsumexp(2)
            doubts = self._doubts(generator)
            fitting = others + (1 - doubts).log() - doubts.log() - (scores * own).sum(2)
            margins[::2] = fitting[::2]
        return self.offset + scores + margins[:, :, None] * own

    def _doubts(self, generator: torch.Generator) -> Tensor:
        """1 - p of each label: -∂L/∂c at the label, split at random among equal ones."""
        assert self.bias is not None
        count, classes = len(self.labels), len(self.gradient)
        slopes = self.slopes(self.gradient.new_zeros(count, classes))
        unit = -slopes[0, self.labels[0]] / (1 - 1 / classes)
        seen = (-self.bias / unit)[self.labels].clamp(min=1e-4)
        parts = _uniform(self.gradient.new_empty(STARTS, count), generator) + 0.05
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
    names = {name.rpartition(".")[0] for name in head.later}
    sent = head.observation.sent
    if len(names) != 1:
        return None
    name = names.pop()
    gradient, layer = sent.get(f"{name}.weight"), head.observation.model.get_submodule(name)
    small = gradient is not None and len(labels) < min(gradient.shape)
    if not small or gradient is None or not isinstance(layer, nn.Linear):
        return None
    if gradient.shape != (head.observation.num_classes, head.outputs.shape[1]):
        return None
    return LastLayer(head, layer, labels, gradient, sent.get(f"{name}.bias"))


def solve_last(problem: LastLayer, generator: torch.Generator, watch: Watch) -> Tensor | None:
    """The logits; `None` where no start leads to a solution: other draws may."""
    shape = (len(problem.labels), len(problem.gradient))

    def residuals(row: Tensor) -> Tensor:
        return problem.residuals(row.view(shape))

    state = _State.at(residuals, problem.starts(generator).flatten(1))
    for step in range(STEPS):
        if watch.is_over():
            return None
        state = state.step(residuals)
        if float(state.costs.min()) < GOOD:
            break
        if step == EARLY:
            state = state.best(KEPT)
    best = state.best(1)
    return best.rows[0].view(shape) if float(best.costs) < FOUND else None


@dataclass(frozen=True)
class _State:
    """Levenberg-Marquardt steps of many starts beside each other."""

    rows: Tensor
    values: Tensor
    damping: Tensor

    @classmethod
    def at(cls, residuals: Callable[[Tensor], Tensor], rows: Tensor) -> "_State":
        """The starts."""
        return cls(rows, vmap(residuals)(rows), torch.full_like(rows[:, 0], 0.1))

    @property
    def costs(self) -> Tensor:
        """Squared residuals; infinite where they are not numbers."""
        return self.values.square().sum(1).nan_to_num(torch.inf)

    def best(self, count: int) -> "_State":
        """Those with the least costs."""
        order = self.costs.argsort()[:count]
        return _State(self.rows[order], self.values[order], self.damping[order])

    def step(self, residuals: Callable[[Tensor], Tensor]) -> "_State":
        """One step of each, taken where it helps."""
        jacobians: Tensor = vmap(jacfwd(residuals))(self.rows)
        back = jacobians.transpose(1, 2)
        matrices, slopes = back @ jacobians, back @ self.values[:, :, None]
        sizes = matrices.diagonal(dim1=1, dim2=2)
        sizes = sizes + 1e-6 * sizes.mean(1, keepdim=True) + 1e-12
        shifts = torch.diag_embed(self.damping[:, None] * sizes)
        steps = torch.linalg.solve_ex(matrices + shifts, slopes)[0][:, :, 0].nan_to_num()
        lengths = steps.norm(dim=1, keepdim=True).clamp(min=LONGEST)
        rows = self.rows - steps * LONGEST / lengths
        values = vmap(residuals)(rows)
        helps = values.square().sum(1).nan_to_num(torch.inf) < self.costs
        damping = torch.where(helps, self.damping / 3, self.damping * 4).clamp(1e-12, 1e8)
        helps = helps[:, None]
        return _State(
            torch.where(helps, rows, self.rows), torch.where(helps, values, self.values), damping
        )
