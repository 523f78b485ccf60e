"""Defenses whose plan is made elsewhere: not from the private batch."""

from ._from_server import FromServer

__all__ = ["FromServer"]
