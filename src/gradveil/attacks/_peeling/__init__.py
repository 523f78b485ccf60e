"""A model's head solved first, then the inputs from its features."""

from ._peel import Peel, Peeled, message_misfit, random_misfit
from ._peel_local import peel_local
from ._solve_head import solve_head

__all__ = ["Peel", "Peeled", "message_misfit", "peel_local", "random_misfit", "solve_head"]
