"""`gradveil bound`: what the theory says, by kind of statement."""

from ._command import bound

__all__ = ["bound"]
