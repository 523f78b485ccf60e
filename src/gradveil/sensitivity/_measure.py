"""Measures the Moments of a message at a batch: which estimator, and what it cannot see."""

import logging
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import (
    check_at_most,
    check_callable,
    check_choice,
    check_finite,
    check_inputs,
    check_kind,
    check_positive,
    check_structure,
    check_values,
    is_out_of_memory,
)
from gradveil._random import generator_or_fresh, normal_like
from gradveil._tensors import Tensors
from gradveil.messages import (
    GradientMessage,
    LocalUpdateMessage,
    Message,
    check_message,
    check_separates,
    embedded,
    explained,
    in_double,
    over_rows,
    separates,
    takes_tokens,
    values_of,
)

from ._estimators import Exact, PerExample, Sketch, sum_of_example_squares
from ._moments import Estimator, Measurement, Moments, SquaresOf, estimator_name
from ._structured import Structured, layout_of

_LOG = logging.getLogger("gradveil.sensitivity")


def measure(
    message: Message,
    inputs: Tensor,
    estimator: Estimator | str = "auto",
    clip: float | None = None,
    generator: torch.Generator | None = None,
    *,
    judged: bool = False,
    examples: bool = False,
) -> Moments:
    """E[g_i²] and E‖∇_x g_i‖² of a message at one batch.

    Args:
        message: What the client would send.
        inputs: Its private batch, or public data. For the ids of tokens (`TokenGradient`)
            sensitivities are those to the embeddings.
        estimator: An estimator or its name: "auto" (the cheapest good one for this message),
            "layers" (enough for one level per tensor), "structured", "per-example", "sketch",
            "exact".
        clip: The threshold P of Theorem 3: measures the message clamped to [-P, P].
        generator: For the random probes; a fresh one seeded by the system if `None`.
        judged: Measure a second time, without bias and with other probes, so that what a plan
            promises can be judged by sensitivities it was not made from (`Moments.judged`).
        examples: Also take E g_{b,i}² over the examples b (`Moments.squared_example_values`), which
            stands for the loss's curvature; the message must be a sum over examples.

    An entry that is not 0, has no derivative, and yet moves with the inputs is hidden from autograd
    (`HiddenPathWarning`); it counts as sensitive, and `Moments.hidden` counts it.

    >>> from torch import nn
    >>> from gradveil import GradientMessage
    >>> message = GradientMessage(nn.Linear(3, 1), nn.functional.mse_loss, torch.zeros(4, 1))
    >>> moments = measure(message, torch.ones(4, 3), estimator="exact")
    >>> sorted(moments.squared_sensitivities)
    ['bias', 'weight']
    """
    if clip is not None:
        check_positive(clip, "clip")
        check_at_most(clip, "clip")
    options = {"judged": judged, "examples": examples}
    moments = measure_with_values(message, inputs, estimator, generator, **options)[1]
    moments = replace(moments, squared_values=dict(moments.squared_values))
    return moments if clip is None else moments.clipped(clip)


def measure_with_values(
    message: Message,
    inputs: Tensor,
    estimator: Estimator | str = "auto",
    generator: torch.Generator | None = None,
    *,
    judged: bool = False,
    examples: bool = False,
) -> tuple[Tensors, Moments]:
    """The message's values beside its Moments, for a client that sends what it measured."""
    check_message(message)
    check_inputs(inputs, tokens=takes_tokens(message))
    chosen, generator = estimator_of(estimator), generator_or_fresh(generator)
    with explained(message, inputs):
        seen, at = embedded(message, inputs)
        if examples and seen is message and estimator == "auto":
            chosen = partial(auto, squares=True)
        values, measured = _in_range(chosen, seen, at, generator)
    squares = over_rows(_checked(measured), message, inputs)
    second = _second_squares(seen, at, estimator, generator) if judged else None
    squares, hidden = with_hidden(seen, at, values, squares, generator)
    alone = example_squares(message, inputs, values, measured.example_squares) if examples else None
    moments = Moments(
        squared_values=SquaresOf(measured.values),
        squared_sensitivities=squares,
        input_size=at.numel(),
        second_squares=None if second is None else over_rows(second, message, inputs),
        hidden=hidden,
        estimator=measured.estimator or estimator_name(chosen),
        squared_example_values=alone,
    )
    return values, moments


def estimator_of(estimator: Estimator | str) -> Estimator:
    """The estimator of that name; an error where it is none."""
    if isinstance(estimator, str):
        check_choice(estimator, "estimator", tuple(sorted(NAMED)))
        return NAMED[estimator]
    check_callable(estimator, "estimator", "Give a name, or an estimator, as `Sketch(probes=10)`.")
    return estimator


