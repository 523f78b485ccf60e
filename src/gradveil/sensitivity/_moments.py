"""Per-parameter statistics of a message, all that a defense needs to plan, and who finds them."""

import re
from collections import UserDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from gradveil._checks import (
    WrongValue,
    check_count,
    check_kind,
    check_not_negative,
    check_positive,
    check_structure,
    check_values,
)
from gradveil._tensors import Tensors
from gradveil.messages import Message

OPTIONAL_FIELDS = ("squared_sensitivities", "second_squares", "squared_example_values")
"""The fields of `Moments` that hold tensors beside `squared_values`."""


@dataclass(frozen=True)
class Moments:
    """E[g_i²] and E‖∇_x g_i‖², over one batch or over many.

    Moments of one batch plan the paper's locally optimal defenses, Moments averaged over batches
    the globally optimal ones of Theorems 2 to 4. They add up: `a + b` is the mean over the batches
    of both, each weighted by its `count`, so that a data set streams through `sum`.

    Moments of private data are private. They stay with the client.

    >>> import torch
    >>> one = Moments({"w": torch.tensor([1.0, 4.0])}, None, input_size=2)
    >>> two = Moments({"w": torch.tensor([3.0, 0.0])}, None, input_size=2)
    >>> (one + two).squared_values["w"]
    tensor([2., 2.])
    """

    squared_values: Mapping[str, Tensor]
    """E[g_i²]."""
    squared_sensitivities: Tensors | None
    """E‖∇_x g_i‖²; `None` where only the values were taken."""
    input_size: int
    """m, the number of entries of the inputs: the dimension of what an attacker is after."""
    count: float = 1
    """Over how many batches this is the mean."""
    clip: float | None = None
    """The threshold P if these are moments of the message clamped to [-P, P] (Theorem 3)."""
    second_squares: Tensors | None = None
    """A second estimate of E‖∇_x g_i‖², unbiased and independent of the first; see `judged`."""
    hidden: int = 0
    """How many entries move with the inputs although autograd reports a derivative of 0."""
    estimator: str | None = None
    """What measured the sensitivities, as "per-example(probes=2)"; "mixed" where moments of several
    were added; `None`: nothing did, or unknown."""
    squared_example_values: Tensors | None = None
    """h_i = E g_{b,i}² over examples b: the empirical Fisher matrix's diagonal, in the place of the
    loss's curvature. `None` where it was not measured (`measure(..., examples=True)`)."""

    def __post_init__(self) -> None:
        if not isinstance(self.squared_values, SquaresOf):  # whose values the message gave
            check_values(self.squared_values, "squared_values")
        check_count(self.input_size, "input_size")
        check_positive(self.count, "count")
        if self.clip is not None:
            check_not_negative(self.clip, "clip")
        for name in OPTIONAL_FIELDS:
            if (tensors := getattr(self, name)) is not None:
                check_values(tensors, name)
                check_structure(tensors, self.squared_values, name, "squared_values")

    @classmethod
    def of_values(cls, values: Tensors, input_size: int) -> "Moments":
        """The moments that need no derivative: for defenses that look at the values alone."""
        return cls(SquaresOf(values), None, input_size)

    @property
    def like(self) -> Mapping[str, Tensor]:
        """Tensors of the names and sizes of the entries, at no cost."""
        squares = self.squared_values
        return squares.data if isinstance(squares, SquaresOf) else squares

    @property
    def size(self) -> int:
        """d, the number of entries of the message."""
        return sum(value.numel() for value in self.like.values())

    @property
    def known_squared_sensitivities(self) -> Tensors:
        """E‖∇_x g_i‖²; an error where only the values were taken."""
        if self.squared_sensitivities is None:
            advice = "Make them with `measure(message, inputs)`."
            raise WrongValue("moments", "hold sensitivities", "none", advice)
        return self.squared_sensitivities

    @property
    def known_squared_example_values(self) -> Tensors:
        """h_i = E g_{b,i}², which stands for the curvature; an error where it was not measured."""
        if self.squared_example_values is None:
            expected = "hold squared gradients of single examples"
            advice = "Make them with `measure(message, inputs, examples=True)`."
            raise WrongValue("moments", expected, "none", advice)
        return self.squared_example_values

    def judged(self) -> "Moments":
        """The same moments with sensitivities that are independent of every plan made from these.

        A plan puts little noise where it believes that little is revealed. Judged by the estimates
        that it was made from it looks better than it is; by the second estimate it does not. The
        moments themselves where there is no second one.
        """
        if self.second_squares is None:
            return self
        return replace(self, squared_sensitivities=self.second_squares, second_squares=None)

    def __add__(self, other: "Moments") -> "Moments":
        """The mean over the batches of both."""
        if not isinstance(other, Moments):
            return NotImplemented
        check_structure(other.squared_values, self.squared_values, "other", "self")
        if other.clip != self.clip:
            found = f"{self.clip} and {other.clip}"
            raise WrongValue("clip", "be the same in moments that are added", found)
        total = self.count + other.count
        ours, theirs = self.count / total, other.count / total

        def mean(a: Mapping[str, Tensor] | None, b: Mapping[str, Tensor] | None) -> Tensors | None:
            return None if a is None or b is None else {n: ours * a[n] + theirs * b[n] for n in a}

        names = ("squared_values", *OPTIONAL_FIELDS)
        means: dict[str, Any] = {n: mean(getattr(self, n), getattr(other, n)) for n in names}
        return Moments(
            **means,
            input_size=max(self.input_size, other.input_size),
            count=total,
            clip=self.clip,
            hidden=max(self.hidden, other.hidden),
            estimator=self.estimator if self.estimator == other.estimator else "mixed",
        )

    def __radd__(self, other: object) -> "Moments":
        return self if other == 0 else NotImplemented

    @staticmethod
    def average(moments: Iterable["Moments"]) -> "Moments":
        """The mean over all batches, in one pass."""
        check_kind(moments, "moments", Iterable, "Give a list of Moments.")
        total = sum(moments)
        if not isinstance(total, Moments):
            raise WrongValue("moments", "not be empty", "no Moments in it")
        return total

    def clipped(self, clip: float) -> "Moments":
        """The moments of the message clamped to [-clip, clip]: g_P of Theorem 3.

        Where |g_i| ≥ P the clamped entry is constant and its sensitivity is 0. That can be said
        of the moments of one batch; a mean over batches must be measured with `clip`. The squared
        values of single examples stay: they stand for the loss's curvature, not for the message.
        """
        check_not_negative(clip, "clip")
        if self.clip == clip:
            return self
        if self.clip is not None or self.count != 1:
            expected = "be those of one batch, or measured with that clip"
            found = f"`clip = {self.clip}` over {self.count:g} batches"
            advice = f"Measure each batch with `measure(message, inputs, clip={clip})`; add those."
            raise WrongValue(f"Moments for `clip = {clip}`", expected, found, advice)
        squares = self.squared_values

        def inside(tensors: Tensors | None) -> Tensors | None:
            return tensors and {n: t * (squares[n] < clip**2) for n, t in tensors.items()}

        return replace(
            self,
            squared_values={n: s.clamp(max=clip**2) for n, s in squares.items()},
            squared_sensitivities=inside(self.squared_sensitivities),
            second_squares=inside(self.second_squares),
            clip=clip,
        )


