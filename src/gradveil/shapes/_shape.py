"""How noise is spread over the entries of a message, in few numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import check_kind, check_values
from gradveil._typing import Tensors

Factors = tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Shape:
    """Relative noise variances r_i > 0, tensor by tensor; a defense sets the amount.

    r_i stands for √(E‖∇_x g_i‖² / E g_i²) up to one constant for the whole message. That is all
    that optimal noise (Σ ∝ r), pruning (largest r first) and rounding look at: a shape says how
    noise is spread, not how much there is.

    Each tensor's r is a product of factors that broadcast to it: one number for all of its
    entries, one for each row and one for each column, or one for each entry. So a shape can be
    much smaller than the message, and a server can send it to its clients.

    With `silent` levels may be 0, where an entry says nothing of the inputs; `PrivateNoise` sends
    no such entry.

    A shape with a `floor` comes from somebody who is not trusted, and counts as

        (1 - floor²) r_i / mean(r) + floor²,

    so that no standard deviation is below `floor` times their root mean square. A defense's own
    limits are then left out.

    >>> shape = Shape({"w": (torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0, 3.0, 5.0]]))})
    >>> shape.levels({"w": torch.zeros(2, 3)})["w"]
    tensor([[ 1.,  3.,  5.],
            [ 2.,  6., 10.]])
    >>> shape.numbers
    5
    """

    factors: Mapping[str, Factors]
    silent: bool = False
    floor: float | None = None
    made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    """What is made of it once for all that share it, such as mechanisms."""

    def __post_init__(self) -> None:
        check_kind(self.factors, "factors", Mapping, "Give tuples of tensors by parameter name.")
        checked: set[int] = set()
        for name, factors in self.factors.items():
            for number, factor in enumerate(factors):
                if id(factor) not in checked:
                    _check_factor(factor, f"factors[{name!r}][{number}]", self.silent)
                    checked.add(id(factor))

    @property
    def spec_words(self) -> str:
        """In specifications, which hold no tensors."""
        return f"shape of {self.numbers} numbers"

    @classmethod
    def isotropic(cls, like: Mapping[str, Tensor]) -> "Shape":
        """The same level everywhere."""
        kinds = {(value.dtype, value.device) for value in like.values()}
        ones = {kind: torch.ones((), dtype=kind[0], device=kind[1]) for kind in kinds}
        return cls({name: (ones[v.dtype, v.device],) for name, v in like.items()})

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "made": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    @property
    def numbers(self) -> int:
        """How many numbers it takes."""
        return sum(factor.numel() for factors in self.factors.values() for factor in factors)

    def levels(self, like: Mapping[str, Tensor]) -> Tensors:
        """r_i in the shape, the type and the place of each parameter; the shape must fit them."""
        self.check(like)
        return {name: _product(self.factors[name], value) for name, value in like.items()}

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


def _product(factors: Factors, like: Tensor) -> Tensor:
    """One number stays one, expanded."""
    if not factors:
        return like.new_ones(()).expand(like.shape)
    return prod((f.to(like) for f in factors[1:]), start=factors[0].to(like)).expand(like.shape)


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
