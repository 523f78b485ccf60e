"""What one defense guarantees and costs on the first batch, without attacking it."""

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch

from gradveil._random import numbered_stream
from gradveil._tensors import total
from gradveil._timing import time_ratios
from gradveil._typing import Tensors
from gradveil.defenses import Defense
from gradveil.mechanisms import AnyMechanism, Mechanism
from gradveil.messages import size_in_bytes, values_of
from gradveil.theory import reconstruction_bound, utility

from ._defaults import BOUND_PROBES, FULL_LIMIT
from ._result import BoundResult, LayerResult
from ._subject import Subject

TIMINGS = 9
"""Pairs of a plain and a defended message that are timed."""


@dataclass(frozen=True)
class Measurement:
    """All that needs no attack and no training."""

    utility_first: float | None
    utility_second: float | None
    bound: BoundResult | None
    formal_privacy: str
    bytes_sent: int
    time_ratio: float
    layers: tuple[LayerResult, ...]


def measure_one(subject: Subject, defense: Defense, seed: int) -> Measurement:
    """Plan on the first batch and read everything off the mechanism."""
    inputs, targets = subject.batch(0)
    message, generator = subject.message(targets), numbered_stream(seed)
    values, mechanism, sent = deepcopy(defense).respond(message, inputs, generator)
    first, second = (None, None) if mechanism is None else _utilities(values, mechanism)
    bound = None if mechanism is None else bound_of(subject, mechanism, seed)
    return Measurement(
        utility_first=first,
        utility_second=second,
        bound=bound,
        formal_privacy=formal_privacy(defense, bound),
        bytes_sent=size_in_bytes(sent),
        time_ratio=_time_ratio(subject, defense),
        layers=_layers(values, mechanism),
    )


def _utilities(values: Tensors, mechanism: AnyMechanism) -> tuple[float, float]:
    """U1 and U2 over the squared norm of the message."""
    power = float(total(value.square() for value in values.values()))
    first, second = utility(values, mechanism)
    return (first / power, second / power) if power else (1.0, 0.0)


def bound_of(
    subject: Subject, mechanism: AnyMechanism, seed: int, probes: int = BOUND_PROBES
) -> BoundResult | None:
    """The full bound where it can be computed, and the trace bound; `None`: no guarantee."""
    inputs, targets = subject.batch(0)
    options: dict[str, Any] = {"prior": subject.prior}
    message = subject.message(targets)
    trace = reconstruction_bound(
        message, inputs, mechanism, method="trace", generator=numbered_stream(seed), **options
    )
    if not 0 < trace.total < math.inf:
        return None
    best, entries = trace, sum(p.numel() for p in message.parameters.values())
    if subject.prior is not None and inputs.numel() * entries <= FULL_LIMIT:
        best = reconstruction_bound(
            message, inputs, mechanism, probes=probes, generator=numbered_stream(seed), **options
        )
    return BoundResult(
        method=best.method,
        prior=best.prior,
        mse=best.per_entry,
        mse_standard_error=best.standard_error / inputs.numel(),
        trace_mse=trace.per_entry,
        psnr_ceiling=_psnr_ceiling(subject, best.per_entry),
        counts_plan=best.counts_plan,
    )


def formal_privacy(defense: Defense, bound: BoundResult | None) -> str:
    """Which formal guarantee a defense carries, in words."""
    if bound is None:
        return "none: what is sent, is sent without noise"
    if defense.clip is not None:
        return (
            "no (ε, δ): entries of the batch's message are clamped, not the norm of each example's"
        )
    return "no (ε, δ): nothing limits what one example can change"


def _psnr_ceiling(subject: Subject, mse: float) -> float | None:
    """10 log10(1 / (std² mse)), with the least std where channels differ."""
    if not subject.is_image:
        return None
    return -10 * math.log10(mse * min(subject.data.std) ** 2)


def _layers(values: Tensors, mechanism: AnyMechanism | None) -> tuple[LayerResult, ...]:
    """Nothing for a defense without a mechanism."""
    if mechanism is None:
        return ()
    return tuple(_layer(name, value, mechanism) for name, value in values.items())


def _layer(name: str, value: torch.Tensor, mechanism: AnyMechanism) -> LayerResult:
    std: Any = mechanism.std if isinstance(mechanism, Mechanism) else 0.0
    keep: Any = mechanism.keep if isinstance(mechanism, Mechanism) else None
    std, keep = (x[name] if isinstance(x, dict) else x for x in (std, keep))
    noise = torch.as_tensor(std, dtype=torch.float64).square().mean().sqrt()
    kept = torch.as_tensor(1.0 if keep is None else keep, dtype=torch.float64).mean()
    return LayerResult(name, value.numel(), float(noise), float(kept))


def _time_ratio(subject: Subject, defense: Defense) -> float:
    """The seconds of a defended message over those of the plain one, timed in turns."""
    inputs, targets = subject.batch(0)
    message, own = subject.message(targets), deepcopy(defense)
    ratios = time_ratios(
        lambda: values_of(message, inputs),
        {"defended": lambda: own(message, inputs, numbered_stream(0))},
        TIMINGS,
    )
    return ratios["defended"]
