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

RATIO, CLAMPED = 0.9, 0.01
"""The share that pruning cuts with noise beside it, and the share of entries that is clamped."""

SWEPT = ("noise_multiplier", "noise", "scale", "step", "ratio")
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
    open: frozenset[str] = frozenset()
    """All amounts that were left out: "scale", "ratio", "clip", "noise" (its scale) ..."""

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
    batches = subject.population(4)
    rows = [_row(subject, x, y) for x, y in batches]
    if subject.local is None:
        inputs, targets = batches[0]
        singles = zip(inputs.split(1), targets.split(1), strict=True)
        norms = [_row(subject, x, y).norm() for x, y in singles]
    else:
        norms = [row.norm() for row in rows]
    whole = torch.cat(rows).abs()
    clamp = float(whole.kthvalue(max(1, round((1 - CLAMPED) * len(whole)))).values)
    scale, norm = float(whole.square().mean().sqrt()), float(torch.stack(norms).median())
    return Usual(scale or 1.0, clamp or 1.0, norm or 1.0)


def _row(subject: Audited, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return flatten(values_of(subject.message(targets), inputs)).double()


def axes_of(requested: Sequence[str | Defense], subject: Audited) -> list[Axis]:
    """An axis for each defense, by unique names; those with all amounts given have one point."""
    usual = usual_amounts(subject)
    axes = [_axis(one, subject, usual) for one in requested]
    names = unique_names([axis.name for axis in axes])
    return [replace(axis, name=name) for name, axis in zip(names, axes, strict=True)]


def unique_names(names: Sequence[str]) -> list[str]:
    """The names, numbered where they come again.

    >>> unique_names(["noise", "pruning", "noise"])
    ['noise', 'pruning', 'noise (2)']
    """
    counts = [names[: place + 1].count(name) for place, name in enumerate(names)]
    return [n if count == 1 else f"{n} ({count})" for n, count in zip(names, counts, strict=True)]


def parse_defense(asked: str | Defense) -> tuple[Spec, Defense]:
    """The specification, and the defense, with placeholders for amounts that are left out."""
    if not isinstance(asked, (str, Defense)):
        raise TypeError(
            "Parameter `defenses` should hold defenses or their specifications. Found"
            f" {type(asked).__name__}."
        )
    spec = Spec.parse(asked if isinstance(asked, str) else spec_of(asked), "defense").named()
    return spec, build_defense(spec.completed(), allow_imports=not isinstance(asked, str))


def _axis(asked: str | Defense, subject: Audited, usual: Usual) -> Axis:
    spec, defense = parse_defense(asked)
    missing = spec.missing
    filled = _filled(spec.completed(), missing, subject, usual)
    swept = next((amount for amount in SWEPT if amount in missing), "")
    axis = Axis(_name(defense), filled, swept, open=missing)
    if not swept:
        return axis
    if swept == "ratio":
        return replace(axis, start=PRUNED)
    middle = math.log10(_middle(swept, subject, usual, filled))
    starts = dict.fromkeys(axis.within(middle + power) for power in START)
    return replace(axis, start=tuple(starts))


def _filled(spec: Spec, missing: frozenset[str], subject: Audited, usual: Usual) -> Spec:
    values: dict[str, object] = {}
    private = "noise_multiplier" in missing
    if "clip" in missing:
        values["clip"] = float(f"{usual.norm if private else usual.clamp:.3g}")
    if "noise" in missing and "ratio" in missing:
        values["ratio"] = RATIO
    if private and subject.local is not None:
        values["unit"] = "client"
    elif private:
        values["batch_size"] = spec.options.get("batch_size", subject.batch_size)
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
    utility = getattr(defense, "utility", "variance")
    words = {
        "per layer": defense.granularity == "layer",
        utility: utility != "variance",
        "private plan": defense.about.private and defense.about.twin is not None,
    }
    extra = [word for word, applies in words.items() if applies]
    return f"{defense.about.label} ({', '.join(extra)})" if extra else defense.about.label
