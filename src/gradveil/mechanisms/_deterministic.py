"""What all mechanisms without noise have in common."""

from abc import ABC, abstractmethod

import torch

from gradveil._checks import check_values
from gradveil._typing import Tensors


class DeterministicMechanism(ABC):
    """y = f(g): the Cramér-Rao argument says nothing about it, and the bound is 0."""

    @abstractmethod
    def apply(self, values: Tensors, generator: torch.Generator | None = None) -> Tensors:
        """What is sent; nothing is drawn."""

    def mean(self, values: Tensors) -> Tensors:
        """E[y_i]: what is sent."""
        return self.apply(values)

    def variance(self, values: Tensors) -> Tensors:
        """Var[y_i] = 0."""
        check_values(values)
        return {name: torch.zeros_like(value) for name, value in values.items()}

    def information(self, values: Tensors) -> Tensors:
        """Infinite: what is sent is a noise-free function of the values."""
        check_values(values)
        return {name: torch.full_like(value, torch.inf) for name, value in values.items()}
