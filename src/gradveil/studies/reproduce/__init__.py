"""`gradveil reproduce`: choose studies, run their cells, write figures, claims and a summary."""

from ._overview import draw_overview
from ._registry import STUDIES, select_studies
from ._run import check_data, left_to_run, prepare, run_cells, take_known, work_of, write_all
from ._summary import Written, older_text

__all__ = [
    "STUDIES",
    "Written",
    "check_data",
    "draw_overview",
    "left_to_run",
    "older_text",
    "prepare",
    "run_cells",
    "select_studies",
    "take_known",
    "work_of",
    "write_all",
]
