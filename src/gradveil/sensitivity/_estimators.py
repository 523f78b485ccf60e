"""Estimators for every message: random directions, and the dense Jacobian, their oracle."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.func import jvp, vjp

from gradveil._checks import check_count, is_out_of_memory
from gradveil._random import normal_like
from gradveil._tensors import Tensors
from gradveil.messages import Message, check_separates, each_row, separates

from ._moments import Measurement

ROOM = 2**24
"""How many numbers of directions and of the derivatives along them are held at a time."""


@dataclass(frozen=True)
class Sketch:
    """‖∇g_i‖² = E_v (∂_v g_i)² for random directions v with E[v vᵀ] = I (Lemma 1, Algorithm 1).

    Unbiased: E (∇g_iᵀ v)² = ∇g_iᵀ E[v vᵀ] ∇g_i. With Gaussian probes (∂_v g_i)² is ‖∇g_i‖² χ²₁,
    so k probes have a relative standard error of √(2/k). Forward mode over reverse mode: the
    price of a probe is that of about two gradients, whatever the number of parameters. Works for
    every message; examples of a batch add cross terms of mean zero, which `PerExample` avoids.

    >>> from gradveil import measure
    >>> message = lambda inputs: {"w": inputs.square().sum(0)}
    >>> generator = torch.Generator().manual_seed(0)
    >>> inputs = torch.tensor([[1.0, 2.0]])
    >>> moments = measure(message, inputs, Sketch(probes=1000), generator=generator)
    >>> [round(float(square)) for square in moments.squared_sensitivities["w"]]
    [4, 17]
    """

    probes: int = 10
    """The number k of directions, as the paper has it."""

    def __post_init__(self) -> None:
        check_count(self.probes, "probes")

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        """Measure the message at these inputs."""
        values = message(inputs)
        probes = draw_probes(inputs, self.probes, generator)
        along = self._along(message, inputs, probes, chunk_size(values))
        return Measurement(values, _sum_of_squares(values, along, self.probes))

    def _along(
        self, message: Message, inputs: Tensor, probes: Tensor, chunk: int
    ) -> Iterator[Tensors]:
        return (directional_derivatives(message, inputs, part) for part in probes.split(chunk))


@dataclass(frozen=True)
class PerExample(Sketch):
    """‖∇g_i‖² = Σ_b E_v (∂_v g_{b,i})², each example b probed on its own.

    Where g(x) = Σ_b g_b(x_b), the gradients of different examples are with respect to different
    inputs, so their squared norms add. Squaring before the sum over examples drops the cross
    terms 2 ∂_v g_b ∂_v g_c of `Sketch`, which have mean zero and are pure noise: a batch of B
    equal examples counts like B probes.
    """

    probes: int = 1
    """Directions for each example."""

    def _along(
        self, message: Message, inputs: Tensor, probes: Tensor, chunk: int
    ) -> Iterator[Tensors]:
        advice = "Use `Sketch()`, or estimator='auto'."
        check_separates(message, inputs, "for the estimator `PerExample`", advice)
        return _example_derivatives(message, inputs, probes, chunk)


@dataclass(frozen=True)
class Exact:
    """‖∇g_i‖² = Σ_j (∂g_i/∂x_j)² over every entry of the inputs.

    One forward-mode derivative for each entry of the inputs (of one example, where examples enter
    as a sum), some at a time, whatever the model's size.

    >>> from gradveil import measure
    >>> message = lambda inputs: {"w": inputs.square().sum(0)}
    >>> measure(message, torch.tensor([[1.0, 2.0]]), Exact()).squared_sensitivities["w"]
    tensor([ 4., 16.])
    """

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        """Measure the message at these inputs."""
        values = message(inputs)
        return Measurement(values, _sum_of_squares(values, _columns(message, inputs, values)))


def _columns(message: Message, inputs: Tensor, values: Tensors) -> Iterator[Tensors]:
    """Of the Jacobian, some at a time."""
    if separates(message, inputs):
        chunk = chunk_size(values, extra=inputs[0].numel())
        for axes in unit_vectors(inputs[0], max(1, chunk // len(inputs))):
            everywhere = axes.unsqueeze(1).expand(-1, *inputs.shape)
            yield from _example_derivatives(message, inputs, everywhere, chunk)
    else:
        for axes in unit_vectors(inputs, chunk_size(values, extra=inputs.numel())):
            yield directional_derivatives(message, inputs, axes)


def sum_of_example_squares(message: Message, inputs: Tensor, values: Tensors) -> Tensors:
    """Σ_b c_b² in float64, c_b what example b adds to the message, which has these values."""
    delta = message.output_gradient(inputs)  # type: ignore[attr-defined]
    size = chunk_size(values, ROOM // 4)
    parts = zip(inputs.split(size), delta.split(size), strict=True)
    each = (each_row(message.example_gradient, *part) for part in parts)  # type: ignore[attr-defined]
    wide = ({name: gradient.double() for name, gradient in alone.items()} for alone in each)
    return _sum_of_squares({name: value.double() for name, value in values.items()}, wide)


def _sum_of_squares(like: Tensors, parts: Iterator[Tensors], divisor: int = 1) -> Tensors:
    """Σ over derivatives of shape (probes or examples, *shape), part after part."""
    sums = {name: torch.zeros_like(value) for name, value in like.items()}
    for part in parts:
        for name, derivative in part.items():
            sums[name] += derivative.square().sum(0)
    return sums if divisor == 1 else {name: total / divisor for name, total in sums.items()}


def draw_probes(inputs: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` Gaussian directions of E[v vᵀ] = I, shape (count, *inputs.shape)."""
    return normal_like(inputs.new_empty(()).expand(count, *inputs.shape), generator)


