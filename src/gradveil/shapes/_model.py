"""The model alone as a source of shapes, and what its outputs say of examples."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradveil._checks import NonFiniteError, WrongValue, check_finite, first_line
from gradveil._random import named_stream, normal_like
from gradveil.messages import (
    GradientMessage,
    LocalUpdateMessage,
    Message,
    ModelError,
    MovableMessage,
    TokenGradient,
    couples_examples,
    movable,
    outputs_of,
    random_ids,
)

from ._fit import gather, moments_for, shape_with
from ._shape import Given, KeptSource, Request

SEEN = (GradientMessage, LocalUpdateMessage)
"""Messages whose model and loss can be seen."""

OUT = (
    "Use public examples (source=Public((inputs, targets))), or the private batch"
    " (source='private')."
)
"""The way out where examples cannot be made up."""


class ModelSource(KeptSource):
    """The model alone: the moments of made-up examples, in a shape of tensors, rows and columns.

    Nothing of the private batch enters but its shape and type and those of its targets, so that
    what is made from this reveals nothing. On a model that has been trained, made-up examples are
    of another kind than those that it knows (`freshness`): the shape is then isotropic.

    The shape is made anew for another model, too, and when parameters, examples, loss or mode
    change; not for more or fewer examples. The made-up examples come from a stream of their own,
    always the same one: who knows the model knows the shape, and nothing is taken from the
    generator of the noise.

    Args:
        refresh_every: Calls from one shape to the next; 1 makes one at every call. See
            docs/benchmarks.md for what a shape costs, and for what an older one loses.

    >>> from gradveil import OptimalNoise
    >>> OptimalNoise(scale=0.1, source=ModelSource(refresh_every=5)).source
    ModelSource(refresh_every=5)
    """

    name = "model"
    any_model = False

    def given(self, asked: Request) -> Given:
        """The shape that is kept, or a new one where it is due."""
        if asked.needs.examples is not None:
            raise WrongValue(
                asked.needs.examples,
                "be used with a source that sees real examples: synthetic ones say how noise should"
                " be spread, not how much",
                "a shape from the model alone",
                "Use source=Public((inputs, targets)) with public examples, or source='private',"
                " which reveals the batch.",
            )
        message = asked.message
        if not isinstance(message, SEEN) or not message.loss.is_own:
            return self._made(asked)  # nothing tells whether its model is another one
        return super().given(asked)

    def _made(self, asked: Request) -> Given:
        return model_given(asked.message, asked.inputs)

    def _setting(self, asked: Request) -> list[Any]:
        """What the moments depend on beside the parameters and the number of examples."""
        message: Any = asked.message
        loss_fn = message.loss.loss_fn
        pair = (asked.inputs, message.targets)
        like = [(t.dtype, *t.shape[1:]) for t in pair if isinstance(t, Tensor)]
        local = [getattr(message, n, None) for n in ("lr", "steps", "batch_size", "momentum")]
        loss = getattr(loss_fn, "__qualname__", type(loss_fn).__qualname__)
        training = sum(module.training for module in message.loss.model.modules())
        return [training, str([type(message).__name__, loss, like, local])]

    def __repr__(self) -> str:
        return f"ModelSource(refresh_every={self.refresh_every})"


def model_given(
    message: Message, inputs: Tensor, generator: torch.Generator | None = None
) -> Given:
    """What made-up examples say of a message; of the inputs no value is read.

    Where examples add up there is one more of them than in the private batch, up to ten: fewer cost
    little of the gain over isotropic noise, and more cost time. They are not real ones: at an
    exponent of 1 their rows and columns lose to isotropic noise on a fresh MNIST CNN. Where
    examples do not add up, one batch is one draw of g, and only tensors are told apart.
    """
    generator = named_stream("plan", "model") if generator is None else generator
    size, batches = len(inputs), 2
    if isinstance(message, GradientMessage):
        size, batches = min(len(inputs) + 1, 10), 1
    if isinstance(message, SEEN):
        check_finite(message.loss.parameters, "the model's weights")  # not the examples' fault
    try:
        trust = freshness(message, inputs, generator, fewest=48)
        made = [synthetic(movable(message), inputs, generator, size) for _ in range(batches)]
    except (ModelError, NonFiniteError) as error:  # one that works on its own examples
        expected = (
            "accept made-up examples, standard normal numbers in the shape of the inputs, so that a"
            " shape can be made from the model alone; one that reads a category off a column does"
            " not"
        )
        found = f"that it fails on them: `{first_line(error.__cause__ or error)}`"
        raise ModelError("model", expected, found, OUT) from error
    known = [gather(own, x, generator, examples=trust > 0) for own, x in made]
    alone = all(batch.example_squares is not None for batch in known)
    exponents = (1.0, 0.4, 0.5, 0.0) if alone else (1.0, 0.0, 0.0, 0.0)
    shape = shape_with(known, len(inputs), [trust * e for e in exponents])
    return Given(shape, moments_for(known, len(inputs)))


def synthetic(
    message: Message, inputs: Tensor, generator: torch.Generator, size: int | None = None
) -> tuple[MovableMessage, Tensor]:
    """The same message for made-up examples, `size` of them or as many as there are, and those.

    Of the inputs and of the message's targets only shape, type and device are read, no value.
    Inputs are drawn from N(0, 1), ids of tokens evenly from all that there are. Targets that are
    integers are the classes of the model's outputs, each equally often, in a random order;
    floating-point ones are drawn from N(0, 1).
    """
    own = movable(message)
    like = inputs.new_empty(()).expand(size or len(inputs), *inputs.shape[1:])
    if isinstance(message, TokenGradient):
        made = random_ids(message, like, generator)
    else:
        made = normal_like(like, generator)
    return own.of(_targets(own, made, generator)), made


def _targets(message: MovableMessage, made: Tensor, generator: torch.Generator) -> Tensor:
    targets = message.targets
    if not isinstance(targets, Tensor) or targets.is_complex():
        found = targets.dtype if isinstance(targets, Tensor) else type(targets).__name__
        raise TypeError(
            "Targets should be a tensor of integers or of floating-point numbers, so that examples"
            f" can be made up for a shape. Found {found}. {OUT}"
        )
    targets = targets.new_empty(()).expand(len(made), *targets.shape[1:])
    if targets.is_floating_point():
        return normal_like(targets, generator)
    few, classes = made[:2], 2
    if targets.dtype is not torch.bool:
        classes = _classes(outputs_of(message, few), targets[: len(few)])
    order = torch.randperm(targets.numel(), generator=generator, device=generator.device)
    drawn = (order % classes).reshape(targets.shape)
    return drawn.to(device=targets.device, dtype=targets.dtype)


def _classes(outputs: Any, targets: Tensor) -> int:
    """How many classes outputs of shape (B, C, ...) or (B, ..., C) tell apart.

    >>> _classes(torch.zeros(4, 10), torch.zeros(4)), _classes(torch.zeros(4), torch.zeros(4))
    (10, 2)
    >>> _classes(torch.zeros(4, 21, 8, 8), torch.zeros(4, 8, 8))
    21
    """
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else ()
    wanted = tuple(targets.shape)
    if (shape and shape == wanted) or shape == (*wanted, 1):
        return 2
    if len(shape) > 1 and (shape[0], *shape[2:]) == wanted:
        return shape[1]
    if shape and shape[:-1] == wanted:
        return shape[-1]
    found = f"shape {shape}" if shape else type(outputs).__name__
    raise ValueError(
        f"Outputs should have the shape (B, C, ...) or (B, ..., C) for targets of shape {wanted},"
        f" so that the classes C can be counted. Found {found}. {OUT}"
    )


class OutputCheck(NamedTuple):
    """What a model's outputs o on some examples have to do with their targets.

    δ is the gradient of the loss with respect to the outputs. Of `scale` and `shift` one standard
    error is taken off.
    """

    scale: float
    """The cosine of centred outputs and δ. Above 0 the model is surer than it should be."""
    shift: float
    """δ̄ᵀ (E δδᵀ - δ̄δ̄ᵀ)⁻¹ δ̄, about twice what another constant would take off the loss. With too few
    examples for that, ‖δ̄‖² / E‖δ‖²."""
    is_known: bool
    """Whether outputs agree with the targets beyond chance: by how much that cosine grows, in units
    of δ, when targets change places. Real images have 0.25 to 4.5 after training, others < 0.09."""


def trust_in(message: Message, inputs: Tensor, generator: torch.Generator) -> float:
    """How far a plan may follow these examples, from 0 (not at all) to 1.

    A trained model knows examples of the kind that it was trained on: its outputs agree with their
    targets. If it does not know them, they are of another kind (or have other labels), and their
    gradients say little about those of the private batch. A fresh model knows nothing, and follows
    all examples. It is told from a trained one by its outputs on made-up examples: training leaves
    them sure of themselves, and so mostly wrong, on what it has never seen.

    In a regression examples are not followed if another constant would clearly be better. That
    holds for many a fresh model, too, whose plan is then isotropic. 1 where outputs cannot be seen.
    """
    found = check_outputs(message, inputs)
    if found is None:
        return 1.0
    sure = _falling(found.scale, 0.08, 0.16)  # too sure: trained, and not on examples like these
    if movable(message).targets.is_floating_point():
        sure = min(sure, _falling(found.shift, 0.1, 0.3))
    if found.is_known:
        return sure
    try:
        return min(sure, freshness(message, inputs, generator))
    except (TypeError, ValueError):  # none can be made up, or the model does not take them
        return sure


def freshness(
    message: Message, inputs: Tensor, generator: torch.Generator, fewest: int = 128
) -> float:
    """1 for a fresh model and 0 for a trained one, by its outputs on made-up examples.

    Fresh models (MNIST CNN, CIFAR ConvNet-16) have a fault of at most 0.032; after 60 and 300 steps
    they have 0.086 to 2.2. Of the inputs only shape, type and device are read. There are 128
    examples, or as few as `fewest` where they are four for each output, and fewer for outputs of
    more than 2²⁴ numbers.

    Raises:
        ModelError: Where the model fails on them.
    """
    outputs = 1
    if isinstance(message, SEEN):
        blank = inputs.new_zeros((2, *inputs.shape[1:]))  # BatchNorm takes no single one
        found = outputs_of(message, blank)
        outputs = max(1, found.numel() // 2) if isinstance(found, Tensor) else 1
    count = min(128, max(fewest, 4 * outputs), max(4, 2**24 // outputs))
    check = check_outputs(*synthetic(message, inputs, generator, count))
    if check is None:
        return 1.0
    return _falling(max(check.scale, 0.0) + max(check.shift, 0.0), 0.045, 0.08)


def check_outputs(message: Message, inputs: Tensor) -> OutputCheck | None:
    """Outputs beside targets, and these in five wrong orders; `None` where none can be seen."""
    if not isinstance(message, SEEN) or len(inputs) < 4:
        return None
    outputs = _outputs(message, inputs)
    targets = movable(message).targets
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return None
    if outputs.shape[:1] != inputs.shape[:1] or not outputs.is_floating_point():
        return None
    right = _signals(message, outputs, targets)
    turns = range(1, min(5, len(inputs) - 1) + 1)
    wrong = torch.stack([_signals(message, outputs, targets.roll(n, 0)) for n in turns]).mean(0)
    outputs = outputs.double().flatten(1)
    centred = outputs - outputs.mean(0)
    size = float((centred.square().sum() * right.square().sum()).sqrt()) / len(outputs)
    if not size > 0:
        return OutputCheck(0.0, 0.0, False)
    scale, scale_error = _mean_and_error((centred * right).sum(1) / size)
    skill, skill_error = _mean_and_error((centred * (wrong - right)).sum(1) / size)
    is_known = skill > max(0.1, 2.5 * skill_error)
    return OutputCheck(scale - scale_error, _shift(right), is_known)


def _outputs(message: GradientMessage | LocalUpdateMessage, inputs: Tensor) -> Any:
    """What the model returns; on a processor of 16 examples at a time, where it takes them so."""
    alone = inputs.device.type == "cpu" and not couples_examples(message.loss.model)
    parts = inputs.split(16) if alone else (inputs,)
    with torch.no_grad():
        outputs = [outputs_of(message, part) for part in parts]
    rows = all(isinstance(o, Tensor) and o.dim() for o in outputs)
    return torch.cat(outputs) if len(outputs) > 1 and rows else outputs[0]


def _signals(message: MovableMessage, outputs: Tensor, targets: Tensor) -> Tensor:
    """δ, one row for each example, of outputs that are given."""
    leaf = outputs.detach().requires_grad_()
    with torch.enable_grad():
        value = message.loss.loss_of_outputs(leaf, targets)  # type: ignore[attr-defined]
        if not value.requires_grad:  # a loss that depends on no output, as clients will be told
            return torch.zeros_like(leaf, dtype=torch.float64).flatten(1)
        (delta,) = torch.autograd.grad(value, leaf)
    return delta.double().flatten(1)


def _mean_and_error(row: Tensor) -> tuple[float, float]:
    return float(row.mean()), float(row.std()) / len(row) ** 0.5


def _shift(signals: Tensor) -> float:
    """Less its mean and one standard error by chance: D/N and √(2D)/N for D directions."""
    count, mean = len(signals), signals.mean(0)
    if 4 * signals.shape[1] > count:
        return float(mean.square().sum() / signals.square().sum(1).mean()) - 2 / count
    values, vectors = torch.linalg.eigh(signals.T @ signals / count)
    real = values > 1e-6 * values.max()
    share = float(((vectors.T @ mean)[real].square() / values[real]).sum())
    directions = int(real.sum())
    chance: float = (directions + (2 * directions) ** 0.5) / count
    return share / max(1 - share, 1e-9) - chance


def _falling(value: float, start: float, end: float) -> float:
    """1 up to `start`, 0 from `end` on, and a line between them."""
    return min(1.0, max(0.0, (end - value) / (end - start)))
