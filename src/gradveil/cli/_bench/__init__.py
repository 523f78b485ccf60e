"""`gradveil bench`: costs and qualities, measured side by side in one run."""

from . import _attack, _commands  # noqa: F401 (they add their commands to the group)
from ._app import bench

__all__ = ["bench"]
