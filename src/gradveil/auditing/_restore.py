"""From plain JSON back to frozen dataclasses."""

import dataclasses
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def restore(kind: Any, value: Any) -> Any:
    """A value of plain JSON as the annotated type."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return (
            None if value is None else restore(next(p for p in parts if p is not NoneType), value)
        )
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: restore(hints[name], part) for name, part in value.items()})  # type: ignore[operator]
    if origin is tuple:
        repeated = len(parts) == 2 and parts[1] is Ellipsis
        kinds = [parts[0]] * len(value) if repeated else list(parts)
        return tuple(restore(k, part) for k, part in zip(kinds, value, strict=True))
    return value
