"""The strength of a defense as one number, from nearly nothing to far too much."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from gradveil._tensors import flatten
from gradveil.catalog import Spec, build_defense, spec_of
from gradveil.defenses import Defense
from gradveil.messages import values_of

from .._subject import Audited
from ._matching import CLAMPED, RATIO, unique_names

SWEPT = ("noise_multiplier", "noise", "scale", "step", "ratio")
"""The amounts that can be varied, the first that is open; the others get usual values."""

ALSO = {
    "laplace-noise": "scale",
    "rounding": "step",
    "optimal-rounding": "step",
    "error-feedback": "ratio",
}
"""Defenses with one amount that only this audit can choose."""

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
            return round(1 - float(f"{10**-strength:.3g}"), 9)
        return float(f"{10**strength:.3g}")

    def strength(self, amount: float) -> float:
        """The strength of an amount."""
        return -math.log10(1 - amount) if self.swept == "ratio" else math.log10(amount)

    def at(self, strength: float) -> str:
        """The specification at a strength."""
        if not self.swept:
            return str(self.spec)
        amount = self.amount(strength)
        if self.swept == "noise":
            noise: Spec = self.spec.options["noise"]
            return str(self.spec.with_(noise=noise.with_(scale=amount)))
        return str(self.spec.with_(**{self.swept: amount}))

    def within(self, strength: float) -> float:
        """The nearest strength that makes sense: 99.99 % are pruned at most."""
        low, high = LIMITS.get(self.swept, (-math.inf, math.inf))
        return min(max(strength, low), high)

    def build(self, strength: float) -> Defense:
        """The defense at a strength; import paths are those of objects that the caller gave."""
        return build_defense(self.at(strength), allow_imports=True)


@dataclass(frozen=True)
class Usual:
    """Usual amounts for a model, from public examples where there are any."""

    scale: float
    """The root mean square of the message's entries."""
    clamp: float
    """The magnitude that one entry in a hundred exceeds."""
    norm: float
    """The median norm of one example's message (of the whole one where updates are sent)."""


def usual_amounts(subject: Audited) -> Usual:
    """From the messages of a few public batches (the private ones where there are no others)."""
    rows = [_row(subject, batch) for batch in subject.population(4)]
    single = rows if subject.local is not None else _single(subject)
    squares = torch.stack([row.square().mean() for row in rows]).mean()
    magnitudes = torch.cat(rows).abs()
    place = max(1, round((1 - CLAMPED) * len(magnitudes)))
    clamp = float(magnitudes.kthvalue(place).values)
    norm = float(torch.stack([row.norm() for row in single]).median())
    return Usual(float(squares.sqrt()) or 1.0, clamp or 1.0, norm or 1.0)


def _single(subject: Audited) -> list[torch.Tensor]:
    inputs, targets = subject.population(4)[0]
    return [_row(subject, (inputs[i : i + 1], targets[i : i + 1])) for i in range(len(inputs))]


def _row(subject: Audited, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch
    return flatten(values_of(subject.message(targets), inputs)).double()


def axes_of(requested: Sequence[str | Defense], subject: Audited, usual: Usual) -> list[Axis]:
    """An axis for each defense, by unique names; those with all amounts given have one point."""
    axes = [_axis(one, subject, usual) for one in requested]
    names = unique_names([axis.name for axis in axes])
    return [replace(axis, name=name) for name, axis in zip(names, axes, strict=True)]


def given_axes(solved: Sequence[tuple[str, Defense]]) -> list[Axis]:
    """Axes of one point each."""
    return [Axis(name, Spec.parse(spec_of(defense), "defense")) for name, defense in solved]


def _axis(asked: str | Defense, subject: Audited, usual: Usual) -> Axis:
    given = isinstance(asked, str)
    spec = Spec.parse(asked if isinstance(asked, str) else spec_of(asked), "defense").named()
    missing = spec.missing | _also_missing(spec)
    placeholders = dict.fromkeys(_also_missing(spec), 0.5)
    filled = _filled(spec.completed().with_(**placeholders), missing, subject, usual)
    name = _name(build_defense(filled, allow_imports=not given))
    swept = next((amount for amount in SWEPT if amount in missing), "")
    if not swept:
        return Axis(name, filled)
    if swept == "ratio":
        return Axis(name, filled, swept, PRUNED)
    middle = math.log10(_middle(swept, subject, usual, filled))
    axis = Axis(name, filled, swept)
    starts = dict.fromkeys(axis.within(middle + power) for power in START)
    return replace(axis, start=tuple(starts))


def _also_missing(spec: Spec) -> frozenset[str]:
    amount = ALSO.get(spec.name)
    return frozenset({amount}) if amount and amount not in spec.options else frozenset()


def _filled(spec: Spec, missing: frozenset[str], subject: Audited, usual: Usual) -> Spec:
    values: dict[str, object] = {}
    if "clip" in missing:
        private = "noise_multiplier" in missing
        values["clip"] = float(f"{usual.norm if private else usual.clamp:.3g}")
    if "noise" in missing and "ratio" in missing:
        values["ratio"] = RATIO
    if spec.name == "private-noise" and "batch_size" not in spec.options:
        if subject.local is not None:
            values["unit"] = "client"
        else:
            values["batch_size"] = subject.batch_size
    return spec.with_(**values) if values else spec


def _middle(swept: str, subject: Audited, usual: Usual, spec: Spec) -> float:
    """The amount at which noise is about as large as the message."""
    if swept != "noise_multiplier":
        return usual.scale
    divisor = 1 if subject.local is not None else subject.batch_size
    clip: float = spec.options["clip"]
    return usual.scale * divisor / clip


def _name(defense: Defense) -> str:
    """Its label; with what makes it different from the usual form."""
    words = {"layer": "per layer"}.get(getattr(defense, "granularity", ""), "")
    utility = getattr(defense, "utility", "variance")
    extra = [word for word in (words, utility if utility != "variance" else "") if word]
    if defense.about.private and defense.about.twin is not None:
        extra.append("private plan")
    return f"{defense.about.label} ({', '.join(extra)})" if extra else defense.about.label
