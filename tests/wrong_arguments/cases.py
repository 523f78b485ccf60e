"""One wrong call, and what every one of them must show."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import gradveil
from gradveil import GradientMessage, Moments, NoDefense, measure
from gradveil.attacks import Observation, ThreatModel, observe

HOME = str(Path(gradveil.__file__).parent)
NAN, INF = float("nan"), float("inf")
HUGE = 10**400


class Wrong(NamedTuple):
    """A wrong call, the argument that its error names, and what it says was found."""

    call: Callable[[], Any]
    name: str
    found: str


def table(*rows: tuple[Callable[[], Any], str, str]) -> Any:
    """Rows as parameters of a test, numbered within what they name."""
    cases = [Wrong(*row) for row in rows]
    return pytest.mark.parametrize(
        "case", cases, ids=[f"{number}-{case.name}" for number, case in enumerate(cases)]
    )


def assert_refused(case: Wrong, folder: Path) -> None:
    """Our own error, raised by our own code, with the argument and what was found; no file."""
    with pytest.raises((ValueError, TypeError, FileNotFoundError)) as caught:
        case.call()
    text = " ".join(str(caught.value).split())
    assert str(caught.traceback[-1].path).startswith(HOME), caught.traceback[-1].path
    assert f"`{case.name}" in text or f"['{case.name}', " in text, text
    assert case.found in text, text
    assert os.listdir(folder) == []


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model() -> nn.Module:
    """Five inputs, three classes."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


INPUTS = torch.rand(4, 5, generator=seeded())
TARGETS = torch.tensor([0, 1, 2, 0])
BATCH = (INPUTS, TARGETS)


def message(network: nn.Module | None = None, targets: Any = TARGETS) -> GradientMessage:
    return GradientMessage(model() if network is None else network, cross_entropy, targets)


def moments() -> Moments:
    return measure(message(), INPUTS, generator=seeded())


def observation(**changes: Any) -> Observation:
    options: dict[str, Any] = {"num_classes": 3, "generator": seeded(), **changes}
    return observe(model(), cross_entropy, BATCH, NoDefense(), **options)


def by_hand(**changes: Any) -> Observation:
    network = model()
    options: dict[str, Any] = {
        "model": network, "loss_fn": cross_entropy,
        "sent": {n: torch.zeros_like(p).detach() for n, p in network.named_parameters()},
        "batch_size": 4, "input_shape": (5,), "num_classes": 3, **changes,
    }  # fmt: skip
    return Observation(**options)


def with_weight(value: float) -> nn.Module:
    """A model with one weight of that value."""
    network = model()
    next(network.parameters()).data[0, 0] = value
    return network


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer that leaves the global generator alone."""
    with torch.random.fork_rng():
        return nn.Linear(inputs, outputs)


class Raising(nn.Module):
    """Raises what it is told in its forward pass."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.layer, self.error = linear(5, 3), error

    def forward(self, inputs: Tensor) -> Tensor:
        raise self.error


class Returning(nn.Module):
    """Returns what it is told."""

    def __init__(self, outputs: Any) -> None:
        super().__init__()
        self.layer, self.outputs = linear(5, 3), outputs

    def forward(self, inputs: Tensor) -> Any:
        return self.outputs


class Checkpointed(nn.Module):
    """Computes its hidden layer again in the backward pass."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.last = linear(5, 6), linear(6, 3)
        self.use_reentrant = use_reentrant

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Any = checkpoint(self.first, inputs, use_reentrant=self.use_reentrant)
        scores: Tensor = self.last(torch.tanh(hidden))
        return scores


REALISED = ThreatModel(mechanism="realised")
