"""Measures the Moments of a message at a batch."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from gradveil._checks import (
    check_at_most,
    check_finite,
    check_inputs,
    check_positive,
    check_structure,
    check_values,
)
from gradveil._random import generator_or_fresh
from gradveil._typing import Tensors
from gradveil.messages import (
    Message,
    check_message,
    embedded,
    explained,
    over_rows,
    separates,
    takes_tokens,
)

from ._auto import Auto
from ._estimator import Estimator, Measurement, estimator_name
from ._exact import Exact
from ._example_squares import example_squares
from ._hidden import find_hidden
from ._moments import Moments, SquaresOf
from ._per_example import PerExample
from ._range import measure_in_range
from ._sketch import Sketch
from ._structured import Structured
from ._underflow import not_lost

NAMED: dict[str, Callable[[], Estimator]] = {
    "auto": Auto,
    "exact": Exact,
    "layers": lambda: Auto(examples=2),
    "per-example": PerExample,
    "sketch": Sketch,
    "structured": Structured,
}


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
        inputs: Its private batch, or public data for a plan that does not depend on it. For the
            ids of tokens (`TokenGradient`) sensitivities are those to the embeddings.
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
    moments = measure_with_values(
        message, inputs, estimator, clip, generator, judged=judged, examples=examples
    )[1]
    return replace(moments, squared_values=dict(moments.squared_values))


def measure_with_values(
    message: Message,
    inputs: Tensor,
    estimator: Estimator | str = "auto",
    clip: float | None = None,
    generator: torch.Generator | None = None,
    *,
    judged: bool = False,
    examples: bool = False,
) -> tuple[Tensors, Moments]:
    """The message's values beside its Moments, for a client that sends what it measured."""
    check_message(message)
    check_inputs(inputs, tokens=takes_tokens(message))
    if clip is not None:
        check_positive(clip, "clip")
        check_at_most(clip, "clip")
    chosen, generator = named(estimator), generator_or_fresh(generator)
    with explained(message, inputs):
        seen, at = embedded(message, inputs)
        if examples and seen is message and isinstance(chosen, Auto):
            chosen = replace(chosen, squares=True)
        values, measured = measure_in_range(chosen, seen, at, generator)
    squares = over_rows(_checked(measured), message, inputs)
    second = _second_squares(seen, at, estimator, generator) if judged else None
    hidden = find_hidden(seen, at, values, squares, generator)
    if hidden is not None:
        hidden.warn(sum(value.numel() for value in values.values()))
        squares = hidden.put_into(squares)
    moments = Moments(
        squared_values=SquaresOf(measured.values),
        squared_sensitivities=squares,
        input_size=at.numel(),
        second_squares=None if second is None else over_rows(second, message, inputs),
        hidden=0 if hidden is None else hidden.count,
        estimator=getattr(measured, "estimator", None) or estimator_name(chosen),
        squared_example_values=example_squares(message, inputs, values, measured.example_squares)
        if examples
        else None,
    )
    return values, moments if clip is None else moments.clipped(clip)


def _checked(measured: Measurement) -> Tensors:
    """The squared sensitivities, finite and in the shape of the values."""
    values, squares, _ = measured
    check_values(values, "message(inputs)")
    check_finite(values, "message(inputs)")
    check_structure(squares, values, "squared_sensitivities", "squared_values")
    check_finite(squares, "squared_sensitivities")
    return not_lost(squares, values)


def _second_squares(
    message: Message, inputs: Tensor, estimator: Estimator | str, generator: torch.Generator
) -> Tensors | None:
    """Without bias, from probes of their own; `None` where the first ones are exact."""
    if estimator == "exact" or isinstance(estimator, Exact):
        return None
    judge: Estimator = PerExample(probes=4) if separates(message, inputs) else Sketch(probes=16)
    return _checked(measure_in_range(judge, message, inputs, generator)[1])


def check_estimator(estimator: object) -> None:
    """Require an estimator or the name of one."""
    named(estimator)  # type: ignore[arg-type]


def named(estimator: Estimator | str) -> Estimator:
    """The estimator of that name."""
    if not isinstance(estimator, str):
        if isinstance(estimator, type) or not callable(estimator):
            raise TypeError(
                "Parameter `estimator` should be a name or an estimator, as `Sketch(probes=10)`."
                f" Found {estimator!r}."
            )
        return estimator
    if estimator not in NAMED:
        raise ValueError(
            f"Parameter `estimator` should be one of {sorted(NAMED)}, or an estimator. Found"
            f" `estimator = {estimator!r}`."
        )
    return NAMED[estimator]()
