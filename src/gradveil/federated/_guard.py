"""A client's look at the model it was sent, before it answers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import WrongValue, check_count, check_ratio
from gradveil._random import named_stream, normal_like
from gradveil.messages import (
    ConvUse,
    FunctionalLoss,
    GradientMessage,
    LayerUse,
    LinearUse,
    LocalUpdateMessage,
    Recorder,
    explained,
    settled,
)
from gradveil.shapes import synthetic


def parallel_rows(weight: Tensor) -> int:
    """The largest number of rows along one line, nearly; rows of zeros do not count.

    >>> import torch
    >>> parallel_rows(torch.tensor([[1.0, 2.0], [2.0, 4.0], [-3.0, -6.0], [1.0, 0.0]]))
    3
    """
    rows = weight.flatten(1)
    rows = rows[rows.norm(dim=1) > 0]
    if len(rows) < 2 or rows.shape[1] < 2:
        return 0
    rows = rows / rows.norm(dim=1, keepdim=True)
    return int(((rows @ rows.T).abs() > 0.9).sum(1).max())  # their cosines


def effective_share(signal: Tensor) -> float:
    """(Σ_n ‖δ_n‖)² / (N Σ_n ‖δ_n‖²): the share of the examples that the signal comes from.

    >>> import torch
    >>> effective_share(torch.tensor([[1.0], [1.0], [0.0], [0.0]]))
    0.5
    """
    sizes = signal.flatten(1).double().norm(dim=1)
    power = float(sizes.square().sum())
    return float(sizes.sum()) ** 2 / (len(sizes) * power) if power > 0 else 1.0


AnyMessage = GradientMessage | LocalUpdateMessage


class RefusedError(WrongValue):
    """A client does not do what its server asks for; nothing was sent."""


@dataclass(frozen=True)
class ModelGuard:
    """Looks at a server's model with made-up examples, and refuses it if it isolates single ones.

    Two signs, each of attacks by malicious servers that are known:

    - many rows of a linear layer, or kernels of the size of the image, that point the same way (an
      imprint layer, `Imprint`);
    - a signal that comes from a small part of the examples only (fishing for a class, `Fishing`;
      units that fire rarely, "trap weights").

    The examples are made up, so that a refusal tells nothing of the client's data. It finds what
    it looks for and proves nothing: rows that sort examples in eight directions instead of one pass
    it, and so do weights that are used outside of layers, as in ``x @ w``. What protects against
    every server is clipping (`PrivateNoise`).

    """

    examples: int = 64
    """How many are made up."""
    most_parallel: int = 8
    """Rows of one layer that may point the same way, beyond as many as random rows do."""
    least_effective: float = 0.25
    """The least `effective_share`; fishing for one of C classes makes it 1/C."""

    def __post_init__(self) -> None:
        check_count(self.examples, "examples")
        check_count(self.most_parallel, "most_parallel")
        check_ratio(self.least_effective, "least_effective")

    def check(self, message: AnyMessage, inputs: Tensor) -> None:
        """Refuse a model with one of the signs; of the batch only shapes are read."""
        for sign in self.signs(message, inputs):
            advice = "Nothing was sent; ask who made the model, or raise `ModelGuard`'s limits."
            raise RefusedError("The server's model", "not isolate single examples", sign, advice)

    def signs(self, message: AnyMessage, inputs: Tensor) -> Iterator[str]:
        """What is suspicious about the model, in words; nothing if it is not."""
        generator = named_stream("guard")
        own, made = synthetic(message, inputs, generator, self.examples)
        brighter = normal_like(made.flatten(1)[:, 0], generator)  # noise alone has the mean 0
        made = made + brighter.view(-1, *[1] * (made.dim() - 1))
        with explained(own, made):
            uses = _signals(message.loss, own.targets, made)
        for use in uses[:-1]:  # the last layer tells classes apart: that is its task
            weight = message.parameters[use.weight].detach()
            chance = normal_like(weight, generator)
            if _meets_once(use):
                rows = parallel_rows(weight)
                if rows > self.most_parallel + parallel_rows(chance):
                    yield f"{rows} of {len(weight)} rows of `{use.weight}` that point the same way"
            effective = effective_share(use.signal)
            if effective < self.least_effective:
                yield (
                    f"that `{use.weight}` learns from {effective:.0%} of made-up examples only,"
                    " whose classes are all equally frequent"
                )


def _meets_once(use: LayerUse) -> bool:
    """Whether each row meets a whole example: linear layers, kernels as large as the image."""
    if isinstance(use, LinearUse):
        return use.h[0].numel() == use.h.shape[-1]
    return isinstance(use, ConvUse) and use.h[0].numel() == use.h.shape[1]


def _signals(loss: FunctionalLoss, targets: Any, inputs: Tensor) -> list[LayerUse]:
    """The layers in the order of their use, each with δ = ∂L/∂h of each example."""
    own = {name: p.detach().requires_grad_() for name, p in loss.parameters.items()}
    x = inputs.detach().requires_grad_()
    recorder, value = settled(
        lambda opaque, copies: Recorder(own, opaque, copies, len(inputs)),
        lambda: loss(own, x.view_as(x), targets),
    )
    uses = [use for use in recorder.uses if use.h.requires_grad]
    signals = torch.autograd.grad(
        value, [use.h for use in uses], allow_unused=True, materialize_grads=True
    )
    for use, signal in zip(uses, signals, strict=True):
        use.signal = signal
    return uses