def example_squares(
    message: Message, inputs: Tensor, values: Tensors, known: Tensors | None = None
) -> Tensors:
    """h_i = E_b g_{b,i}², with g_b the gradient of the loss of example b alone.

    The diagonal of the empirical Fisher matrix, which stands for that of the loss's second
    derivative. A message of a mean over B examples is Σ_b c_b with c_b = g_b / B, so that
    h = B Σ_b c_b². For a loss that is a sum, h = Σ_b c_b²: the curvature of that sum.

    `known` is Σ_b c_b², where an estimator has found it; the precision is that of the `values`.
    """
    advice = "Use examples=False, or match='utility' in an audit, which needs none."
    check_separates(message, inputs, "where gradients of single examples are taken", advice)
    known = sum_of_example_squares(message, inputs, values) if known is None else known
    times = 1 if getattr(message, "reduction", None) == "sum" else len(inputs)
    squares = {}
    for name, square in known.items():
        limits = torch.finfo(values[name].dtype)  # what is above 0 stays above 0
        kept = (times * square).clamp(limits.tiny, limits.max) * square.sign()
        squares[name] = kept.to(values[name].dtype)
    return squares


def _second_squares(
    message: Message, inputs: Tensor, estimator: Estimator | str, generator: torch.Generator
) -> Tensors | None:
    """Without bias, from probes of their own; `None` where the first ones are exact."""
    if estimator == "exact" or isinstance(estimator, Exact):
        return None
    judge: Estimator = PerExample(probes=4) if separates(message, inputs) else Sketch(probes=16)
    return _checked(_in_range(judge, message, inputs, generator)[1])


def auto(
    message: Message,
    inputs: Tensor,
    generator: torch.Generator,
    *,
    few: int | None = None,
    squares: bool = False,
) -> Measurement:
    """Choose by message and model, and take the next where an operation is not supported.

    Each estimator that did not work is logged with its reason (logger "gradveil.sensitivity", level
    INFO); an out-of-memory error is no such reason, and is raised.

    - Gradients whose examples add up: `Structured`, or `PerExample` where most parameters lie
      outside the layers it knows.
    - FedAvg updates: `along_steps`.
    - Everything else: `Sketch`.
    - Where PyTorch can differentiate none of it (a model that leaves for NumPy): the values alone.
      Every entry then counts as hidden from autograd, as `measure` finds out.

    With `few` it measures only the first so many examples, where they add up: enough for one level
    per tensor, at little more than the price of the gradient. With `squares` it takes those of
    single examples' gradients, where they are found on the way (`Measurement.example_squares`).
    """
    if few is not None and few < len(inputs):
        found = _from_few(message, inputs, few, generator)
        if found is not None:
            return found
    return _first_that_works(message, inputs, generator, cheap=few is not None, squares=squares)


NAMED: dict[str, Estimator] = {
    "auto": auto,
    "exact": Exact(),
    "layers": partial(auto, few=2),
    "per-example": PerExample(),
    "sketch": Sketch(),
    "structured": Structured(),
}


def _first_that_works(
    message: Message, inputs: Tensor, generator: torch.Generator, **options: bool
) -> Measurement:
    first_error: Exception | None = None
    for name, estimator in _candidates(message, inputs, **options):
        try:
            measured = estimator(message, inputs, generator)
            return replace(measured, estimator=measured.estimator or name)
        except RuntimeError as error:  # no such derivative or batching rule
            _note_failure(name, error)
            first_error = first_error or error
    assert first_error is not None
    raise first_error


def _candidates(
    message: Message, inputs: Tensor, cheap: bool, with_values: bool = True, squares: bool = False
) -> Iterator[tuple[str, Estimator]]:
    """The estimators for this message, the preferred one first; cheap ones for averages."""
    if isinstance(message, LocalUpdateMessage):
        yield "along-steps", along_steps
    elif separates(message, inputs):
        if isinstance(message, GradientMessage) and _known_share(message, inputs) > 0.9:
            structured = Structured(split=not cheap)
            own: Any = partial(structured.measure, with_values=with_values, examples=squares)
            yield estimator_name(structured), own
        per_example = PerExample(probes=1 if cheap else 2)
        yield estimator_name(per_example), per_example
    yield "sketch", Sketch()
    try:  # what saves by hooks (activation checkpointing) the user can switch off, to be measured
        with torch.autograd.graph.disable_saved_tensors_hooks("not in second derivatives"):
            values = values_of(message, inputs)
    except (RuntimeError, ValueError):
        return
    nothing = {name: torch.zeros_like(value) for name, value in values.items()}
    yield "values alone", lambda *_: Measurement(values, nothing)


