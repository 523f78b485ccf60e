"""The protocol of estimators, their names, and the sums that they share."""

import re
from dataclasses import fields, is_dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gradveil._random import normal_like, rademacher_like
from gradveil._typing import Tensors
from gradveil.messages import Message


class _MeasuredFields(NamedTuple):
    values: Tensors
    """g(x), the message itself."""
    squared_sensitivities: Tensors
    """The estimate of ‖∇_x g_i‖² for each entry."""
    variances: Tensors | None
    """The variance of that estimate; `None` where it is exact or not tracked."""


class Measurement(_MeasuredFields):
    """What an estimator found out about a message at one batch of inputs: three entries."""

    estimator: str | None = None
    """What measured it, where that is not the estimator that was called (`estimator_name`)."""
    example_squares: Tensors | None = None
    """Σ_b c_b² over what single examples add to the message, where that was found on the way."""

    def by(self, estimator: str) -> "Measurement":
        """The same, measured by the estimator of that name."""
        same = Measurement(*self)
        same.estimator, same.example_squares = estimator, self.example_squares
        return same


class Estimator(Protocol):
    """A way to find g(x) and ‖∇_x g_i(x)‖²."""

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        """Measure the message at these inputs."""
        ...


def estimator_name(estimator: object) -> str:
    """What an estimator is called, with the options that are not its defaults.

    >>> from gradveil.sensitivity import PerExample
    >>> estimator_name(PerExample(probes=2))
    'per-example(probes=2)'
    """
    owner = getattr(estimator, "__self__", estimator)  # `structured.measure`: the object's name
    if not is_dataclass(owner):
        return str(getattr(owner, "__name__", type(owner).__name__))
    given = [
        f"{field.name}={getattr(owner, field.name)!r}"
        for field in fields(owner)
        if getattr(owner, field.name) != field.default
    ]
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(owner).__name__).lower()
    return f"{name}({', '.join(given)})" if given else name


def one_name(names: list[str]) -> str:
    """The name that all have, or "mixed"."""
    return names[0] if len(set(names)) == 1 else "mixed"


class SquareSums:
    """Running sums of squared derivatives, over probes and examples, and of their squares.

    With D = (∂_v g_i)² along one Gaussian probe v (of one example, or of the whole batch),
    E[D] = s² and E[D²] = 3 s⁴, where s is the true sensitivity. So Var[D] = 2 s⁴ = ⅔ E[D²]: even a
    single probe tells its own error. For random signs ⅔ E[D²] is an upper limit of the variance.
    """

    def __init__(self, like: Tensors) -> None:
        self.sums = {name: torch.zeros_like(value) for name, value in like.items()}
        self.sums_of_squares = {name: torch.zeros_like(value) for name, value in like.items()}

    def add(self, derivatives: Tensors) -> None:
        """Take in derivatives of shape (probes or examples, *shape)."""
        for name, derivative in derivatives.items():
            square = derivative.square()
            self.sums[name] += square.sum(0)
            self.sums_of_squares[name] += square.square().sum(0)

    def measurement(self, values: Tensors, probes: int) -> Measurement:
        """The estimate from that many probes, and its variance."""
        means = {name: total / probes for name, total in self.sums.items()}
        variances = {n: total * (2 / (3 * probes**2)) for n, total in self.sums_of_squares.items()}
        return Measurement(values, means, variances)


def draw_probes(inputs: Tensor, count: int, kind: str, generator: torch.Generator) -> Tensor:
    """`count` random directions of E[v vᵀ] = I, shape (count, *inputs.shape)."""
    like = inputs.new_empty(()).expand(count, *inputs.shape)
    draw = normal_like if kind == "gaussian" else rademacher_like
    return draw(like, generator)


def chunk_size(values: Tensors, max_elements: int = 2**24, extra: int = 0) -> int:
    """How many tangents of the message, each with `extra` numbers, fit into `max_elements`."""
    entries = sum(value.numel() for value in values.values())
    return max(1, max_elements // max(1, entries + extra))
