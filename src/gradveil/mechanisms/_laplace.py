"""The mechanism of Laplace noise."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_finite, check_values
from gradveil._random import generator_or_fresh, normal_like
from gradveil._typing import Level, Tensors

from ._levels import as_tensors, check_level, check_level_structure, level_of


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
        generator = generator_or_fresh(generator)
        sent = {n: v + self._level(n, v) * _laplace(v, generator) for n, v in values.items()}
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

    def _level(self, name: str, like: Tensor) -> Tensor:
        return torch.as_tensor(level_of(self.std, name), dtype=like.dtype, device=like.device)

    def _check(self, values: Tensors) -> None:
        check_values(values)
        check_level_structure(self.std, values, "std")


def _laplace(like: Tensor, generator: torch.Generator) -> Tensor:
    """Laplace noise of variance 1: √W Z with W exponential of mean 1 and Z standard normal.

    W = (Z₁² + Z₂²) / 2, so that all of it comes from normal numbers.
    """
    first, second, third = (normal_like(like, generator) for _ in range(3))
    return (0.5 * (first.square() + second.square())).sqrt() * third
