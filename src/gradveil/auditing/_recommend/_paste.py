"""A setting as a line of Python and of TOML."""

from typing import Any

from gradveil.catalog import DEFENSES, Spec


def python_line(defense: str, plan: str) -> str:
    """A line that makes the defense in Python.

    >>> python_line("optimal-noise(scale=0.012)", "model")
    'defense = gradveil.OptimalNoise(scale=0.012)'
    """
    made = _call(Spec.parse(defense))
    if plan == "public":
        made = f"gradveil.Public({made}, (public_inputs, public_targets))"
    return f"defense = {made}"


def toml_line(defense: str) -> str:
    """A line for a configuration that names a defense.

    >>> toml_line("gradient-noise(scale=0.012)")
    'defense = "gradient-noise(scale=0.012)"'
    """
    escaped = defense.replace("\\", "\\\\").replace('"', '\\"')
    return f'defense = "{escaped}"'


def _call(spec: Spec) -> str:
    if spec.name in DEFENSES:
        name = f"gradveil.{DEFENSES[spec.name].build.__name__}"
    else:
        name = spec.name.replace(":", ".")
    items = [
        _text(value) if isinstance(key, int) else f"{key}={_text(value)}"
        for key, value in spec.arguments.items()
    ]
    return f"{name}({', '.join(items)})"


def _text(value: Any) -> str:
    if isinstance(value, Spec):
        return _call(value)
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(_text, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside},)"
    return repr(value)
