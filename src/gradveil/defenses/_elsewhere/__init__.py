"""Defenses whose plan is made elsewhere: not from the private batch."""

from ._from_server import FromServer
from ._public import Public
from ._released import Released

__all__ = ["FromServer", "Public", "Released"]
