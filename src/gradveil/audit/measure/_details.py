"""What one defense guarantees and costs, without attacking it by hand."""

from copy import deepcopy
from typing import Any

import torch

from gradveil._batches import task_of
from gradveil._random import numbered_stream
from gradveil._tensors import total
from gradveil._timing import time_ratios
from gradveil._typing import Tensors
from gradveil.attacks import IdentificationReport, identify_trials
from gradveil.defenses import Defended, Defense
from gradveil.mechanisms import AnyMechanism
from gradveil.messages import size_in_bytes, trainable_parameters, values_of
from gradveil.shapes import ModelSource
from gradveil.theory import utility

from .._result import Detail, LayerResult, ToldApart
from .._subject import Audited, Batch
from ._bounds import Guarantee, Population, guarantee_of

CANDIDATES, FEWEST = 32, 8
"""How many there are to choose from; of one class where a class has at least the fewest."""

TRIALS, LEAST_TRIALS = 24, 6
"""Messages in all, and for a very large model."""

MOST_WORK = 2**29
"""Trials times candidates times entries of the message: some seconds."""

STREAM = 5
"""The place of its random numbers in those of an audit."""

TIMINGS = 9
"""Pairs of a plain and a defended message that are timed."""


def told_apart(
    subject: Audited, defense: Defense, seed: int, trials: int = TRIALS
) -> ToldApart | None:
    """The rate and the bits for one defense; `None` where they cannot be computed.

    Candidates are public examples where there are any, of one class where one has enough. A
    defense that does not state what it does as a mechanism with a likelihood has no such number.

    Args:
        subject: Model and data.
        defense: What the client does to its message.
        seed: Of the candidates, the same for all defenses, and the noise.
        trials: Messages in all; fewer for large models.
    """
    count, one_class = candidate_choice(subject.known[1], subject.batch_size)
    if count < 2:
        return None
    entries = sum(p.numel() for p in trainable_parameters(subject.model).values())
    trials = max(LEAST_TRIALS, min(trials, MOST_WORK // (count * entries)))
    stream = numbered_stream(seed, STREAM)
    try:
        report = identified(
            subject, defense, subject.known, count, one_class, stream,
            trials=trials, per_draw=-(-trials // 2),
        )  # fmt: skip
    except TypeError:  # no mechanism, or one without a likelihood
        return None
    return ToldApart(
        report.candidates,
        len(report.trials),
        report.rate,
        report.bits,
        report.rank.mean,
        report.error.mean,
        one_class,
    )


def identified(
    subject: Audited,
    defense: Defense,
    examples: Batch,
    candidates: int,
    one_class: bool,
    generator: torch.Generator,
    **options: Any,
) -> IdentificationReport:
    """The exact attacker's trials with candidates from these examples (`identify_trials`)."""
    return identify_trials(
        subject.model,
        subject.loss_fn,
        examples,
        defense,
        num_classes=subject.data.num_classes,
        candidates=candidates,
        batch_size=subject.batch_size,
        one_class=one_class,
        local=subject.local,
        generator=generator,
        **options,
    )


def candidate_choice(
    targets: torch.Tensor, batch_size: int, most: int = CANDIDATES
) -> tuple[int, bool]:
    """How many candidates, and whether all of one class; other targets have none."""
    left = len(targets) - (batch_size - 1)
    if task_of(targets) != "classification":
        return min(most, left), False
    largest = min(int(torch.bincount(targets).max()), left)
    if largest >= FEWEST:
        return min(most, largest), True
    return min(most, left), False


def measure_defense(
    subject: Audited, defense: Defense, seed: int, population: Population | None = None
) -> Detail:
    """Plan on the first batch and read everything off the mechanism."""
    promise, (values, mechanism, sent) = promise_of(subject, defense, seed, population)
    named = values if mechanism is not None else {}
    return Detail(
        **promise,
        bytes_sent=size_in_bytes(sent),
        time_ratio=_time_ratio(subject, defense),
        layers=tuple(_layer(name, value, mechanism) for name, value in named.items()),
    )


def promise_of(
    subject: Audited, defense: Defense, seed: int, population: Population | None = None
) -> tuple[dict[str, Any], Defended]:
    """The fields of a `Promise`, and the defended message of the first batch that they are of.

    Args:
        subject: Model and data.
        defense: With its amounts.
        seed: Of everything random.
        population: `population_of(subject)`, which saves time where several defenses are measured.
    """
    inputs, targets = subject.batch(0)
    found = deepcopy(defense).respond(subject.message(targets), inputs, numbered_stream(seed))
    first, second = _utilities(found.values, found.mechanism)
    guarantee = guarantee_of(subject, defense, seed, population)
    promise = {
        "utility_first": first,
        "utility_second": second,
        "bound": guarantee.bound,
        "no_guarantee": guarantee.reason,
        "formal_privacy": _formal_privacy(defense, guarantee),
    }
    return promise, found


def _utilities(
    values: Tensors, mechanism: AnyMechanism | None
) -> tuple[float, float] | tuple[None, None]:
    """U1 and U2 over the squared norm of the message; nothing without a mechanism."""
    if mechanism is None:
        return None, None
    power = float(total(value.square() for value in values.values()))
    first, second = utility(values, mechanism)
    return (first / power, second / power) if power else (1.0, 0.0)


def _formal_privacy(defense: Defense, guarantee: Guarantee) -> str:
    """Which formal guarantee a defense carries, in words."""
    if defense.about.formal_privacy is not None:
        return defense.about.formal_privacy
    if guarantee.bound is None:
        return f"none: {guarantee.reason or 'nothing is bounded'}"
    if defense.about.clamp is not None:
        return (
            "no (ε, δ): entries of the batch's message are clamped, not the norm of each example's"
        )
    return "no (ε, δ): nothing limits what one example can change"


def _layer(name: str, value: torch.Tensor, mechanism: AnyMechanism | None) -> LayerResult:
    parts = (getattr(mechanism, "std", 0.0), getattr(mechanism, "keep", None))
    std, keep = (part[name] if isinstance(part, dict) else part for part in parts)
    noise = torch.as_tensor(std, dtype=torch.float64).square().mean().sqrt()
    kept = torch.as_tensor(1.0 if keep is None else keep, dtype=torch.float64).mean()
    return LayerResult(name, value.numel(), float(noise), float(kept))


def _time_ratio(subject: Audited, defense: Defense) -> float:
    """The seconds of a defended message over those of the plain one, timed in turns.

    A plan from the model that is kept counts with its part of a call.
    """
    inputs, targets = subject.batch(0)
    message, own = subject.message(targets), deepcopy(defense)
    jobs, every = {"kept": lambda: own(message, inputs, numbered_stream(0))}, 1
    if isinstance(own.origin, ModelSource) and own.about.source == "model":
        every = own.origin.refresh_every
        jobs["planned"] = lambda: own.without_memory()(message, inputs, numbered_stream(0))
    ratios = time_ratios(lambda: values_of(message, inputs), jobs, TIMINGS)
    plan = max(0.0, ratios.get("planned", 0.0) - ratios["kept"])
    return ratios["kept"] + plan / every
