"""The mechanism that rounds at random to a few levels, such that the mean stays the same."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_count, check_finite, check_values
from gradveil._random import bernoulli, generator_or_fresh
from gradveil._typing import Tensors


@dataclass(frozen=True)
class QuantisationMechanism:
    """y_i = a ⌊|g_i|/a + u_i⌋ sign(g_i) with a = ‖g‖₂ / levels of each tensor, u_i uniform.

    So E[y_i] = g_i, and an entry between two levels goes to either with the probability that its
    place says. The norm can be read off what is sent: it is a noise-free function of the values, so
    that there is no bound.

    >>> sent = QuantisationMechanism(levels=5).apply({"w": torch.tensor([3.0, -4.0])})
    >>> sent["w"].round(decimals=3)
    tensor([ 3., -4.])
    """

    levels: int

    def __post_init__(self) -> None:
        check_count(self.levels, "levels")

    def apply(self, values: Tensors, generator: torch.Generator | None = None) -> Tensors:
        """Draw the levels. A NaN or an infinity in the values is an error, never sent."""
        check_values(values)
        check_finite(values)
        generator = generator_or_fresh(generator)
        return {name: self._send(value, generator) for name, value in values.items()}

    def mean(self, values: Tensors) -> Tensors:
        """E[y_i] = g_i."""
        check_values(values)
        return dict(values)

    def variance(self, values: Tensors) -> Tensors:
        """Var[y_i] = a² f_i (1 - f_i), f_i the part of |g_i|/a behind the point."""
        check_values(values)
        return {name: self._variance(value) for name, value in values.items()}

    def information(self, values: Tensors) -> Tensors:
        """Infinite: the norm of each tensor is sent bare."""
        check_values(values)
        return {name: torch.full_like(value, torch.inf) for name, value in values.items()}

    def _step(self, value: Tensor) -> Tensor:
        return value.double().square().sum().sqrt() / self.levels

    def _places(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The step, and |g_i| in steps, before and behind the point; 0 for a tensor of zeros."""
        step = self._step(value)
        place = value.double().abs() / torch.where(step > 0, step, 1.0)
        return step, place.floor(), place.frac()

    def _send(self, value: Tensor, generator: torch.Generator) -> Tensor:
        step, whole, part = self._places(value)
        steps = whole + bernoulli(part, generator)
        return (step * steps * value.sign()).to(value.dtype)

    def _variance(self, value: Tensor) -> Tensor:
        step, _, part = self._places(value)
        return (step.square() * part * (1 - part)).to(value.dtype)
