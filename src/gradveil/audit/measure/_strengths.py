"""Strengths of defenses: one number, from nearly nothing to far too much."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._checks import WrongType
from gradveil._tensors import flatten
from gradveil.catalog import Spec, build_defense, spec_of
from gradveil.defenses import Defense, PrivateNoise
from gradveil.messages import values_of

from .._result import Releases, privacy_of
from .._subject import Audited

RATIO, CLAMPED = 0.9, 0.01
"""The share that pruning cuts with noise beside it, and the share of entries that is clamped."""

AMOUNTS = ("noise_multiplier", "noise", "scale", "step", "ratio")
"""The amounts that can be varied, the first that is open; the others get usual values."""

START = (-1.0, 0.0, 1.0)
"""Powers of ten of the usual amount to begin with: noise a tenth of the message, and so on."""

LIMITS = {"ratio": (0.01, 4.0), "noise_multiplier": (-3.0, 3.0)}
"""The least and the largest strength; all others are open."""

PRUNED = (0.3, 1.0, 2.0)
"""For pruning: powers of ten of 1 / the share that is sent."""


@dataclass(frozen=True)
class Axis:
    """One defense over strengths. A strength is a power of ten: of the amount, or, for a ratio of
    pruning, of 1 / (1 - ratio)."""

    name: str
    spec: Spec
    """With its other amounts filled in."""
    swept: str = ""
    """Which amount is varied; "" for a defense at one point."""
    start: tuple[float, ...] = (0.0,)
    """Strengths to begin with."""

    @property
    def amount_name(self) -> str:
        """What the amount is called where it is shown."""
        return "scale" if self.swept == "noise" else self.swept

    def amount(self, strength: float) -> float:
        """The amount at a strength, in three digits."""
        if self.swept == "ratio":
            return round(1 - digits(10**-strength), 9)
        return digits(10**strength)

    def strength(self, amount: float) -> float:
        """The strength of an amount."""
        return -math.log10(1 - amount) if self.swept == "ratio" else math.log10(amount)

    def at(self, strength: float) -> str:
        """The specification at a strength."""
        if not self.swept:
            return str(self.spec)
        amount = self.amount(strength)
        if self.swept == "noise":
            noise: Spec = self.spec.arguments["noise"]
            return str(self.spec.with_(noise=noise.with_(scale=amount)))
        return str(self.spec.with_(**{self.swept: amount}))

    def epsilon(self, strength: float, releases: Releases) -> float:
        """Of a strength over all rounds; 0 for a defense without one."""
        found = privacy_of(build_defense(self.at(strength), allow_imports=True), releases)
        return found.epsilon_rounds if found else 0.0

    def within(self, strength: float) -> float:
        """The nearest strength that makes sense: 99.99 % are pruned at most."""
        low, high = LIMITS.get(self.swept, (-math.inf, math.inf))
        return min(max(strength, low), high)


def digits(value: float) -> float:
    """A number rounded to three significant digits."""
    return float(f"{value:.3g}")


class Usual(NamedTuple):
    """Usual amounts for a model, from public examples where there are any."""

    scale: float
    """The root mean square of the message's entries."""
    clamp: float
    """The magnitude that one entry in a hundred exceeds."""
    norm: float
    """The median norm of one example's message (of the whole one where updates are sent)."""


def usual_amounts(subject: Audited) -> Usual:
    """From the messages of a few public batches (the private ones where there are no others)."""

    def row(inputs: Tensor, targets: Tensor) -> Tensor:
        return flatten(values_of(subject.message(targets), inputs)).double()

    batches = subject.population(4)
    rows = singles = [row(x, y) for x, y in batches]
    if subject.local is None:
        singles = [row(x, y) for x, y in zip(*(p.split(1) for p in batches[0]), strict=True)]
    whole, norms = torch.cat(rows).abs(), torch.stack([single.norm() for single in singles])
    clamp = float(whole.kthvalue(max(1, round((1 - CLAMPED) * len(whole)))).values)
    scale = float(whole.square().mean().sqrt())
    return Usual(scale or 1.0, clamp or 1.0, float(norms.median()) or 1.0)


def axes_of(requested: Sequence[str | Defense], subject: Audited) -> list[Axis]:
    """An axis for each defense, by unique names; those with all amounts given have one point."""
    usual = usual_amounts(subject)
    axes = [_axis(one, subject, usual) for one in requested]
    names = unique_names([axis.name for axis in axes])
    return [replace(axis, name=name) for name, axis in zip(names, axes, strict=True)]


def unique_names(names: Sequence[str]) -> list[str]:
    """The names, numbered where they come again: "noise", "noise (2)"."""
    counts = [names[: place + 1].count(name) for place, name in enumerate(names)]
    return [n if count == 1 else f"{n} ({count})" for n, count in zip(names, counts, strict=True)]


def parse_defense(asked: str | Defense) -> tuple[Spec, Defense]:
    """The specification, and the defense, with placeholders for amounts that are left out."""
    if not isinstance(asked, (str, Defense)):
        raise WrongType("defenses", "hold defenses or specifications", type(asked).__name__)
    spec = Spec.parse(asked if isinstance(asked, str) else spec_of(asked), "defense")
    return spec, build_defense(spec.completed(), allow_imports=not isinstance(asked, str))


def _axis(asked: str | Defense, subject: Audited, usual: Usual) -> Axis:
    """Usual values for what is not varied, and strengths for what is."""
    spec, defense = parse_defense(asked)
    missing, options = spec.missing, spec.completed().arguments
    values: dict[str, object] = {}
    private = "noise_multiplier" in missing
    if "clip" in missing:
        values["clip"] = digits(usual.norm if private else usual.clamp)
    if "noise" in missing and "ratio" in missing:
        values["ratio"] = RATIO
    if private and subject.local is not None:
        values["unit"] = "client"
    elif isinstance(defense, PrivateNoise) and defense.unit == "example":
        values["batch_size"] = options.get("batch_size", subject.batch_size)
    spec = spec.completed().with_(**values)
    swept = next((amount for amount in AMOUNTS if amount in missing), "")
    start: tuple[float, ...] = PRUNED if swept else (0.0,)
    if swept not in ("", "ratio"):
        middle = usual.scale  # noise is about as large as the message
        if private:
            divisor = 1 if subject.local is not None else subject.batch_size
            middle *= divisor / spec.arguments["clip"]
        start = tuple(math.log10(middle) + power for power in START)
    axis = Axis(_name(defense), spec, swept)
    return replace(axis, start=tuple(dict.fromkeys(map(axis.within, start))))


def _name(defense: Defense) -> str:
    """Its label; with what makes it different from the usual form."""
    utility = getattr(defense, "utility", "variance")
    words = {
        "per layer": defense.granularity == "layer",
        utility: utility != "variance",
        "private plan": defense.about.private and defense.about.twin is not None,
    }
    extra = [word for word, applies in words.items() if applies]
    return f"{defense.about.label} ({', '.join(extra)})" if extra else defense.about.label
