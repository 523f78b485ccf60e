"""A message clipped as a whole, for one guarantee per client."""

from collections.abc import Mapping

import torch
from torch import Tensor

from gradveil._checks import check_at_most, check_finite, check_positive, check_values
from gradveil._typing import Tensors

from .._mapped import MappedMessage
from .._protocol import Message, secluded, values_of
from ._metric import Factors, Metric


class ClippedUpdate(MappedMessage):
    """ĝ(x) = g(x) min(1, C / ‖Σ^{-1/2} g(x)‖): all that a client sends, clipped as one.

    Formal guarantees: adding or removing the client moves the sum over clients by at most C in the
    norm of Σ, replacing it by another one by at most 2C, whatever the message is. Rounding as in
    `ClippedMessage`. A message with a model is computed on a copy of it: its code leaves nothing of
    the client's data in the user's.

    Args:
        message: Anything that maps inputs to values, such as the update of local steps.
        clip: The threshold C.
        factors: Of the relative variances r, as in `Shape.factors`; `None`: Σ = I.
        grid: z of noise z C that will be drawn on a grid: C is then smaller by √d/2 of its steps,
            so that the rounded update is within C. `None` for continuous noise.

    >>> clipped = ClippedUpdate(lambda x: {"w": x.sum(0)}, clip=5.0)
    >>> clipped(torch.tensor([[30.0, 40.0]]))["w"].round(decimals=3)
    tensor([3., 4.])
    """

    passed_on = (*MappedMessage.passed_on, "takes_tokens")

    def __init__(
        self,
        message: Message,
        clip: float,
        factors: Mapping[str, Factors] | None = None,
        grid: float | None = None,
    ) -> None:
        super().__init__(message, after=self._clipped)
        check_positive(clip, "clip")
        check_at_most(clip, "clip")
        if grid is not None:
            check_positive(grid, "grid")
        self.clip, self.factors, self.grid = clip, factors, grid

    def values(self, inputs: Tensor) -> Tensors:
        """The same numbers for a client that only sends them."""
        with torch.no_grad(), secluded(self.message) as alone:
            values = values_of(alone, inputs)
            check_values(values, "message(inputs)")
            check_finite(values, "message(inputs)")
            clipped = self._clipped(values)
            check_finite(clipped, "message(inputs)")
            return clipped

    def _clipped(self, values: Tensors) -> Tensors:
        metric = Metric(self.factors, values, self.grid, rounded="each")
        squares = sum(metric.squares(name, value.unsqueeze(0)) for name, value in values.items())
        factor = metric.factor(torch.as_tensor(squares), self.clip)[0]
        return {name: v * factor.to(v.dtype) for name, v in metric.kept(values).items()}
