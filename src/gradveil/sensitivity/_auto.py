"""The cheapest good estimator for a message."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_count
from gradveil._memory import is_out_of_memory
from gradveil.messages import GradientMessage, LocalUpdateMessage, Message, separates, values_of

from ._along_steps import AlongSteps
from ._estimator import Estimator, Measurement, estimator_name
from ._per_example import PerExample
from ._sketch import Sketch
from ._structured import Structured, layout_of

_LOG = logging.getLogger("gradveil.sensitivity")


CHECKPOINTING = "saved tensor hooks"
"""In what torch says of transforms through activation checkpointing."""


@dataclass(frozen=True)
class Auto:
    """Chooses by message and model, and takes the next where an operation is not supported.

    `Moments.estimator` names what measured them in the end. Each estimator that did not work is
    logged with its reason (logger "gradveil.sensitivity", level INFO); an out-of-memory error is
    no such reason, and is raised.

    - Gradients whose examples add up: `Structured`, or `PerExample` where most parameters lie
      outside the layers it knows.
    - FedAvg updates: `AlongSteps`.
    - Everything else: `Sketch`.
    - Where PyTorch can differentiate none of it (a model that leaves for NumPy): the values alone.
      Every entry then counts as hidden from autograd, as `measure` finds out.

    Args:
        examples: Measure only the first so many examples, where they add up; enough for one level
            per tensor, at little more than the price of the gradient.
        squares: Whether to take the squares of single examples' gradients, where they are found on
            the way (`Measurement.example_squares`).
    """

    examples: int | None = None
    squares: bool = False

    def __post_init__(self) -> None:
        if self.examples is not None:
            check_count(self.examples, "examples")

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        """Measure the message at these inputs."""
        part = self._part(message, inputs)
        if part is None:
            cheap = self.examples is not None
            estimators = candidates(message, inputs, cheap=cheap, squares=self.squares)
            return _first_that_works(estimators, message, inputs, generator)
        return _scaled_up(message, inputs, part, generator)

    def cuts(self, message: Message, inputs: Tensor) -> bool:
        """Whether it measures fewer examples of this message than all."""
        return self._part(message, inputs) is not None

    def _part(self, message: Message, inputs: Tensor) -> GradientMessage | None:
        if self.examples is None or self.examples >= len(inputs):
            return None
        return first_examples(message, inputs, self.examples)


def candidates(
    message: Message,
    inputs: Tensor,
    cheap: bool = False,
    with_values: bool = True,
    squares: bool = False,
) -> Iterator[Estimator]:
    """The estimators for this message, the preferred one first; cheap ones for averages."""
    if isinstance(message, LocalUpdateMessage):
        yield AlongSteps(Auto())
    elif separates(message, inputs):
        if isinstance(message, GradientMessage) and _known_share(message, inputs) > 0.9:
            structured = Structured(split=not cheap, examples=squares)
            yield structured.measure if with_values else structured.measure_squares
        yield PerExample(probes=1 if cheap else 2)
    yield Sketch()
    yield _values_alone


def _values_alone(message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
    """No derivative at all."""
    values = values_of(message, inputs)
    return Measurement(values, {name: torch.zeros_like(v) for name, v in values.items()}, None)


def _known_share(message: GradientMessage, inputs: Tensor) -> float:
    try:
        return layout_of(message, inputs).known_share
    except (RuntimeError, NotImplementedError) as error:  # as in _first_that_works
        _note_failure("structured", error)
        return 0.0


def first_examples(message: Message, inputs: Tensor, count: int) -> GradientMessage | None:
    """The gradient of the first examples alone, where the message can be cut like that."""
    cuttable = isinstance(message, GradientMessage) and isinstance(message.targets, Tensor)
    if not cuttable or not separates(message, inputs):
        return None
    assert isinstance(message, GradientMessage)
    if message.reduction is None:  # a sum or a mean? the factor of `_scaled_up` depends on it
        return None
    if not message.targets.is_floating_point() and bool((message.targets < 0).any()):
        return None  # ignored targets, as cross-entropy's -100: examples do not count alike
    return message.of(message.targets[:count])


def _scaled_up(
    message: Message, inputs: Tensor, part: GradientMessage, generator: torch.Generator
) -> Measurement:
    """The first examples stand for all: s² of a sum grows with their number, of a mean it falls."""
    count = len(part.targets)
    inside = inputs[:count]
    estimators = candidates(part, inside, cheap=True, with_values=False)
    measured = _first_that_works(estimators, part, inside, generator)
    ratio = count / len(inputs)
    factor = 1 / ratio if part.reduction == "sum" else ratio
    squares = {n: _known(factor * s) for n, s in measured.squared_sensitivities.items()}
    name = f"{measured.estimator} on {count} of {len(inputs)} examples"
    return Measurement(values_of(message, inputs), squares, None).by(name)


def _known(square: Tensor) -> Tensor:
    """Not 0 where only the examples that were measured are silent."""
    return square.clamp(min=torch.finfo(square.dtype).tiny) if bool(square.any()) else square


def _first_that_works(
    estimators: Iterable[Estimator], message: Message, inputs: Tensor, generator: torch.Generator
) -> Measurement:
    first_error = None
    for estimator in estimators:
        if estimator is _values_alone and CHECKPOINTING in str(first_error):
            break  # the user can switch that off, and have derivatives
        try:
            measured = estimator(message, inputs, generator)
            return measured.by(measured.estimator or estimator_name(estimator))
        except (RuntimeError, NotImplementedError) as error:  # no such derivative or batching rule
            _note_failure(estimator_name(estimator), error)
            first_error = first_error or error
    assert first_error is not None
    raise first_error


def _note_failure(name: str, error: RuntimeError) -> None:
    """Log why an estimator was passed over; a lack of memory is raised instead."""
    if is_out_of_memory(error):
        raise error
    reason = " ".join(str(error).split())
    _LOG.info("auto passes over %s: %s: %s", name, type(error).__name__, reason)
