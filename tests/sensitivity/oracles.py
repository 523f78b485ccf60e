"""Sensitivities made without the package: dense Jacobians and the paper's algorithm, by loops."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.messages.compare import assert_same
from tests.zoo import Case

Squares = dict[str, Tensor]
Function = Callable[[Tensor], dict[str, Tensor]]


def jacobian_squares(function: Function, inputs: Tensor) -> Squares:
    """‖∇_x g_i‖² from the dense Jacobian of `torch.func.jacrev`."""
    jacobian = jacrev(function)(inputs)
    return {
        name: block.flatten(block.dim() - inputs.dim()).square().sum(-1)
        for name, block in jacobian.items()
    }


def assert_same_squares(found: Squares, expected: Squares, tolerance: float = 1e-10) -> None:
    """The same up to 1e-10: float64 leaves 1e-16 for each of some thousand operations.

    Entries that are 0 in exact arithmetic are squares of rounding errors.
    """
    assert_same(found, expected, tolerance=tolerance, noise=tolerance**2)


def algorithm_1(case: Case, inputs: Tensor, probes: Tensor) -> Squares:
    """Steps 1 to 3 of the paper's Algorithm 1 as printed, with reverse mode alone.

    ∂g(x + αv)/∂α at α = 0 by the double-backward trick: u ↦ (∂g/∂x)ᵀ u is linear in u, and its
    inner product with v has the gradient (∂g/∂x) v with respect to u.
    """
    model, inputs = case.model(), inputs.clone().requires_grad_()
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
        loss = case.loss()(model(inputs), case.targets())
    gradients = torch.autograd.grad(
        loss, list(parameters.values()), create_graph=True, materialize_grads=True
    )
    totals = [torch.zeros_like(gradient) for gradient in gradients]
    for v in probes:
        u = [torch.zeros_like(gradient, requires_grad=True) for gradient in gradients]
        inner = sum((g * w).sum() for g, w in zip(gradients, u, strict=True))
        pulled = torch.autograd.grad(inner, inputs, create_graph=True)[0]
        derivatives = torch.autograd.grad(
            (pulled * v).sum(), u, retain_graph=True, materialize_grads=True
        )
        totals = [t + d.square() for t, d in zip(totals, derivatives, strict=True)]
    return {n: t.detach() / len(probes) for n, t in zip(parameters, totals, strict=True)}


def algorithm_1_for_each_example(case: Case, inputs: Tensor, probes: Tensor) -> Squares:
    """The same for one example after the other, summed; for a mean of cross-entropies.

    The loss of the batch is the mean of those of its examples, so an example's part of the
    gradient is that of a batch of one, divided by the number of examples.
    """
    total: Squares = {}
    for index in range(len(inputs)):
        single = _Single(case, index)
        part = algorithm_1(single, inputs[index : index + 1], probes[:, index : index + 1])
        total = {name: total.get(name, 0) + s / len(inputs) ** 2 for name, s in part.items()}
    return total


class _Single:
    """The case with one of its examples alone."""

    def __init__(self, case: Case, index: int) -> None:
        self.case, self.index = case, index

    def model(self) -> nn.Module:
        return self.case.model()

    def loss(self) -> Callable[..., Tensor]:
        return self.case.loss()

    def targets(self) -> Tensor:
        return self.case.targets()[self.index : self.index + 1]


def draw(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """The probes that an estimator takes from that generator."""
    return torch.empty(shape, dtype=torch.float64).normal_(generator=generator)
