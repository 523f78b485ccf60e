"""What a defense does to one step of training (Eqs. 6 and 7)."""

from typing import NamedTuple

from gradveil._checks import check_finite, check_values
from gradveil._tensors import total
from gradveil._typing import Tensors
from gradveil.mechanisms import AnyMechanism, check_mechanism


class Utility(NamedTuple):
    """The mean and the negative variance of the loss decrease in one step, to first order.

    >>> import torch
    >>> from gradveil import Mechanism, utility
    >>> utility({"w": torch.tensor([1.0, 2.0])}, Mechanism(std=0.5))
    Utility(first=5.0, second=-1.25)
    """

    first: float
    """U1 = E[g · y]."""
    second: float
    """U2 = -Var[g · y]."""


def utility(values: Tensors, mechanism: AnyMechanism) -> Utility:
    """U1 = Σ_i g_i E[y_i] and U2 = -Σ_i g_i² Var[y_i] of a mechanism at the values g.

    >>> import torch
    >>> from gradveil import Mechanism
    >>> utility({"w": torch.tensor([1.0, 2.0])}, Mechanism(std=0.5))
    Utility(first=5.0, second=-1.25)
    """
    check_values(values)
    check_mechanism(mechanism)
    check_finite(values)
    means, variances = mechanism.mean(values), mechanism.variance(values)
    first = float(total(v * means[n] for n, v in values.items()))
    spread = float(total(v.square() * variances[n] for n, v in values.items()))
    return Utility(first, 0.0 - spread)
