"""How noise is spread over the entries of a message, in few numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, prod

import torch
from torch import Tensor

from gradveil._checks import check_kind, check_values
from gradveil._typing import Tensors
from gradveil.sensitivity import Moments

Factors = tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Shape:
    """Relative noise variances r_i > 0, tensor by tensor; a defense sets the amount.

    r_i stands for √(E‖∇_x g_i‖² / E g_i²) up to one constant for the whole message. That is all
    that optimal noise, pruning and rounding look at, so a shape is a plan without its amount.

    Each tensor's r is a product of factors that broadcast to it: one number for all of its
    entries, one for each row and one for each column, or one for each entry. So a shape can be
    much smaller than the message, and a server can send it to its clients.

    With `silent` levels may be 0. `PrivateNoise` sends no such entry; all other defenses refuse
    such a shape, as they would send it without noise.

    >>> shape = Shape({"w": (torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0, 3.0, 5.0]]))})
    >>> shape.levels({"w": torch.zeros(2, 3)})["w"]
    tensor([[ 1.,  3.,  5.],
            [ 2.,  6., 10.]])
    >>> shape.numbers
    5
    """

    factors: Mapping[str, Factors]
    silent: bool = False

    def __post_init__(self) -> None:
        check_kind(self.factors, "factors", Mapping, "Give tuples of tensors by parameter name.")
        for name, factors in self.factors.items():
            for number, factor in enumerate(factors):
                _check_factor(factor, f"factors[{name!r}][{number}]", self.silent)

    @classmethod
    def isotropic(cls, like: Mapping[str, Tensor]) -> "Shape":
        """The same level everywhere."""
        return cls({name: (value.new_ones((1,) * value.dim()),) for name, value in like.items()})

    @property
    def numbers(self) -> int:
        """How many numbers it takes."""
        return sum(factor.numel() for factors in self.factors.values() for factor in factors)

    def levels(self, like: Mapping[str, Tensor]) -> Tensors:
        """r_i in the shape, the type and the place of each parameter; the shape must fit them."""
        self.check(like)
        self.check_sounds()
        return {
            name: prod((f.to(value) for f in self.factors[name]), start=value.new_ones(())).expand(
                value.shape
            )
            for name, value in like.items()
        }

    def moments(self, like: Mapping[str, Tensor], input_size: int) -> Moments:
        """Moments from which every defense plans with this shape: E‖∇g_i‖² = r_i², E g_i² = 1.

        E g_{b,i}² = 1, too, so that noise that is optimal for the curvature has this shape as well.
        """
        levels = self.levels(like)
        ones = {name: torch.ones_like(level) for name, level in levels.items()}
        squares = {name: r.square() for name, r in levels.items()}
        return Moments(ones, squares, input_size, squared_example_values=ones)

    def check(self, like: Mapping[str, Tensor]) -> None:
        """Require a factor list for each parameter, and none besides, that broadcasts to it."""
        check_values(like, "like")
        if self.factors.keys() != like.keys():
            raise ValueError(
                f"A shape should have the parameters {sorted(like)[:8]}. Found"
                f" {sorted(self.factors)[:8]}. Plan it for this model."
            )
        for name, value in like.items():
            for factor in self.factors[name]:
                if not _broadcasts(factor, value):
                    raise ValueError(
                        f"The factors of `{name}` should broadcast to {tuple(value.shape)}. Found"
                        f" one of shape {tuple(factor.shape)}. Plan the shape for this model."
                    )

    def check_sounds(self) -> None:
        """Require noise everywhere."""
        if self.silent:
            raise ValueError(
                "A shape should have levels above 0. Found `silent = True`: a level of 0 would"
                " switch the noise off. Give it to `PrivateNoise`, which sends no such entry."
            )


def _check_factor(factor: object, name: str, silent: bool) -> None:
    if not isinstance(factor, Tensor) or not factor.is_floating_point():
        raise TypeError(
            f"`{name}` should be a tensor of floating point numbers. Found"
            f" {factor.dtype if isinstance(factor, Tensor) else type(factor).__name__}."
        )
    if not factor.numel():
        return
    least, most = (float(end) for end in torch.aminmax(factor.detach()))  # NaN if there is one
    if not (least >= 0 if silent else least > 0) or not most < inf:
        raise ValueError(
            f"`{name}` should be finite and above 0 everywhere. Found values from"
            f" {least:g} to {most:g}. A level of 0 would switch the noise off."
        )


def _broadcasts(factor: Tensor, value: Tensor) -> bool:
    """Whether a factor broadcasts to the value's shape; `torch.broadcast_shapes` takes long."""
    theirs, own = tuple(reversed(factor.shape)), tuple(reversed(value.shape))
    return len(theirs) <= len(own) and all(n in (1, m) for n, m in zip(theirs, own, strict=False))
