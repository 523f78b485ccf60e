"""The defenses that an audit is asked for, some with amounts that are still to be found."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gradveil.catalog import build_defense, spec_of
from gradveil.defenses import (
    DPSGD,
    Defense,
    GradientNoise,
    GradientPruning,
    NoDefense,
    OptimalDPSGD,
    OptimalNoise,
    OptimalPruning,
)

AMOUNTS = {"scale", "ratio", "utility_budget", "target_error"}
_MISSING = {
    "gradient_noise": {"scale": 1.0},
    "optimal_noise": {"scale": 1.0},
    "dpsgd": {"scale": 1.0, "clip": 1.0},
    "optimal_dpsgd": {"scale": 1.0, "clip": 1.0},
    "gradient_pruning": {"ratio": 0.5},
    "optimal_pruning": {"ratio": 0.5},
}
_NAMES: dict[type[Defense], str] = {
    NoDefense: "no defense",
    GradientNoise: "noise",
    OptimalNoise: "optimal noise",
    DPSGD: "DP-SGD",
    OptimalDPSGD: "optimal DP-SGD",
    GradientPruning: "pruning",
    OptimalPruning: "optimal pruning",
}


@dataclass(frozen=True)
class Wanted:
    """A defense, and which of its amounts are open: those hold a placeholder."""

    name: str
    defense: Defense
    open: frozenset[str] = frozenset()
    """Of "scale", "ratio", "clip" and "noise" (the scale of a pruning defense's noise)."""


def wanted_defenses(asked: Sequence[str | Defense]) -> list[Wanted]:
    """The defenses by unique names; specifications may leave their amounts out."""
    found = [_wanted(one) for one in asked]
    names: dict[str, int] = {}
    unique = []
    for one in found:
        names[one.name] = count = names.get(one.name, 0) + 1
        name = one.name if count == 1 else f"{one.name} ({count})"
        unique.append(Wanted(name, one.defense, one.open))
    return unique


def _wanted(asked: str | Defense) -> Wanted:
    if isinstance(asked, Defense):
        return Wanted(_name(asked), asked)
    if not isinstance(asked, str):
        raise TypeError(
            "Parameter `defenses` should hold defenses or their specifications. Found"
            f" {type(asked).__name__}."
        )
    spec, missing = _completed(asked)
    defense = build_defense(spec)
    return Wanted(_name(defense), defense, missing)


def _name(defense: Defense) -> str:
    name = _NAMES.get(type(defense), spec_of(defense))
    if getattr(defense, "noise", None) is not None:
        return name.replace("pruning", "noisy pruning")
    return name


def _completed(spec: str) -> tuple[str, frozenset[str]]:
    """The specification with a placeholder for every amount that it leaves out.

    >>> _completed("optimal-pruning(noise=gradient-noise(0.1))")
    ('optimal-pruning(noise=gradient_noise(0.1), ratio=0.5)', frozenset({'ratio'}))
    """
    try:
        tree = ast.parse(re.sub(r"(?<=[A-Za-z])-(?=[A-Za-z])", "_", spec), mode="eval").body
    except SyntaxError:
        return spec, frozenset()  # `build_defense` says what is wrong with it
    call = _as_call(tree)
    if call is None:
        return spec, frozenset()
    missing = _fill(call)
    for word in call.keywords:
        inner = _as_call(word.value)
        if word.arg == "noise" and inner is not None and _fill(inner):
            word.value = inner
            missing.add("noise")
    if not missing:
        return spec, frozenset()
    name, _, rest = ast.unparse(call).partition("(")
    return f"{name.replace('_', '-')}({rest}", frozenset(missing)


def _as_call(node: ast.expr) -> ast.Call | None:
    if isinstance(node, ast.Name):
        node = ast.Call(node, [], [])
    known = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return node if isinstance(node, ast.Call) and known else None


def _fill(call: ast.Call) -> set[str]:
    """Add the amounts that a call leaves out; which ones these were."""
    assert isinstance(call.func, ast.Name)
    given = {word.arg for word in call.keywords}
    if call.args or given & AMOUNTS:
        return set()
    missing = {n: p for n, p in _MISSING.get(call.func.id, {}).items() if n not in given}
    call.keywords += [ast.keyword(name, ast.Constant(p)) for name, p in missing.items()]
    return set(missing)
