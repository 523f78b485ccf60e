"""Public examples as a source of shapes."""

from typing import Any

import torch
from torch import Tensor

from gradveil._checks import WrongType, check_count, check_inputs, check_tensor
from gradveil._random import seed_from
from gradveil._tensors import Tensors
from gradveil.messages import (
    GradientMessage,
    check_match,
    example_gradients,
    gradient_of,
    movable,
)

from ._fit import fit_shape, gather, moments_for
from ._model import trust_in
from ._shape import Given, KeptSource, Request, Shape

MOST_NUMBERS = 2**28
"""That the evidence of all batches may hold; a large model gets fewer batches, two at least."""


class Public(KeptSource):
    """Public examples at the current model (Theorems 2 to 4).

    What leaves the client is then a fixed channel, whatever is in the private batch. The shape is
    shrunk towards isotropic noise as far as the public examples themselves demand it, and
    altogether where the model shows that they are of another kind (`fit_shape`, `trust_in`).
    `utility_budget` and `target_error` are met on the public examples.

    The shape is made anew, too, when parameters have other names or shapes, or when there are more
    or fewer private examples. Probes come from a generator of their own, so that what they draw
    does not shift the noise.

    Args:
        examples: Public inputs and targets, shaped like private ones. Eight batches reach nearly
            all of the gain that there is; two are enough not to lose.
        refresh_every: Calls from one shape to the next.
        batch_size: Of the public batches; that of the private one if `None`, or half of the
            examples where there are fewer than two batches.

    >>> from gradveil import OptimalNoise
    >>> public = Public((torch.zeros(8, 3), torch.zeros(8).long()))
    >>> OptimalNoise(scale=0.1, source=public).source
    Public(8 examples, refresh_every=10)
    """

    name = "public"

    def __init__(
        self,
        examples: tuple[Tensor, Tensor],
        refresh_every: int = 10,
        batch_size: int | None = None,
    ) -> None:
        if not isinstance(examples, (tuple, list)) or len(examples) != 2:
            advice = "Give for example `dataset.batch(2000, 128)`."
            expected = "be a pair of public inputs and targets"
            raise WrongType("examples", expected, type(examples).__name__, advice)
        tokens = gradient_of(examples[0]).takes_tokens
        check_inputs(examples[0], "examples[0]", tokens=tokens)
        check_tensor(examples[1], "examples[1]")
        check_match(*examples, tokens=tokens)
        if batch_size is not None:
            check_count(batch_size, "batch_size")
        super().__init__(refresh_every)
        self.examples, self.batch_size = examples, batch_size

    def _setting(self, asked: Request) -> list[Any]:
        return [asked.needs.key, len(asked.inputs)]

    def _made(self, asked: Request) -> Given:
        needs, _, message, inputs, given = asked
        generator = torch.Generator(given.device).manual_seed(seed_from(given))
        own, size = movable(message), len(inputs)
        public, targets = _shuffled(inputs, self.examples, generator)
        each = min(self.batch_size or size, max(1, len(public) // 2))
        parameters: Tensors = getattr(own, "parameters", {})
        numbers = sum(p.numel() for p in parameters.values()) or 1
        whole = min(len(public) // each, max(2, MOST_NUMBERS // (4 * numbers))) * each
        batches = [
            gather(own.of(t), x, generator, needs.estimator, judged=needs.judged)
            for x, t in zip(public[:whole].split(each), targets[:whole].split(each), strict=True)
        ]
        trust = trust_in(own.of(targets), public, generator)
        return Given(fit_shape(batches, size=size, trust=trust), moments_for(batches, size))

    def __repr__(self) -> str:
        return f"Public({len(self.examples[0])} examples, refresh_every={self.refresh_every})"


def _shuffled(
    like: Tensor, examples: tuple[Tensor, Tensor], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The examples in a random order, on the device and in the type of the private inputs."""
    inputs, targets = examples
    order = torch.randperm(len(inputs), generator=generator, device=generator.device)
    inputs, targets = inputs[order.to(inputs.device)], targets[order.to(targets.device)]
    return inputs.to(like), targets.to(like.device)


def rms_shape(message: GradientMessage, inputs: Tensor) -> Shape:
    """r_i ∝ √E g_bi² over public examples b: as much noise as there is gradient.

    That minimises the noise Σ_i Σ_ii beside the clipping norm E Σ_i g_bi² / Σ_ii, whose product is
    least for Σ_ii ∝ √E g_bi². For `PrivateNoise`, whose shape must not depend on private data. A
    tensor's squares are the product of their means over columns and over rows, which few examples
    determine. No root mean square is taken to be below a twentieth of that of its tensor, and no
    tensor's below a twentieth of that of all.

    >>> model = torch.nn.Linear(2, 1)
    >>> message = GradientMessage(model, lambda o, _: o.sum(), None)
    >>> shape = rms_shape(message, torch.tensor([[3.0, 1.0], [3.0, -1.0]]))
    >>> [round(float(r), 3) for r in shape.levels(dict(model.named_parameters()))["weight"][0]]
    [3.0, 1.0]
    """
    check_inputs(inputs)
    squares: Tensors = {}
    with torch.no_grad():
        for gradients in example_gradients(message, inputs):
            for name, g in gradients.items():
                square = g.square().sum(0) / len(inputs)
                squares[name] = squares[name] + square if name in squares else square
    least, entries = 0.05**2, sum(s.numel() for s in squares.values())
    whole = sum(float(s.sum(dtype=torch.float64)) for s in squares.values()) / entries
    factors = {}
    for name, square in squares.items():
        mean = square.mean().clamp(min=least * max(whole, torch.finfo(torch.float32).tiny))
        square = square.clamp(min=least * mean)
        parts = [square]
        if square.dim() > 1:
            rows = square.mean(tuple(range(1, square.dim())), keepdim=True)
            parts = [rows / square.mean(), square.mean(0, keepdim=True)]
        factors[name] = tuple(part.sqrt() for part in parts)
    return Shape(factors)
