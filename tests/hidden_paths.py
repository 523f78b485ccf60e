"""Models that read their inputs in ways that autograd does not see."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gradveil import GradientMessage

ENTRIES = 6


class OnceDifferentiable(torch.autograd.Function):
    """A sine whose second derivative autograd takes for 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.cos()


class Opaque(torch.autograd.Function):
    """Leaves for NumPy and comes back without a derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient)


def quantised(x: Tensor) -> Tensor:
    return (255 * x).round() / 255


def item_by_item(x: Tensor) -> Tensor:
    return torch.tensor([[entry.detach().item() for entry in row] for row in x], dtype=x.dtype)


READINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "round": quantised,
    "detach": lambda x: x.detach(),
    "new tensor": lambda x: torch.tensor(x.detach().tolist(), dtype=x.dtype),
    "numpy": lambda x: torch.from_numpy(x.detach().numpy().copy()),
    "item": item_by_item,
    "argmax": lambda x: F.one_hot(x.argmax(1), ENTRIES).to(x.dtype),
    "index": lambda x: torch.eye(8, ENTRIES, dtype=x.dtype)[(7 * x[:, 0]).long().clamp(0, 7)],
    "differentiable once": OnceDifferentiable.apply,
    "opaque function": Opaque.apply,
    "sign": lambda x: (x - 0.5).sign(),
}
"""None of them has a derivative where it counts."""


class Reading(nn.Module):
    """A linear head on what a function reads of the inputs."""

    def __init__(self, read: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.head = nn.Linear(ENTRIES, 3)
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.read(x))
        return outputs


class Categories(nn.Module):
    """A table with one categorical column, read by an integer index."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 4)
        self.head = nn.Linear(4 + 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        words = self.embedding(x[:, 5].long())
        outputs: Tensor = self.head(torch.cat([x[:, :5], words], dim=1))
        return outputs


def made(build: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return build().to(dtype)


def batch(examples: int = 4) -> Tensor:
    """Numbers in [0, 1]."""
    generator = torch.Generator().manual_seed(1)
    return torch.rand(examples, ENTRIES, generator=generator, dtype=torch.float64)


def message_of(model: nn.Module, examples: int = 4) -> GradientMessage:
    return GradientMessage(model, F.cross_entropy, torch.arange(examples) % 3)
