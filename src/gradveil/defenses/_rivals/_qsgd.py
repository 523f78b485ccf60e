"""QSGD: each tensor rounded at random to a few levels of its norm."""

from dataclasses import dataclass

from gradveil._checks import check_count
from gradveil.mechanisms import QuantisationMechanism
from gradveil.sensitivity import Moments, check_moments

from .._planning import FixedDefense


@dataclass(frozen=True)
class QSGD(FixedDefense):
    """y_i = ‖g‖₂ sign(g_i) ξ_i / levels, E[y_i] = g_i (Alistarh et al. 2017).

    ‖g‖₂ is the norm of the tensor, and ξ_i one of the two whole numbers beside
    levels · |g_i| / ‖g‖₂, the nearer the likelier.

    Guarantee: none. The norms are sent as they are, and what the draw hides of one entry, thousands
    of others tell. `attacks.Identify` uses the probability of each level; `attacks.Adaptive` takes
    the draw for Gaussian noise of one level for each tensor, read off the message.

    Args:
        levels: s, how many steps of the grid are as long as the norm of a tensor.

    >>> import torch
    >>> message = lambda inputs: {"w": inputs.sum(0)}
    >>> QSGD(levels=2)(message, torch.tensor([[3.0, -4.0]]), torch.Generator().manual_seed(0))
    {'w': tensor([ 2.5000, -2.5000])}
    """

    label = "QSGD"

    levels: int

    def __post_init__(self) -> None:
        check_count(self.levels, "levels")

    def plan(self, moments: Moments) -> QuantisationMechanism:
        """The same for all messages."""
        check_moments(moments)
        return QuantisationMechanism(self.levels)
