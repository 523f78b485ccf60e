"""Defenses as studies name them: a name and one level, the pruning ratio or the noise scale."""

from functools import lru_cache

from gradveil.catalog import DEFENSES, Spec, build_defense
from gradveil.defenses import Defense

WITH_AMOUNT = {"laplace-noise": "laplace-noise(scale=1.0)"}
"""Names for which the catalog has no placeholder of the amount."""


ATTACKERS = {
    "paper": "the paper's attack",
    "strong": "tuned attack",
    "aware": "attack that knows the defense",
}
"""How figures call the three attackers."""


@lru_cache(maxsize=256)
def defense_of(text: str) -> Defense:
    """The defense of a specification, to be asked what it is; amounts may be left out.

    >>> defense_of("optimal-pruning").amount_name
    'ratio'
    """
    spec = Spec.parse(WITH_AMOUNT.get(text, text), "defense")
    return build_defense(spec.completed())


def is_optimal(text: str) -> bool:
    """Whether it is the optimal form of a classical defense.

    >>> is_optimal("optimal-noise(scale=0.1)"), is_optimal("dpsgd")
    (True, False)
    """
    return defense_of(text).twin is not None


def is_pruning(text: str) -> bool:
    """Whether its level is the share of entries that it prunes."""
    return defense_of(text).amount_name == "ratio"


def label_of(name: str) -> str:
    """How figures call a defense; a name that is not registered stays as it is."""
    return defense_of(name).label if name in DEFENSES else name


def defense_spec(name: str, level: float | None = None, estimator: str = "auto") -> str:
    """The specification of a defense; an optimal one plans from the private batch, as in the paper.

    >>> defense_spec("optimal-pruning", 0.9, "sketch(probes=10)")
    "optimal-pruning(ratio=0.9, estimator=sketch(probes=10), plan='private')"
    """
    spec = Spec(name)
    if level is None:
        return str(spec)
    spec = spec.with_(**{"ratio" if is_pruning(name) else "scale": level})
    if not is_optimal(name):
        return str(spec)
    if estimator != "auto":
        spec = spec.with_(estimator=Spec.parse(estimator, "estimator"))
    return str(spec.with_(plan="private"))


def name_and_level(text: str) -> tuple[str, float | None]:
    """The inverse of `defense_spec`; the estimator is left out.

    >>> name_and_level("optimal-pruning(ratio=0.9, estimator=sketch(probes=10))")
    ('optimal-pruning', 0.9)
    """
    spec = Spec.parse(text, "defense")
    amounts = dict(spec.amounts)
    return spec.name, amounts.get("ratio", amounts.get("scale"))


def level_text(name: str, level: float | None) -> str:
    """A defense with its level, for legends.

    >>> level_text("optimal-pruning", 0.8), level_text("dpsgd", 0.05)
    ('80% optimal pruning', 'noise with clamping, scale 0.05')
    """
    label = label_of(name)
    if level is None:
        return label
    return f"{level * 100:g}% {label}" if is_pruning(name) else f"{label}, scale {level:g}"
