"""Defenses that do the same to all messages of the same shapes, and the one that does nothing."""

from dataclasses import dataclass, replace
from functools import cached_property

from gradveil.mechanisms import Mechanism, constant_like
from gradveil.sensitivity import Moments, check_moments
from gradveil.shapes import Needs, Shape

from ._base import About, Defense


class FixedDefense(Defense):
    """Looks at no numbers: its mechanism does not depend on the message."""

    @cached_property
    def needs(self) -> Needs:
        return Needs(moments=False, sensitivities=False)


@dataclass(frozen=True)
class NoDefense(FixedDefense):
    """Sends the message itself. No guarantee of any kind.

    >>> import torch
    >>> NoDefense()(lambda inputs: {"w": inputs.sum(0)}, torch.ones(2, 3))
    {'w': tensor([2., 2., 2.])}
    """

    @cached_property
    def about(self) -> About:
        return replace(super().about, family="none", undefended=True)

    def mechanism(self, shape: Shape, moments: Moments) -> Mechanism:
        """No noise, nothing pruned."""
        check_moments(moments)
        like = moments.like
        return Mechanism(std=constant_like(0.0, like), keep=constant_like(1.0, like))