def _known_share(message: GradientMessage, inputs: Tensor) -> float:
    try:
        return layout_of(message, inputs).known_share
    except RuntimeError as error:  # as in _first_that_works
        _note_failure("structured", error)
        return 0.0


def _note_failure(name: str, error: RuntimeError) -> None:
    """Log why an estimator was passed over; a lack of memory is raised instead."""
    if is_out_of_memory(error):
        raise error
    reason = " ".join(str(error).split())
    _LOG.info("auto passes over %s: %s: %s", name, type(error).__name__, reason)


def along_steps(message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
    """s² of a FedAvg update -lr Σ_t c_t g_t, from the first gradient of each mini-batch.

    c_t = 1 + μ + … + μ^(T-1-t) with momentum μ. Later visits to a mini-batch see nearly the same
    gradient, so its coefficients add before squaring; how the path Θ_t itself depends on the inputs
    is left out. Both are exact for one step, and of higher order in lr.
    """
    assert isinstance(message, LocalUpdateMessage)
    coefficients = [0.0] * len(message.batches(inputs))
    for step in range(message.steps):
        sum_of_powers = sum(message.momentum**k for k in range(message.steps - step))
        coefficients[step % len(coefficients)] += message.lr * sum_of_powers
    squares = {name: torch.zeros_like(p) for name, p in message.parameters.items()}
    names: list[str] = []

    def step_gradient(gradient: GradientMessage, batch: Tensor) -> Tensors:
        if len(names) == len(coefficients):
            return gradient.values(batch)
        measured = auto(gradient, batch, generator)
        for name, square in measured.squared_sensitivities.items():
            squares[name] += coefficients[len(names)] ** 2 * square
        names.append(str(measured.estimator))
        return measured.values

    update = message.after_steps(inputs, step_gradient)
    inner = names[0] if len({*names}) == 1 else "mixed"
    return Measurement(update, squares, f"along-steps({inner})")


def _from_few(
    message: Message, inputs: Tensor, count: int, generator: torch.Generator
) -> Measurement | None:
    """The first examples stand for all: s² of a sum grows with their number, of a mean it falls.

    `None` where the message cannot be cut like that.
    """
    if not isinstance(message, GradientMessage) or not isinstance(message.targets, Tensor):
        return None
    targets, reduction = message.targets, message.reduction
    if not targets.is_floating_point() and bool((targets < 0).any()):
        return None  # ignored targets, as cross-entropy's -100: examples do not count alike
    if reduction is None or not separates(message, inputs):  # a sum or a mean? `factor` depends
        return None
    part, few, ratio = message.of(targets[:count]), inputs[:count], count / len(inputs)
    measured = _first_that_works(part, few, generator, cheap=True, with_values=False)
    factor = 1 / ratio if reduction == "sum" else ratio
    squares = {}
    for name, square in measured.squared_sensitivities.items():
        least = torch.finfo(square.dtype).tiny  # only the measured examples may be silent
        squares[name] = (factor * square).clamp(min=least) if bool(square.any()) else square
    name = f"{measured.estimator} on {count} of {len(inputs)} examples"
    return Measurement(values_of(message, inputs), squares, name)


def _in_range(
    estimator: Estimator, message: Message, inputs: Tensor, generator: torch.Generator
) -> tuple[Tensors, Measurement]:
    """The message's values, and its measurement: in float64 where float32 loses its squares.

    Messages that are not made of a module stay in their own precision.
    """
    state = generator.get_state()
    measured = estimator(message, inputs, generator)
    check_kind(measured, "estimator(...)", Measurement, "Return Measurement(values, squares).")
    squares = measured.squared_sensitivities.values()
    largest = [float(square.max()) for square in squares if square.numel()]
    fits = all(map(math.isfinite, largest)) and max(largest, default=0.0) >= 1e-24
    known = isinstance(message, (GradientMessage, LocalUpdateMessage))
    if not known or inputs.dtype == torch.float64 or fits:
        return measured.values, measured
    try:
        torch.Generator.set_state(generator, state)  # a secure one's probes can be repeated
        wide = estimator(in_double(message), inputs.double(), generator)
    except RuntimeError:  # a model that insists on float32
        return measured.values, measured
    return measured.values, wide


def _checked(measured: Measurement) -> Tensors:
    """The squared sensitivities, finite and in the shape of the values."""
    values, squares = measured.values, measured.squared_sensitivities
    check_values(values, "message(inputs)")
    check_finite(values, "message(inputs)")
    check_structure(squares, values, "squared_sensitivities", "squared_values")
    check_finite(squares, "squared_sensitivities")
    return {name: _not_lost(square, values[name]) for name, square in squares.items()}


def _not_lost(square: Tensor, value: Tensor) -> Tensor:
    """The same squares, with the least positive number in the place of those that are lost.

    0 means that an entry needs no noise. A confident model has gradients of 1e-25, whose squared
    sensitivities are 0 in float32: sent as they are, they would tell everything.
    """
    least = torch.finfo(square.dtype).tiny
    lost = (square == 0) & (value != 0)
    if not bool(lost.any()):
        return square
    return square.masked_fill(lost & (value.abs() < 1e4 * least**0.5), least)


class HiddenPathWarning(UserWarning):
    """A message depends on its inputs in a way that autograd does not see."""


def with_hidden(
    message: Message, inputs: Tensor, values: Tensors, squares: Tensors, generator: torch.Generator
) -> tuple[Tensors, int]:
    """The squares with those of hidden entries in the place of 0, and how many there are.

    Zero sensitivity of an entry that is not 0 itself is believed only if the entry stays where it
    is for other inputs: the examples of the batch in each other's places, and the inputs with
    noise of their own size. Where no other inputs can be evaluated, nothing is proven, and the
    entry counts as hidden. What stands for ‖∇_x g_i‖² there is (Δg_i)² / mean (Δx)², the largest of
    those tried, the mean over a tensor's entries.
    """
    doubted = {name: (square == 0) & (values[name] != 0) for name, square in squares.items()}
    if not any(bool(mask.any()) for mask in doubted.values()):
        return squares, 0
    changes = []
    for other, moved in values_at_others(message, inputs, generator):
        distance = float((other - inputs).detach().double().square().mean().sqrt())
        changes.append(({name: moved[name] - v for name, v in values.items()}, distance))
    changes = changes or [(values, spread_of(inputs))]
    rounding, count, known = rounding_of(values), 0, {}
    for name, mask in doubted.items():
        moves = torch.stack([change[name].abs() > rounding for change, _ in changes]).any(0)
        if bool((moves & mask).any()):  # one speaks for its tensor
            slopes = torch.stack([change[name] / distance for change, distance in changes])
            mean = slopes.square().amax(0)[mask].mean().to(squares[name].dtype)
            known[name], count = torch.where(mask, mean, squares[name]), count + int(mask.sum())
    if count:
        warnings.warn(
            f"{count} of {sum(v.numel() for v in values.values())} entries of the message move with"
            " the inputs although their derivative is 0: the model or the loss hides a path from"
            " autograd (detach, rounding, an integer index, a function that is differentiable once,"
            " a saturated output). They get noise as if sensitive, and every bound is 0.",
            HiddenPathWarning,
            stacklevel=4,
        )
    return {**squares, **known}, count


def values_at_others(
    message: Message, inputs: Tensor, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensors]]:
    """Other inputs that the message accepts, each with its values there.

    Examples in each other's places, and noise on all of them: some categories and classes take much
    of it to change.
    """
    rolled = inputs.roll(1, 0)
    mixed = [rolled] if len(inputs) > 1 and not torch.equal(inputs, rolled) else []
    noise = (t * spread_of(inputs) * normal_like(inputs, generator) for t in (1.0, 1.0, 3.0, 3.0))
    for other in chain(mixed, (inputs + move for move in noise)):
        try:
            values = values_of(message, other)
        except (RuntimeError, ValueError, IndexError):  # an index out of range, for example
            continue
        yield other, values


def spread_of(inputs: Tensor) -> float:
    """The size of what varies in the inputs: their standard deviation, or their size, or 1."""
    row = inputs.detach().reshape(-1).double()
    deviation = float(row.std()) if len(row) > 1 else 0.0
    return deviation or float(row.abs().max()) or 1.0


def rounding_of(values: Tensors) -> float:
    """The size of rounding errors in a message: 16 units in the last place of its largest entry."""
    sizes = [
        16 * torch.finfo(value.dtype).eps * float(value.detach().abs().max())
        for value in values.values()
        if value.numel()
    ]
    return max(sizes, default=0.0)
