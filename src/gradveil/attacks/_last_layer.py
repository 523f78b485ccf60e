"""The last layer of a trained model, whose logits are solved before anything else."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.functional import one_hot

from gradveil._random import normal_like

from ._descent import Watch
from ._head import Head
from ._matching import euclidean_evidence
from ._model_layers import Call
from ._priors import TotalVariation
from ._refine import Objective, least_squares, refine


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
        """Logits that deviate by up to 6, labels' margins of up to 14: a trained model's."""
        blank = self.gradient.new_empty(count, len(self.labels), len(self.gradient))
        sizes = 6 * torch.special.ndtr(normal_like(blank[:, :1, :1], generator))  # even in [0, 6]
        scores = sizes * normal_like(blank, generator)
        margins = 14 * torch.special.ndtr(normal_like(blank[:, :, :1], generator))
        own = one_hot(self.labels, len(self.gradient)).to(blank)
        logits: Tensor = self.offset + scores + margins * own
        return logits


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

    80 Levenberg-Marquardt steps of 384 starts beside each other; after 13 the best 64 go on.
    """
    shape = (len(problem.labels), len(problem.gradient))

    def solved(rows: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        return least_squares(
            lambda row: problem.residuals(row.view(shape)), rows,
            steps=steps, watch=watch, tolerance=0.0, good=1e-11, longest=10.0,
        )  # fmt: skip

    rows, costs = solved(problem.starts(384, generator).flatten(1), 13)
    rows, costs = solved(rows[costs.argsort()[:64]], 67)
    if watch.is_over():
        return None
    least = costs.argmin()
    return rows[least].view(shape) if float(costs[least]) < 1e-5 else None


def outputs_of_last_layer(
    head: Head, labels: Tensor, generator: torch.Generator, watch: Watch
) -> Tensor | None:
    """U whose image under the layers in between is what the last layer's equations give."""
    problem = last_layer_of(head, labels)
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
    found = refine(objective, features, steps=10, products=100, watch=watch, tolerance=1e-9)
    return found.inputs
