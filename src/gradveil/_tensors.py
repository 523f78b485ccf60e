"""Messages as rows, sums over all of their entries, and linear solves."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]
"""Values by parameter name: a message, its moments, the noise levels of a mechanism."""

Level = float | Mapping[str, Tensor]
"""One number for every entry, or a tensor in the shape of each parameter."""

Multiply = Callable[[Tensor], Tensor]
"""By a matrix that is only known by its products."""


def flatten(tensors: Mapping[str, Tensor]) -> Tensor:
    """All entries in one row, in the order of the names."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors.values()])


def unflatten(row: Tensor, like: Mapping[str, Tensor]) -> Tensors:
    """The inverse of `flatten`."""
    parts = row.split([tensor.numel() for tensor in like.values()])
    return {n: part.view(t.shape) for (n, t), part in zip(like.items(), parts, strict=True)}


def total(tensors: Iterable[Tensor]) -> Tensor:
    """The sum over all entries of all tensors, in float64; one tensor after the other."""
    sums = [tensor.sum(dtype=torch.float64) for tensor in tensors]
    return torch.stack(sums).sum() if sums else torch.zeros((), dtype=torch.float64)


def relative_misfit(
    values: Mapping[str, Tensor] | Tensor, target: Mapping[str, Tensor] | Tensor
) -> Tensor:
    """‖values - target‖² / ‖target‖² over all entries, differentiable."""
    pairs: list[Any] = [(values, target)]
    if not isinstance(target, Tensor):
        pairs = [(values[name], wanted) for name, wanted in target.items()]  # type: ignore[index]
    error = sum((value - wanted).square().sum() for value, wanted in pairs)
    power = torch.as_tensor(sum(wanted.square().sum() for _, wanted in pairs))
    misfit: Tensor = error / power.clamp(min=torch.finfo(power.dtype).tiny)
    return misfit


def add_to_grad(model: nn.Module, sent: Mapping[str, Tensor]) -> None:
    """Add what was sent to `.grad`, as `loss.backward()` adds the gradient."""
    for name, parameter in model.named_parameters():
        if name in sent:
            old, new = parameter.grad, sent[name].detach()
            parameter.grad = new.clone() if old is None else old + new


def conjugate_gradients(
    multiply: Multiply,
    right: Tensor,
    precondition: Multiply | None = None,
    tolerance: float = 1e-4,
    max_steps: int = 500,
) -> tuple[Tensor, bool]:
    """Solve A x = b for each row b of `right`, and whether all rows reached the tolerance.

    A is symmetric positive definite. Started from 0, bᵀx grows monotonically to bᵀA⁻¹b; a row
    stops when the residual's norm, preconditioned if so asked, has fallen by `tolerance`.
    """
    precondition = precondition or (lambda rows: rows)
    solution, residual = torch.zeros_like(right), right.clone()
    preconditioned = precondition(residual)
    direction = preconditioned.clone()
    size = (residual * preconditioned).sum(1, keepdim=True)
    goal = size * tolerance**2
    for _ in range(max_steps):
        open_rows = size > goal
        if not bool(open_rows.any()):
            break
        product = multiply(direction)
        curvature = (direction * product).sum(1, keepdim=True)
        step = torch.where(open_rows & (curvature > 0), size / curvature, 0.0)
        solution += step * direction
        residual -= step * product
        preconditioned = precondition(residual)
        new_size = (residual * preconditioned).sum(1, keepdim=True)
        direction = preconditioned + torch.where(size > 0, new_size / size, 0.0) * direction
        size = torch.where(open_rows, new_size, size)
    return solution, bool((size <= goal).all())  # a NaN, after an overflow, is not
