"""Random directions for each example on its own, without the cross terms between examples."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_choice, check_count
from gradveil._typing import Tensors
from gradveil.messages import Message, separates

from ._derivatives import Mode, row_derivatives
from ._estimator import Measurement, SquareSums, chunk_size, draw_probes
from ._sketch import directional_derivatives


@dataclass(frozen=True)
class PerExample:
    """‖∇g_i‖² = Σ_b E_v (∂_v g_{b,i})², each example b probed on its own.

    Where g(x) = Σ_b g_b(x_b), the gradients of different examples are with respect to different
    inputs, so their squared norms add. Squaring before the sum over examples drops the cross
    terms 2 ∂_v g_b ∂_v g_c of `Sketch`, which have mean zero and are pure noise: a batch of B
    equal examples counts like B probes.

    Args:
        probes: The number of directions for each example.
        kind: "gaussian" or "rademacher".

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import GradientMessage, measure
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 4, 2])
    >>> message = GradientMessage(model, cross_entropy, torch.tensor([0, 1]))
    >>> sorted(measure(message, torch.ones(2, 3), PerExample()).squared_sensitivities)
    ['layers.1.bias', 'layers.1.weight', 'layers.3.bias', 'layers.3.weight']
    """

    probes: int = 1
    kind: str = "gaussian"

    def __post_init__(self) -> None:
        check_count(self.probes, "probes")
        check_choice(self.kind, "kind", ("gaussian", "rademacher"))

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        """Measure the message at these inputs; it must be a sum over examples."""
        values = message(inputs)
        if not separates(message, inputs):
            raise ValueError(
                "Parameter `message` should be a sum over examples for the estimator `PerExample`."
                f" Found a {type(message).__name__} whose examples interact (BatchNorm in training"
                " mode, dropout, local update steps, or a loss that compares examples). Use"
                " `Sketch()`, or estimator='auto'."
            )
        sums = SquareSums(values)
        probes = draw_probes(inputs, self.probes, self.kind, generator)
        for derivatives in example_derivatives(message, inputs, probes, chunk_size(values)):
            sums.add(derivatives)
        return sums.measurement(values, self.probes)


def example_derivatives(
    message: Message, inputs: Tensor, directions: Tensor, chunk: int
) -> Iterator[Tensors]:
    """∂_v g_b for each example b and each v of `directions`, at most `chunk` of them at a time.

    With δ_b the gradient of the loss with respect to the outputs of example b, g_b is a function
    of (x_b, δ_b) alone; its derivative along (v_b, ∂_v δ_b) is ∂_v g_b.
    """
    delta, delta_tangents = _output_gradient(message, inputs, directions)
    rows = (
        inputs.expand_as(directions).flatten(0, 1),
        delta.expand_as(delta_tangents).flatten(0, 1),
        directions.flatten(0, 1),
        delta_tangents.flatten(0, 1),
    )
    for part in zip(*(row.split(chunk) for row in rows), strict=True):
        yield _chunk_derivatives(message, *part)


def _output_gradient(message: Message, inputs: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """δ, and ∂_v δ for each direction."""
    gradient = message.output_gradient  # type: ignore[attr-defined]
    tangents = directional_derivatives(lambda x: {"": gradient(x)}, inputs, directions)
    return gradient(inputs), tangents[""]


def _chunk_derivatives(
    message: Message, inputs: Tensor, delta: Tensor, direction: Tensor, delta_tangent: Tensor
) -> Tensors:
    gradient = message.example_gradient  # type: ignore[attr-defined]

    def along(mode: Mode, x: Tensor, d: Tensor, x_tangent: Tensor, d_tangent: Tensor) -> Tensors:
        return mode(gradient, (x, d), (x_tangent, d_tangent))

    return row_derivatives(along, inputs, delta, direction, delta_tangent)
