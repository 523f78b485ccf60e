"""How defenses and marks look and are called, the same in every chart, legend and heading.

A family (a classical defense and its optimal twin) shares a hue; the optimal one is filled, its
twin open. The hues are those of Okabe and Ito whose contrast is at least 3 on white and on the
dark background, so that charts need no second palette."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gradveil.catalog import build_defense, shown_amounts, shown_name

from .._result import AttackResult, AuditResult, Curve, DefenseResult, identity

GREY = "#808080"
HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8A7300", "#7B68C8")
BOUND = "bound"
SHAPES = {
    "triangle-up": "M8 2 L14.5 13.5 H1.5 Z",
    "circle": "M8 2 A6 6 0 1 1 7.99 2 Z",
    "diamond": "M8 1 L15 8 L8 15 L1 8 Z",
    "square": "M2.5 2.5 H13.5 V13.5 H2.5 Z",
    "cross": "M6 2 H10 V6 H14 V10 H10 V14 H6 V10 H2 V6 H6 Z",
    "star": "M8 1 L10 6 L15 6.3 L11 9.6 L12.5 15 L8 12 L3.5 15 L5 9.6 L1 6.3 L6 6 Z",
}
"""Plotly's symbols, and each as a path in a box of 16 for legends."""


class Styled(Protocol):
    """What a look depends on."""

    @property
    def name(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def twin(self) -> str | None: ...
    @property
    def is_undefended(self) -> bool: ...


S = TypeVar("S", bound=Styled)


@dataclass(frozen=True)
class StyledCurve:
    """A curve, with what its defense says of itself."""

    name: str
    family: str
    twin: str | None
    is_undefended: bool


@dataclass(frozen=True)
class Look:
    """The colour of a defense, and whether its marks are filled and its lines solid."""

    color: str
    filled: bool


@dataclass(frozen=True)
class Mark:
    """The bound or one attack, with its symbol."""

    key: str
    label: str
    symbol: str

    @property
    def path(self) -> str:
        """The symbol for a legend."""
        return SHAPES[self.symbol]


def families(result: AuditResult) -> list[tuple[DefenseResult, ...]]:
    """The defenses, twins together, in the order in which they first occur."""
    return _grouped(result.defenses)


def _grouped(defenses: Iterable[S]) -> list[tuple[S, ...]]:
    """Twins together.

    Of several of one family, the first classical and the first optimal one go together, then the
    second ones, and so on: a group holds at most one of each.
    """
    counts: dict[tuple[str, bool], int] = {}
    groups: dict[tuple[str, int], list[S]] = {}
    for defense in defenses:
        family = defense.family or defense.name
        kind = family, defense.twin is None
        counts[kind] = counts.get(kind, 0) + 1
        groups.setdefault((family, counts[kind]), []).append(defense)
    return [tuple(group) for group in groups.values()]


def twins(result: AuditResult) -> list[tuple[DefenseResult, DefenseResult]]:
    """Each optimal defense behind its own classical counterpart, where both were audited."""
    pairs = [group for group in families(result) if len(group) == 2]
    ordered = [(b, a) if a.twin else (a, b) for a, b in pairs]
    return [(a, b) for a, b in ordered if shown_name(a.defense) == b.twin]


def looks(result: AuditResult) -> dict[str, Look]:
    """The look of each defense by name; one of a curve has that curve's."""
    frontier = result.frontier
    curves = [_styled(curve) for curve in frontier.curves] if frontier else []
    names = {curve.name for curve in curves}
    styled: list[Styled] = [*curves, *(d for d in result.defenses if d.name not in names)]
    by_name: dict[str, Look] = {}
    hue = 0
    for group in _grouped(styled):
        plain = all(d.is_undefended for d in group)
        color = GREY if plain else HUES[hue % len(HUES)]
        hue += not plain
        for defense in group:
            filled = defense.twin is not None or len(group) == 1
            by_name[defense.name] = Look(color, filled)
    return by_name


def _styled(curve: Curve) -> StyledCurve:
    """A specification that cannot be built, as of a user's own defense, has no twin."""
    try:
        found = identity(build_defense(curve.points[0].defense))
    except (IndexError, TypeError, ValueError):
        found = {"family": curve.family, "twin": None, "is_undefended": False}
    return StyledCurve(curve.name, **found)


def setting(spec: str) -> str:
    """The numbers of a specification that say how strong it is, short.

    >>> setting("optimal-pruning(ratio=0.7784362, noise=optimal-noise(scale=0.0123456))")
    'ratio 0.778, scale 0.0123'
    >>> setting("private-noise(noise_multiplier=1.0, clip=0.5)")
    'noise multiplier 1, clip 0.5'
    >>> setting("no-defense")
    '-'
    """
    amounts = shown_amounts(spec)
    return ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in amounts) or "-"


def attack_names(result: AuditResult) -> dict[str, str]:
    """A short name for each attack's specification: without arguments where that is unique."""
    specs = list(dict.fromkeys(a.attack for d in result.defenses for a in d.attacks))
    short = [shown_name(spec) for spec in specs]
    return {s: n if short.count(n) == 1 else s for s, n in zip(specs, short, strict=True)}


def attack_on(defense: DefenseResult, spec: str) -> AttackResult | None:
    """That attack's result, if it was run."""
    return next((a for a in defense.attacks if a.attack == spec), None)


def marks(result: AuditResult) -> list[Mark]:
    """The bound first, where there is any, then the attacks."""
    symbols: Sequence[str] = list(SHAPES)
    bound_and_attacks = (
        [Mark(BOUND, "reference error", symbols[0])]
        if any(d.bound for d in result.defenses)
        else []
    )
    for place, (spec, name) in enumerate(attack_names(result).items()):
        bound_and_attacks.append(Mark(spec, name, symbols[1 + place % (len(symbols) - 1)]))
    return bound_and_attacks
