"""A small classification task: clouds of points around the centres of their classes."""

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, Moments, OptimalNoise, measure
from gradveil.mechanisms import Mechanism
from gradveil.models import build_model
from gradveil.shapes import Given
from gradveil.theory import gain_over_isotropic

CLASSES, WIDTH, SIZE = 4, 12, 8


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clouds(count: int, seed: int, spread: float = 0.7) -> tuple[Tensor, Tensor]:
    """Examples of the task, of unequal size along their coordinates."""
    centres = torch.randn(CLASSES, WIDTH, generator=generator(99))
    sizes = torch.logspace(0.5, -1, WIDTH)
    draw = generator(seed)
    targets = torch.randint(CLASSES, (count,), generator=draw)
    noise = spread * torch.randn(count, WIDTH, generator=draw)
    return (centres[targets] + noise) * sizes, targets


def others(kind: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Examples of another kind."""
    draw = generator(seed)
    labels = torch.randint(CLASSES, (count,), generator=draw)
    if kind == "noise":
        return torch.randn(count, WIDTH, generator=draw), labels
    if kind == "uniform":
        return 4 * torch.rand(count, WIDTH, generator=draw) - 2, labels
    if kind == "other labels":
        return clouds(count, seed + 1)[0], labels
    assert kind == "other data"
    inputs, targets = clouds(count, seed)
    return inputs.flip(1), (targets + 1) % CLASSES


@lru_cache
def a_model(steps: int = 0) -> nn.Module:
    """Fresh, with outputs near 0, or after some steps of Adam."""
    model = build_model(f"mlp(sizes=[{WIDTH}, 10, {CLASSES}])", 1)
    with torch.no_grad():
        [*model.parameters()][-2].mul_(0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(steps):
        inputs, targets = clouds(32, 1000 + step)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return model


def a_message(model: nn.Module, targets: Tensor) -> GradientMessage:
    return GradientMessage(model, cross_entropy, targets)


def exact(model: nn.Module, inputs: Tensor, targets: Tensor) -> Moments:
    return measure(a_message(model, targets), inputs, "exact")


@lru_cache
def private(steps: int) -> list[Moments]:
    """Exact moments of twelve private batches."""
    return [exact(a_model(steps), *clouds(SIZE, 5000 + k)) for k in range(12)]


def mean_gain(steps: int, given: Given) -> float:
    """Over isotropic noise at equal U2, on private batches."""
    mechanism = OptimalNoise(0.1).made(given)
    assert isinstance(mechanism, Mechanism)
    gains = [gain_over_isotropic(each, mechanism) for each in private(steps)]
    return sum(gains) / len(gains)
