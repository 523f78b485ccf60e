"""The dense Jacobian, column by column: the oracle of all estimators."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_count
from gradveil._typing import Tensors
from gradveil.messages import Message, separates

from ._estimator import Measurement, chunk_size
from ._per_example import example_derivatives
from ._sketch import directional_derivatives


@dataclass(frozen=True)
class Exact:
    """‖∇g_i‖² = Σ_j (∂g_i/∂x_j)² over every entry of the inputs.

    One forward-mode derivative for each entry of the inputs (of one example, where examples enter
    as a sum), in chunks of at most `max_elements` numbers, whatever the model's size.

    Args:
        max_elements: The memory for tangents, in numbers; at least one tangent is held.
    """

    max_elements: int = 2**24

    def __post_init__(self) -> None:
        check_count(self.max_elements, "max_elements")

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        """Measure the message at these inputs."""
        values = message(inputs)
        totals = {name: torch.zeros_like(value) for name, value in values.items()}
        for columns in self._jacobian_columns(message, inputs, values):
            for name, column in columns.items():
                totals[name] += column.square().sum(0)
        return Measurement(values, totals, None)

    def _jacobian_columns(
        self, message: Message, inputs: Tensor, values: Tensors
    ) -> Iterator[Tensors]:
        if separates(message, inputs):
            for axes in unit_vectors(inputs[0], self._chunk(values, len(inputs))):
                everywhere = axes.unsqueeze(1).expand(-1, *inputs.shape)
                yield from example_derivatives(message, inputs, everywhere, values)
        else:
            for axes in unit_vectors(inputs, self._chunk(values)):
                yield directional_derivatives(message, inputs, axes)

    def _chunk(self, values: Tensors, rows: int = 1) -> int:
        return max(1, chunk_size(values, self.max_elements) // rows)


def unit_vectors(like: Tensor, size: int) -> Iterator[Tensor]:
    """The unit vectors of the space of `like`, in blocks of shape (at most size, *like.shape)."""
    count = like.numel()
    for start in range(0, count, size):
        block = like.new_zeros(min(size, count - start), count)
        block[:, start:] = torch.eye(len(block), count - start, dtype=like.dtype)
        yield block.view(-1, *like.shape)
