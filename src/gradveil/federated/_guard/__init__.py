"""A client's look at the model that the server sent, before it answers."""

from ._guard import ModelGuard, SuspiciousModelError

__all__ = ["ModelGuard", "SuspiciousModelError"]
