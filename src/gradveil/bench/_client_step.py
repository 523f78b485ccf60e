"""Benchmark of a defended client's step, against one plain gradient of the same batch."""

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil._timing import time_ratios
from gradveil.defenses import Defense, FromServer, GradientNoise, OptimalNoise
from gradveil.federated import Client, PackedShape
from gradveil.messages import trainable_parameters
from gradveil.plans import Shape

from ._cases import Case

STEPS = 10
"""Of a client between two shapes, of which the first plans."""


def step_contenders() -> dict[str, Defense]:
    """Isotropic noise, and noise in a shape that the server sends."""
    return {
        "isotropic noise": GradientNoise(0.1),
        "from the server": FromServer(OptimalNoise(0.1)),
    }


def step_ratios(
    case: Case, defenses: Mapping[str, Defense], repeats: int, steps: int = STEPS
) -> dict[str, float]:
    """The time of a client's whole step over that of `loss.backward()`.

    All of the step counts: taking the batch, all checks, the message, the plan and the noise. For a
    server's plan the shape is unpacked and planned with at the first of each `steps` steps.
    """
    shape = PackedShape.of(some_shape(case.model))

    def plain() -> None:
        for _ in range(steps):
            case.plain_gradient()

    return time_ratios(
        plain, {n: _job(case, d, shape, steps) for n, d in defenses.items()}, repeats
    )


def _job(case: Case, defense: Defense, shape: PackedShape, steps: int) -> Callable[[], None]:
    client = Client(0, case.inputs, case.targets, defense, batch_size=len(case.inputs), seed=0)

    def job() -> None:
        client.use(Shape(dict(shape.shape().factors)))  # a new one, which has no plan yet
        for _ in range(steps):
            client.reply(case.model, cross_entropy)

    return job


def some_shape(model: nn.Module) -> Shape:
    """Rows and columns of each matrix, one number for each other tensor; any levels will do."""
    generator = torch.Generator().manual_seed(0)

    def levels(*sizes: int) -> torch.Tensor:
        return torch.rand(sizes, generator=generator) + 0.5

    return Shape(
        {
            name: (levels(len(p), *(1,) * (p.dim() - 1)), levels(1, *p.shape[1:]))
            if p.dim() > 1
            else (levels(*(1,) * p.dim()),)
            for name, p in trainable_parameters(model).items()
        }
    )
