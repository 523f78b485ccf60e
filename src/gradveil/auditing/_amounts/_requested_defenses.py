"""The defenses that an audit is asked for, some with amounts that are still to be solved for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradveil.catalog import Spec, build_defense
from gradveil.defenses import Defense, PrivateNoise


@dataclass(frozen=True)
class RequestedDefense:
    """A defense, and which of its amounts are open: those hold a placeholder."""

    name: str
    defense: Defense
    open: frozenset[str] = frozenset()
    """Of "scale", "ratio", "clip" and "noise" (the scale of a pruning defense's noise)."""


def requested_defenses(asked: Sequence[str | Defense]) -> list[RequestedDefense]:
    """The defenses by unique names; specifications may leave their amounts out."""
    requested = [_requested(one) for one in asked]
    names = unique_names([one.name for one in requested])
    return [replace(one, name=name) for name, one in zip(names, requested, strict=True)]


def unique_names(names: Sequence[str]) -> list[str]:
    """The names, numbered where they come again.

    >>> unique_names(["noise", "pruning", "noise"])
    ['noise', 'pruning', 'noise (2)']
    """
    counts = dict.fromkeys(names, 0)
    unique = []
    for name in names:
        counts[name] += 1
        unique.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return unique


def _requested(asked: str | Defense) -> RequestedDefense:
    if isinstance(asked, Defense):
        return RequestedDefense(_name(asked), asked)
    if not isinstance(asked, str):
        raise TypeError(
            "Parameter `defenses` should hold defenses or their specifications. Found"
            f" {type(asked).__name__}."
        )
    spec = Spec.parse(asked, "defense")
    defense = build_defense(spec.completed())
    if isinstance(defense, PrivateNoise) and spec.missing:
        raise ValueError(
            f"The defense `{spec.name}` should have its amounts: a guarantee is chosen, not matched"
            f" to other defenses. Found no {' and no '.join(sorted(spec.missing))}. Write for"
            " example private-noise(noise_multiplier=1.0, clip=1.0)."
        )
    return RequestedDefense(_name(defense), defense, spec.missing)


def _name(defense: Defense) -> str:
    """Its label; an optimal defense says if it plans from the private batch."""
    leaks = defense.plan_is_private and defense.twin is not None
    return f"{defense.label} (private plan)" if leaks else defense.label
