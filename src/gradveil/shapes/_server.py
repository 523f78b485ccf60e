"""The server as a source of shapes, within limits that hold whatever it sends."""

from collections.abc import Mapping
from dataclasses import replace
from math import log
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import WrongValue, check_kind, check_positive, check_ratio
from gradveil._tensors import flatten, unflatten
from gradveil._typing import Tensors
from gradveil.mechanisms import constant_like
from gradveil.sensitivity import Moments

from ._shape import Given, Needs, Request, Shape, Source, check_state


class FromServer(Source):
    """A shape that the server sends; the client sets the amount.

    Nothing is measured, and a step costs what isotropic noise costs. Before the first shape all
    levels are equal. With relative levels r_i the noise has the variances

        Σ_ii = scale² ((1 - floor²) r_i / mean(r) + floor²),    r_i ≤ cap · geometric mean of r.

    Formal guarantees, for every shape that a server may send, by design or by mistake: no entry
    has a standard deviation below `floor` times the scale, and their root mean square is the scale.
    What is sent is isotropic noise of floor · scale, and more noise on top of it that does not
    depend on the batch; so whatever holds for `GradientNoise(floor * scale)` holds here. A few
    entries cannot soak up the noise either: whatever one in a hundred asks for, the others keep
    nine tenths of the scale in root mean square (with the default `cap`). For rounding all of this
    holds of the steps. Pruning sends the share of entries that the client says.

    A hostile server can still choose where noise is larger, put the entries that it wants to read
    at the floor, and, of pruning, choose which entries are sent. Pruning without noise and rounding
    have no guarantee at all. A larger `floor` leaves a server less to choose.

    The defense's own limits on measured ratios (`cap`, `floor`, `least`) are not used.

    Args:
        floor: The least standard deviation over the scale, in [0, 1]; 1 is isotropic noise. 0.05
            costs an honest server less than 1 % of the gain where layers are alike, and a tenth
            where they differ by 1e4 (a fresh CIFAR ConvNet-16).
        cap: The largest level that counts, over the geometric mean of all.

    >>> from gradveil import OptimalNoise
    >>> source = FromServer(floor=0.5)
    >>> source.use(Shape({"w": (torch.tensor([1.0, 1.0, 1e20]),)}))
    >>> defense = OptimalNoise(scale=0.1, source=source)
    >>> std = defense.respond(lambda x: {"w": x.sum(0)}, torch.zeros(1, 3)).mechanism.std["w"]
    >>> bool((std >= 0.05).all()), round(float(std.square().mean()), 6)
    (True, 0.01)
    """

    name = "server"

    def __init__(self, floor: float = 0.05, cap: float = 10.0) -> None:
        check_ratio(floor, "floor")
        check_positive(cap, "cap")
        self.floor, self.cap = floor, cap
        self.shape: Shape | None = None
        """The last shape; `None` before the first."""

    def use(self, shape: Shape) -> None:
        """Spread noise by this shape from now on; that it fits is seen when there is a message."""
        check_kind(shape, "shape", Shape, "Give the one that the server sent.")
        if shape.silent:
            found = "`silent = True`: a level of 0 would switch the noise off"
            advice = "Give it to `PrivateNoise`, which sends no such entry."
            raise WrongValue("shape", "have levels above 0", found, advice)
        self.shape = shape

    def given(self, asked: Request) -> Given:
        """The server's shape within limits; the moments hold names and sizes, and no numbers."""
        like = asked.like
        moments = Moments(constant_like(1.0, like), None, asked.inputs.numel())
        if self.shape is None:
            return Given(replace(Shape.isotropic(like), floor=self.floor), moments)
        kept = self.shape.made  # once for all steps, and clients of a process, that share it
        sizes = [(name, v.shape, v.dtype, v.device) for name, v in like.items()]
        key = (self.floor, self.cap, *sizes)
        if key not in kept:
            levels = limited_levels(self.shape, like, self.cap)
            factors = {name: (level.to(like[name]),) for name, level in levels.items()}
            kept[key] = Given(Shape(factors, floor=self.floor), moments)
        given: Given = kept[key]
        return given

    def check(self, needs: Needs) -> None:
        """Require an amount that needs no examples, and a defense that takes a shape."""
        if needs.examples is not None:
            raise WrongValue(
                needs.examples,
                "be left out with a shape from the server, which says how noise is spread, not how"
                " much",
                "it given",
                "Use a `scale`, a `ratio` or a `step`, or source=Public(examples).",
            )
        if not needs.sensitivities:
            expected = "be left out for a defense that spreads nothing by a shape"
            advice = "Use it with optimal noise, pruning or rounding."
            raise WrongValue("source", expected, repr(self), advice)

    def reset(self) -> None:
        """Forget the shape: equal levels until the next one."""
        self.shape = None

    def state_dict(self) -> dict[str, Any]:
        """The last shape, by parameter name; nothing before the first."""
        return {} if self.shape is None else {"shape": dict(self.shape.factors)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        check_state(state, {"shape"})
        self.reset()
        if state:
            self.use(Shape(state["shape"]))

    def __repr__(self) -> str:
        return f"FromServer(floor={self.floor}, cap={self.cap})"


def limited_levels(shape: Shape, like: Mapping[str, Tensor], cap: float) -> Tensors:
    """r_i over the geometric mean of all levels, at most `cap`.

    A level counts up to 1e4 times the median of all, and down to 1e-4 of it, so that no few of them
    move the mean by much. It stays above 0.
    """
    shape.check(like)
    device = next(iter(like.values())).device
    one, logs = torch.zeros((), dtype=torch.float64, device=device), {}
    for name, value in like.items():
        parts = [factor.to(one).log() for factor in shape.factors[name]]
        logs[name] = sum(parts, one).expand(value.shape)
    row = flatten(logs)
    if len(row):
        row = (row - row.median()).clamp_(-log(1e4), log(1e4))
        row = (row - row.mean()).exp_().clamp_(1e-9, cap)
    return unflatten(row, like)
