"""Defenses as studies name them: a name and one level, the pruning ratio or the noise scale."""

import re

LABELS = {
    "no-defense": "no defense",
    "gradient-pruning": "gradient pruning",
    "optimal-pruning": "optimal pruning",
    "dpsgd": "DP-SGD",
    "optimal-dpsgd": "optimal noise",
    "gradient-noise": "isotropic noise",
    "optimal-noise": "optimal noise",
}
"""How figures call them. The paper clips before its optimal noise, too, when it compares."""

_LEVEL = re.compile(r"([a-z-]+)\(.*?\b(?:ratio|scale)=([0-9.e+-]+)")


def defense_spec(name: str, level: float | None = None, estimator: str = "auto") -> str:
    """The specification of a defense.

    >>> defense_spec("optimal-pruning", 0.9, "sketch(probes=10)")
    'optimal-pruning(ratio=0.9, estimator=sketch(probes=10))'
    """
    if level is None:
        return name
    option = "ratio" if "pruning" in name else "scale"
    tail = f", estimator={estimator}" if name.startswith("optimal") and estimator != "auto" else ""
    return f"{name}({option}={level!r}{tail})"


def name_and_level(spec: str) -> tuple[str, float | None]:
    """The inverse of `defense_spec`; the estimator is left out.

    >>> name_and_level("optimal-pruning(ratio=0.9, estimator=sketch(probes=10))")
    ('optimal-pruning', 0.9)
    """
    found = _LEVEL.match(spec)
    return (found.group(1), float(found.group(2))) if found else (spec, None)


def level_text(name: str, level: float | None) -> str:
    """A defense with its level, for legends.

    >>> level_text("optimal-pruning", 0.8), level_text("dpsgd", 0.05)
    ('80% optimal pruning', 'DP-SGD, scale 0.05')
    """
    label = LABELS.get(name, name)
    if level is None:
        return label
    return f"{level * 100:g}% {label}" if "pruning" in name else f"{label}, scale {level:g}"
