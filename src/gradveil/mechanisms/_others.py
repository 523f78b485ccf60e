"""Mechanisms of rounding, signs, Laplace noise and quantisation."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_count, check_finite, check_positive, check_values
from gradveil._random import bernoulli, generator_or_fresh, normal_like
from gradveil._typing import Level, Tensors

from ._mechanism import as_tensors, check_level, check_level_structure, level_of


class _BareMechanism(ABC):
    """Sends a noise-free function of the values: the Cramér-Rao argument gives no bound."""

    @abstractmethod
    def apply(self, values: Tensors, generator: torch.Generator | None = None) -> Tensors:
        """What is sent; a NaN or an infinity in the values is an error, never sent."""

    def mean(self, values: Tensors) -> Tensors:
        """E[y_i]: what is sent."""
        return self.apply(values)

    def variance(self, values: Tensors) -> Tensors:
        """Var[y_i] = 0."""
        check_values(values)
        return {name: torch.zeros_like(value) for name, value in values.items()}

    def information(self, values: Tensors) -> Tensors:
        """Infinite: something is sent bare."""
        check_values(values)
        return {name: torch.full_like(value, torch.inf) for name, value in values.items()}


@dataclass(frozen=True)
class RoundingMechanism(_BareMechanism):
    """y_i = step_i · round(g_i / step_i), to the nearest, ties to even; step 0 sends g_i itself.

    So does a step so small that the number of steps overflows. Deterministic: the bound is 0.

    >>> RoundingMechanism(step=0.5).apply({"w": torch.tensor([0.6, -1.4])})["w"]
    tensor([ 0.5000, -1.5000])
    """

    step: Level

    def __post_init__(self) -> None:
        check_level(self.step, "step", 0, float("inf"))

    def apply(self, values: Tensors, generator: torch.Generator | None = None) -> Tensors:
        """Round; nothing is drawn."""
        check_values(values)
        check_finite(values)
        check_level_structure(self.step, values, "step")
        return {name: self._rounded(name, value) for name, value in values.items()}

    def _rounded(self, name: str, value: Tensor) -> Tensor:
        step = torch.as_tensor(level_of(self.step, name), dtype=value.dtype, device=value.device)
        rounded = torch.round(value / step) * step
        return torch.where(rounded.isfinite(), rounded, value)


@dataclass(frozen=True)
class SignMechanism(_BareMechanism):
    """y_i = step · sign(g_i), with sign(0) = 0. Deterministic: the bound is 0.

    >>> SignMechanism(step=0.5).apply({"w": torch.tensor([3.0, -4.0, 0.0])})["w"]
    tensor([ 0.5000, -0.5000,  0.0000])
    """

    step: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self.step, "step")

    def apply(self, values: Tensors, generator: torch.Generator | None = None) -> Tensors:
        """The signs; nothing is drawn."""
        check_values(values)
        check_finite(values)
        return {name: self.step * value.sign() for name, value in values.items()}


@dataclass(frozen=True)
class QuantisationMechanism(_BareMechanism):
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
        """Draw the levels."""
        check_values(values)
        check_finite(values)
        generator, sent = generator_or_fresh(generator), {}
        for name, value in values.items():
            step, whole, part = self._places(value)
            steps = whole + bernoulli(part, generator)
            sent[name] = (step * steps * value.sign()).to(value.dtype)
        return sent

    def mean(self, values: Tensors) -> Tensors:
        """E[y_i] = g_i."""
        check_values(values)
        return dict(values)

    def variance(self, values: Tensors) -> Tensors:
        """Var[y_i] = a² f_i (1 - f_i), f_i the part of |g_i|/a behind the point."""
        check_values(values)
        places = {name: self._places(value) for name, value in values.items()}
        return {
            name: (step.square() * part * (1 - part)).to(values[name].dtype)
            for name, (step, _, part) in places.items()
        }

    def _places(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The step, and |g_i| in steps, before and behind the point; 0 for a tensor of zeros."""
        step = value.double().square().sum().sqrt() / self.levels
        place = value.double().abs() / torch.where(step > 0, step, 1.0)
        return step, place.floor(), place.frac()


@dataclass(frozen=True)
class LaplaceMechanism:
    """y_i = g_i + b_i ξ_i with the density e^{-|ξ|} / 2, and b_i = std_i / √2.

    Its Fisher information about g_i is 1/b_i² = 2/std_i²: twice that of Gaussian noise of the same
    variance, which has the least of all. 0 sends an entry as it is.

    Args:
        std: The standard deviation of the noise, a number or tensors by parameter name.

    >>> LaplaceMechanism(std=2.0).information({"w": torch.zeros(2)})["w"]
    tensor([0.5000, 0.5000])
    """

    std: Level

    def __post_init__(self) -> None:
        check_level(self.std, "std", 0, float("inf"))

    def apply(self, values: Tensors, generator: torch.Generator | None = None) -> Tensors:
        """Draw what is sent. A NaN or an infinity in the values is an error, never sent."""
        self._check(values)
        check_finite(values)
        generator, levels = generator_or_fresh(generator), as_tensors(self.std, values)
        sent = {n: v + levels[n] * _laplace(v, generator) for n, v in values.items()}
        check_finite(sent, "mechanism.apply(values)")
        return sent

    def mean(self, values: Tensors) -> Tensors:
        """E[y_i] = g_i."""
        self._check(values)
        return dict(values)

    def variance(self, values: Tensors) -> Tensors:
        """Var[y_i] = std_i²."""
        self._check(values)
        return {n: s.square() for n, s in as_tensors(self.std, values).items()}

    def information(self, values: Tensors) -> Tensors:
        """w_i = 2 / std_i²; infinite where an entry has no noise."""
        return {name: 2 / variance for name, variance in self.variance(values).items()}

    def _check(self, values: Tensors) -> None:
        check_values(values)
        check_level_structure(self.std, values, "std")


def _laplace(like: Tensor, generator: torch.Generator) -> Tensor:
    """Laplace noise of variance 1: √W Z with W exponential of mean 1 and Z standard normal.

    W = (Z₁² + Z₂²) / 2, so that all of it comes from normal numbers.
    """
    first, second, third = (normal_like(like, generator) for _ in range(3))
    return (0.5 * (first.square() + second.square())).sqrt() * third
