"""The model alone as a source of shapes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import NonFiniteError, check_finite, first_line
from gradveil._random import named_stream
from gradveil.messages import (
    GradientMessage,
    LocalUpdateMessage,
    Message,
    ModelError,
    movable,
    outputs_of,
)

from ._evidence import Evidence, gather
from ._fit import shape_with
from ._public import moments_for
from ._source import Given, KeptSource, Needs
from ._synthetic import synthetic
from ._trust import freshness

MORE, MOST_MADE_UP = 1, 10
"""Made-up examples where examples add up: one more than there are in the private batch, up to ten:
fewer cost little of the gain over isotropic noise, and more cost time."""

FEWEST_OUTPUTS = 48
"""Made-up examples whose outputs show whether a model is fresh. At the MNIST CNN, 24 draws on 3
fresh models had an `OutputCheck.fault` of at most 0.049, and after 20 steps of Adam of at least
0.738."""

EXPONENTS = (1.0, 0.4, 0.5, 0.0)
"""Of tensors, rows, columns and entries. Made-up examples are not real ones: at 1 their rows and
columns lose to isotropic noise on a fresh MNIST CNN."""

ONE_BATCH = (1.0, 0.0, 0.0, 0.0)
"""Where examples do not add up, so that one batch is one draw of g."""


class ModelSource(KeptSource):
    """The model alone: the moments of made-up examples, in a shape of tensors, rows and columns.

    Nothing of the private batch enters but its shape and type and those of its targets, so that
    what is made from this reveals nothing. On a model that has been trained, made-up examples are
    of another kind than those that it knows (`freshness`): the shape is then isotropic.

    The shape is made anew every `refresh_every` calls, for another model, and when parameters,
    examples, loss or mode change; not for more or fewer examples. In between the weights move, and
    the shape is that of weights a few calls old: public all the same. The made-up examples come
    from a stream of their own, always the same one: who knows the model knows the shape, and
    nothing is taken from the generator of the noise.

    Args:
        refresh_every: Calls from one shape to the next; 1 makes one at every call. See
            docs/benchmarks.md for what a shape costs, and for what an older one loses.

    >>> from gradveil import OptimalNoise
    >>> OptimalNoise(scale=0.1, source=ModelSource(refresh_every=5)).source
    ModelSource(refresh_every=5)
    """

    name = "model"

    def __init__(self, refresh_every: int = 20) -> None:
        super().__init__(refresh_every)

    def given(
        self,
        needs: Needs,
        like: Mapping[str, Tensor],
        message: Message,
        inputs: Tensor,
        generator: torch.Generator,
    ) -> Given:
        """The shape that is kept, or a new one where it is due."""
        _check_amount(needs)

        def make() -> Given:
            return model_given(message, inputs, curvature=needs.curvature)

        if not isinstance(message, (GradientMessage, LocalUpdateMessage)):
            return make()  # nothing tells whether its model is another one
        if not message.loss.is_own:
            return make()
        setting = [needs.curvature, *_setting(message, inputs)]
        return self.kept(message, inputs, setting, make, message.loss.model)

    def __repr__(self) -> str:
        return f"ModelSource(refresh_every={self.refresh_every})"


def model_given(
    message: Message,
    inputs: Tensor,
    generator: torch.Generator | None = None,
    *,
    curvature: bool = False,
) -> Given:
    """What made-up examples say of a message; of the inputs no value is read."""
    generator = named_stream("plan", "model") if generator is None else generator
    batches, trust = _made_up(message, inputs, generator, curvature)
    size = len(inputs)
    alone = all(batch.example_squares is not None for batch in batches)
    exponents = [trust * e for e in (EXPONENTS if alone else ONE_BATCH)]
    shape = shape_with(batches, size, exponents, curvature=curvature)
    return Given(shape, moments_for(batches, size, curvature=curvature))


def _check_amount(needs: Needs) -> None:
    """Refuse amounts that only real examples can tell."""
    if needs.examples is not None:
        raise ValueError(
            f"Parameter `{needs.examples}` should be used with a source that sees real examples:"
            " synthetic ones say how noise should be spread, not how much. Found a shape from the"
            " model alone. Use source=Public((inputs, targets)) with public examples, or"
            " source='private', which reveals the batch."
        )


def _setting(message: GradientMessage | LocalUpdateMessage, inputs: Tensor) -> list[Any]:
    """What the moments depend on beside the parameters and the number of examples."""
    loss_fn, targets = message.loss.loss_fn, message.targets
    like = [(t.dtype, *t.shape[1:]) for t in (inputs, targets) if isinstance(t, Tensor)]
    names = ("lr", "steps", "batch_size", "momentum")
    local = [getattr(message, name, None) for name in names]
    loss = getattr(loss_fn, "__qualname__", type(loss_fn).__qualname__)
    training = sum(module.training for module in message.loss.model.modules())
    setting = str([type(message).__name__, loss, like, local])
    return [training, setting]


def _made_up(
    message: Message, inputs: Tensor, generator: torch.Generator, curvature: bool
) -> tuple[list[Evidence], float]:
    """What made-up examples say, and how far they may be trusted.

    Examples are taken one by one where rows and columns are trusted, or for the curvature.
    """
    size, batches = len(inputs), 2
    if isinstance(message, GradientMessage):
        size, batches = min(size + MORE, MOST_MADE_UP), 1
    if isinstance(message, (GradientMessage, LocalUpdateMessage)):
        check_finite(message.loss.parameters, "the model's weights")  # not the examples' fault
    with _accepted():
        trust = freshness(message, inputs, generator, FEWEST_OUTPUTS)
        made = [synthetic(movable(message), inputs, generator, size) for _ in range(batches)]
    alone = trust > 0 or curvature
    return [_gathered(own, x, generator, alone) for own, x in made], trust


def _gathered(own: Message, made: Tensor, generator: torch.Generator, alone: bool) -> Evidence:
    """`gather`; where it fails, the made-up examples may be the reason."""
    try:
        return gather(own, made, generator, examples=alone)
    except ModelError:
        if isinstance(own, (GradientMessage, LocalUpdateMessage)):
            with _accepted():
                outputs_of(own, made)
        raise


@contextmanager
def _accepted() -> Iterator[None]:
    """A model that works on its own examples and fails on made-up ones has to see real ones."""
    try:
        yield
    except (ModelError, NonFiniteError) as error:
        raise ModelError(
            "Parameter `model` should accept made-up examples, standard normal numbers in the shape"
            " of the inputs, so that a shape can be made from the model alone; one that reads a"
            " category off a column does not. Found that it fails on them:"
            f" `{first_line(error.__cause__ or error)}`. Use public examples"
            " (source=Public((inputs, targets))), or the private batch (source='private')."
        ) from error
