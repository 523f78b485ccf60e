"""The protocol of mechanisms."""

from typing import Protocol

import torch

from gradveil._checks import check_methods
from gradveil._typing import Tensors


def check_mechanism(mechanism: object, name: str = "mechanism") -> None:
    """Require what a defense plans.

    >>> from gradveil.mechanisms import Mechanism
    >>> check_mechanism(Mechanism(std=1.0))
    """
    methods = ("apply", "mean", "variance", "information")
    check_methods(mechanism, name, methods, "`Mechanism(std=0.1)`")


class AnyMechanism(Protocol):
    """A random map y ~ S(g), entry by entry, with the three numbers that the theory needs."""

    def apply(self, values: Tensors, generator: torch.Generator | None = None) -> Tensors:
        """Draw what is sent."""
        ...

    def mean(self, values: Tensors) -> Tensors:
        """E[y_i] given the values."""
        ...

    def variance(self, values: Tensors) -> Tensors:
        """Var[y_i] given the values."""
        ...

    def information(self, values: Tensors) -> Tensors:
        """w_i of the Fisher information J_F = Σ_i w_i ∇g_i ∇g_iᵀ; infinite where g_i is sent bare.

        For a mixed mechanism this is the mean over its cases, as in Eq. 5.
        """
        ...
