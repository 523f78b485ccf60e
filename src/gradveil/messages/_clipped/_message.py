"""The gradient with each example clipped: what differentially private training sends."""

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import check_at_most, check_count, check_finite, check_kind, check_positive
from gradveil._typing import Tensors

from .._explain import explained
from .._functional import FunctionalLoss, check_match, is_transformed
from .._gradient import GradientMessage
from ._losses import check_targets, example_losses
from ._metric import Factors, Metric, added, zeros
from ._separable import check_outputs, check_separable
from ._sum import clipped_sum, each_example


class ClippedMessage:
    """ĝ(x) = (1/B) Σ_b g_b min(1, C / ‖Σ^{-1/2} g_b‖), g_b the gradient of the loss of example b.

    Formal guarantees: adding or removing an example moves B ĝ by at most C in the norm of Σ,
    replacing one by at most 2C. Rounding is on the safe side: C is taken smaller by 64 units in the
    last place, and where the terms of a gradient cancel, what is added up is what was clipped. What
    is left is the rounding of the sum itself, for continuous noise. For noise on a `grid`, B ĝ
    moves by C at most *after* it was rounded to the grid: `values` adds examples up in float64
    (n of them are off by n 2⁻⁵³ of their sizes), and C is smaller by √d steps, what rounding the
    sums with and without an example may add, and by 2⁻¹² of itself for the last bits of the other
    examples' gradients, which depend on the number of examples in some kernels. That share is an
    allowance: it holds where these bits are worth less than 2⁻¹² C altogether.

    | batch | sent before noise |
    | --- | --- |
    | no examples (Poisson sampling) | 0 |
    | an example with gradient 0 | it adds 0 |
    | entries with r = 0 | 0, and no part of a norm |
    | an example with a NaN or infinite gradient | an error, nothing is sent |
    | fewer or more examples than B | the sum over those that are there, divided by B |

    `values` is the fast form, for sending: no gradient of each example by itself where the layers
    are linear, convolutions, embeddings or the scale and shift of a norm. Calling it gives the same
    numbers as a function that can be differentiated with respect to the inputs, for bounds and
    attacks; then the model may draw no random numbers.

    Args:
        message: A gradient whose examples meet only in the loss.
        clip: The threshold C.
        factors: Of the relative variances r, as in `Shape.factors`; Σ = diag(r) / mean(r).
            `None`: Σ = I.
        batch_size: The expected number B of examples, public and fixed. If `None`, the number of
            examples at hand, which is then known to whoever gets the message.
        grid: z of noise z C that will be drawn on a grid; `None` for continuous noise.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> message = GradientMessage(model, lambda o, _: o.sum(), None)
    >>> clipped = ClippedMessage(message, clip=5.0)
    >>> clipped.values(torch.tensor([[3.0, 4.0], [30.0, 40.0]]))["weight"].round(decimals=3)
    tensor([[3., 4.]])
    """

    def __init__(
        self,
        message: GradientMessage,
        clip: float,
        factors: Mapping[str, Factors] | None = None,
        batch_size: int | None = None,
        grid: float | None = None,
    ) -> None:
        check_kind(
            message,
            "message",
            GradientMessage,
            "Examples can be clipped where the message is a gradient. For the update of local steps"
            " use unit='client', which clips it as a whole.",
        )
        check_positive(clip, "clip")
        check_at_most(clip, "clip")
        if grid is not None:
            check_positive(grid, "grid")
        if batch_size is not None:
            check_count(batch_size, "batch_size")
        self.message, self.clip, self.factors = message, clip, factors
        self.batch_size, self.grid = batch_size, grid

    @property
    def loss(self) -> FunctionalLoss:
        """The loss whose gradient is clipped."""
        return self.message.loss

    @property
    def takes_tokens(self) -> bool:
        """Whether the inputs are integers."""
        return self.message.takes_tokens

    @property
    def targets(self) -> Any:
        """The labels of the batch."""
        return self.message.targets

    @property
    def parameters(self) -> Tensors:
        """The trainable parameters, by name, as they are now."""
        return self.message.parameters

    def double(self) -> "ClippedMessage":
        """The same message in float64."""
        wide = copy(self)
        wide.message = self.message.double()
        return wide

    def values(self, inputs: Tensor) -> Tensors:
        """The same numbers for a client that only sends them; an empty batch gives 0.

        For noise on a grid they are in float64.
        """
        wide = self.grid is not None
        if len(inputs) == 0:
            return zeros(self.parameters, torch.float64 if wide else None)
        self._check(inputs)
        metric = self._metric()
        with explained(self, inputs):
            summed = clipped_sum(self.message, inputs.detach(), metric, self.clip, wide=wide)
        kept = metric.kept(summed)
        values = {n: g / self._divisor(inputs) for n, g in kept.items()}
        check_finite(values, "message(inputs)")
        return values

    def __call__(self, inputs: Tensor) -> Tensors:
        """The clipped gradient; differentiable with respect to the inputs."""
        self._check(inputs)
        gradients = each_example(self._clipped, inputs, self.output_gradient(inputs))
        return {n: g.sum(0) / self._divisor(inputs) for n, g in gradients.items()}

    def separates(self, inputs: Tensor) -> bool:
        """Yes, where the divisor B is known: what mixes examples is an error when evaluated."""
        return self.batch_size is not None or self.targets is not None

    def output_gradient(self, inputs: Tensor) -> Tensor:
        """∇_outputs L_b of each example's own loss."""
        outputs = self.loss.outputs(self.parameters, inputs)
        check_outputs(outputs, len(inputs))
        return example_losses(self.loss, outputs, self.targets)[0]

    def example_gradient(self, example: Tensor, output_gradient: Tensor) -> Tensors:
        """What one example adds to the message."""
        clipped = self._clipped(example, output_gradient)
        return {name: g / self._divisor(self.targets) for name, g in clipped.items()}

    def _clipped(self, example: Tensor, output_gradient: Tensor) -> Tensors:
        metric = self._metric()
        g = self.message.example_gradient(example, output_gradient)
        squares = added((metric.squares(n, v.unsqueeze(0)) for n, v in g.items()), example, 1)
        factor = metric.factor(squares, self.clip)[0]
        return {name: v * factor.to(v.dtype) for name, v in metric.kept(g).items()}

    def _metric(self) -> Metric:
        return Metric(self.factors, self.parameters, self.grid)

    def _check(self, inputs: Tensor) -> None:
        check_match(inputs, self.targets, tokens=self.takes_tokens)
        check_targets(self.targets, len(inputs))
        if is_transformed(inputs):  # inside of vmap nothing can be tested
            return
        with explained(self, inputs):
            check_separable(self.message, inputs)

    def _divisor(self, batch: Any) -> int:
        return len(batch) if self.batch_size is None else self.batch_size