def chunk_size(values: Tensors, room: int | None = None, extra: int = 0) -> int:
    """How many tangents of the message, each with `extra` numbers, fit into the room."""
    entries = sum(value.numel() for value in values.values())
    return max(1, (room or ROOM) // max(1, entries + extra))


def unit_vectors(like: Tensor, size: int) -> Iterator[Tensor]:
    """The unit vectors of the space of `like`, in blocks of shape (at most size, *like.shape)."""
    count = like.numel()
    for start in range(0, count, size):
        block = like.new_zeros(min(size, count - start), count)
        block[:, start:] = torch.eye(len(block), count - start, dtype=like.dtype)
        yield block.view(-1, *like.shape)


Points = tuple[Tensor, ...]
Mode = Callable[[Callable[..., Tensors], Points, Points], Tensors]
"""(f, x, v) to ∂_v f(x)."""


def directional_derivatives(message: Message, inputs: Tensor, directions: Tensor) -> Tensors:
    """∂_v g for each row v of `directions`: tensors of shape (directions, *shape)."""
    return row_derivatives(lambda mode, v: mode(message, (inputs,), (v,)), directions)


def _example_derivatives(
    message: Message, inputs: Tensor, directions: Tensor, chunk: int
) -> Iterator[Tensors]:
    """∂_v g_b for each example b and each v of `directions`, at most `chunk` of them at a time.

    With δ_b the gradient of the loss with respect to the outputs of example b, g_b is a function
    of (x_b, δ_b) alone; its derivative along (v_b, ∂_v δ_b) is ∂_v g_b.
    """
    delta_of = message.output_gradient  # type: ignore[attr-defined]
    gradient = message.example_gradient  # type: ignore[attr-defined]
    moved = directional_derivatives(lambda x: {"": delta_of(x)}, inputs, directions)[""]

    def along(mode: Mode, x: Tensor, d: Tensor, x_tangent: Tensor, d_tangent: Tensor) -> Tensors:
        return mode(gradient, (x, d), (x_tangent, d_tangent))

    points = inputs.expand_as(directions), delta_of(inputs).expand_as(moved), directions, moved
    for part in zip(*(rows.flatten(0, 1).split(chunk) for rows in points), strict=True):
        yield row_derivatives(along, *part)


def row_derivatives(along: Callable[..., Tensors], *rows: Tensor) -> Tensors:
    """`along(mode, *row)` for each row, stacked: tensors of shape (rows, *shape).

    The mode of differentiation is forward mode; where PyTorch lacks it for a layer or a loss (or
    fails at it, as for the mean of `mse_loss`), reverse mode applied twice, which is slower.
    """
    try:
        found: Tensors = each_row(partial(along, forward), *rows)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        found = each_row(partial(along, twice_backward), *rows)
    return found


def forward(function: Callable[..., Tensors], point: Points, tangent: Points) -> Tensors:
    """∂_v f(x) beside f(x)."""
    derivative: Tensors = jvp(function, point, tangent)[1]
    return derivative


def twice_backward(function: Callable[..., Tensors], point: Points, tangent: Points) -> Tensors:
    """J v as the transpose of the linear map u ↦ Jᵀu, taken at u = 0 as well as anywhere."""
    values, pull_back = vjp(function, *point)[:2]
    zeros = {name: torch.zeros_like(value) for name, value in values.items()}
    derivative: Tensors = vjp(pull_back, zeros)[1](tangent)[0]
    return derivative
