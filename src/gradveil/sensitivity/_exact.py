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
        max_elements: The memory for directions and the derivatives along them, in numbers; at
            least one of each is held. What the model needs for its own layers comes on top.

    >>> from gradveil import measure
    >>> message = lambda inputs: {"w": inputs.square().sum(0)}
    >>> measure(message, torch.tensor([[1.0, 2.0]]), Exact()).squared_sensitivities["w"]
    tensor([ 4., 16.])
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
            chunk = chunk_size(values, self.max_elements, extra=inputs[0].numel())
            for axes in unit_vectors(inputs[0], max(1, chunk // len(inputs))):
                everywhere = axes.unsqueeze(1).expand(-1, *inputs.shape)
                yield from example_derivatives(message, inputs, everywhere, chunk)
        else:
            chunk = chunk_size(values, self.max_elements, extra=inputs.numel())
            for axes in unit_vectors(inputs, chunk):
                yield directional_derivatives(message, inputs, axes)


def unit_vectors(like: Tensor, size: int) -> Iterator[Tensor]:
    """The unit vectors of the space of `like`, in blocks of shape (at most size, *like.shape)."""
    count = like.numel()
    for start in range(0, count, size):
        block = like.new_zeros(min(size, count - start), count)
        block[:, start:] = torch.eye(len(block), count - start, dtype=like.dtype)
        yield block.view(-1, *like.shape)
