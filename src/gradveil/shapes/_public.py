"""Public examples as a source of shapes."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradveil._checks import check_count, check_inputs, check_tensor
from gradveil._random import seed_from
from gradveil._tensors import total
from gradveil._typing import Tensors
from gradveil.messages import Message, MovableMessage, check_match, gradient_of, movable
from gradveil.sensitivity import Moments

from ._evidence import Evidence, gather, mean_of, pool
from ._fit import fit_shape
from ._source import Given, KeptSource, Needs
from ._trust import trust_in

MOST_NUMBERS = 2**28
"""That the evidence of all batches may hold; a large model gets fewer batches, two at least."""

LEAST_SQUARE = 1e-6
"""The least E g_i² over the mean of its tensor: no entry is 0 only because public examples are."""


class Public(KeptSource):
    """Public examples at the current model (Theorems 2 to 4).

    What leaves the client is then a fixed channel: its noise levels, its pruned entries and its
    steps are those that the public examples ask for, whatever is in the private batch. The shape
    is shrunk towards isotropic noise as far as the public examples themselves demand it, and
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
        _check_examples(examples)
        if batch_size is not None:
            check_count(batch_size, "batch_size")
        super().__init__(refresh_every)
        self.examples, self.batch_size = examples, batch_size

    def given(
        self,
        needs: Needs,
        like: Mapping[str, Tensor],
        message: Message,
        inputs: Tensor,
        generator: torch.Generator,
    ) -> Given:
        """The shape that is kept, or a new one where it is due."""

        def make() -> Given:
            own = torch.Generator(generator.device).manual_seed(seed_from(generator))
            return self._made(needs, message, inputs, own)

        return self.kept(message, inputs, [needs.key, len(inputs)], make)

    def _made(
        self, needs: Needs, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> Given:
        own, size = movable(message), len(inputs)
        public, targets = _shuffled(inputs, self.examples, generator)
        each = min(self.batch_size or size, max(1, len(public) // 2))
        most = max(2, MOST_NUMBERS // (4 * _numbers_in(own)))
        batches = [
            gather(own.of(t), x, generator, needs.estimator, judged=needs.judged)
            for x, t in _batches(public, targets, each)[:most]
        ]
        trust = trust_in(own.of(targets), public, generator)
        shape = fit_shape(batches, size=size, trust=trust, curvature=needs.curvature)
        return Given(shape, moments_for(batches, size, curvature=needs.curvature))

    def __repr__(self) -> str:
        return f"Public({len(self.examples[0])} examples, refresh_every={self.refresh_every})"


def moments_for(batches: Sequence[Evidence], size: int, *, curvature: bool = False) -> Moments:
    """E g_i² and E‖∇g_i‖² of the batches, for messages of `size` examples."""
    first = batches[0]
    slopes, squares = pool(batches, size, equally=False)
    if first.is_sum:
        squares = {n: s * (size / first.examples) ** 2 for n, s in squares.items()}
    seconds = [b.moments.second_squares for b in batches]
    judge = mean_of([s for s in seconds if s]) if all(seconds) else None
    alone = pool(batches, size, equally=False, curvature=True).squares if curvature else None
    return Moments(
        squared_values=_positive(squares),
        squared_sensitivities=_rescaled(slopes, first, size),
        input_size=size * first.entries,
        second_squares=None if judge is None else _rescaled(judge, first, size),
        squared_example_values=None if alone is None else _positive(alone),
        hidden=max(b.moments.hidden for b in batches),
        estimator=first.moments.estimator,
    )


def _rescaled(slopes: Tensors, batch: Evidence, size: int) -> Tensors:
    """s² of a mean falls with the number of examples, of a sum it grows."""
    ratio = size / batch.examples
    return {n: s * (ratio if batch.is_sum else 1 / ratio) for n, s in slopes.items()}


def _positive(squares: Tensors) -> Tensors:
    """Not below a share of the tensor's mean, nor of the message's; 0 only where all is."""
    count = sum(square.numel() for square in squares.values())
    whole = float(total(squares.values())) / max(count, 1)
    return {
        n: s.clamp(min=LEAST_SQUARE * max(float(s.mean()), LEAST_SQUARE * whole))
        for n, s in squares.items()
    }


def _shuffled(
    like: Tensor, examples: tuple[Tensor, Tensor], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The examples in a random order, on the device and in the type of the private inputs."""
    inputs, targets = examples
    order = torch.randperm(len(inputs), generator=generator, device=generator.device)
    inputs, targets = inputs[order.to(inputs.device)], targets[order.to(targets.device)]
    return inputs.to(like), targets.to(like.device)


def _numbers_in(message: MovableMessage) -> int:
    """How many entries the message has, as its model says; 1 where it does not."""
    parameters = getattr(message, "parameters", None)
    return sum(p.numel() for p in parameters.values()) if isinstance(parameters, dict) else 1


def _batches(inputs: Tensor, targets: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of exactly that size; what is left over is not used."""
    whole = len(inputs) // size * size
    return list(zip(inputs[:whole].split(size), targets[:whole].split(size), strict=True))


def _check_examples(examples: object) -> None:
    if not isinstance(examples, (tuple, list)) or len(examples) != 2:
        raise TypeError(
            "Parameter `examples` should be a pair of public inputs and targets. Found"
            f" {type(examples).__name__}. Give for example `dataset.batch(2000, 128)`."
        )
    inputs, targets = examples
    tokens = gradient_of(inputs).takes_tokens
    check_inputs(inputs, "examples[0]", tokens=tokens)
    check_tensor(targets, "examples[1]")
    check_match(inputs, targets, tokens=tokens)
