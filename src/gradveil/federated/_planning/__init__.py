"""The plan's shape on the server: computed once for all clients, packed into few bytes."""

from ._packed import PackedShape
from ._planner import Planner

__all__ = ["PackedShape", "Planner"]
