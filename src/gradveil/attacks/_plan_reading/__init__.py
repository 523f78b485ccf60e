"""Reading a plan that was made from the private batch: its noise levels show the batch."""

from ._columns import Columns, read_columns
from ._likelihood import PlanLikelihood, plan_can_be_read
from ._pixels import read_pixels
from ._plan_reader import PlanReader

__all__ = [
    "Columns",
    "PlanLikelihood",
    "PlanReader",
    "plan_can_be_read",
    "read_columns",
    "read_pixels",
]