@dataclass(frozen=True)
class Measurement:
    """What an estimator found out about a message at one batch of inputs."""

    values: Tensors
    """g(x), the message itself."""
    squared_sensitivities: Tensors
    """The estimate of ‖∇_x g_i‖² for each entry."""
    estimator: str | None = None
    """What measured it, where that is not the estimator that was called (`estimator_name`)."""
    example_squares: Tensors | None = None
    """Σ_b c_b² over what single examples add to the message, where that was found on the way."""


class Estimator(Protocol):
    """A way to find g(x) and ‖∇_x g_i(x)‖²."""

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        """Measure the message at these inputs."""
        ...


def estimator_name(estimator: object) -> str:
    """What an estimator is called, with options that are not its defaults: "sketch(probes=2)"."""
    if not is_dataclass(estimator):
        return str(getattr(estimator, "__name__", type(estimator).__name__))
    given = [
        f"{field.name}={getattr(estimator, field.name)!r}"
        for field in fields(estimator)
        if getattr(estimator, field.name) != field.default
    ]
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(estimator).__name__).lower()
    return f"{name}({', '.join(given)})" if given else name


def check_moments(moments: object) -> None:
    """Require Moments."""
    check_kind(moments, "moments", Moments, "Make them with `measure(message, inputs)`.")


class SquaresOf(UserDict[str, Tensor]):
    """g_i² by name, computed when asked for: moments in passing take no memory for them."""

    def __getitem__(self, name: str) -> Tensor:
        return self.data[name].square()
