"""Cells, the store of their results, and the engines that run them."""

from ._cell import (
    DATA_VARIABLE,
    Cell,
    Result,
    Settings,
    Value,
    canonical_json,
    cell_function,
    data_folder,
    function_of,
)
from ._engine import Engine, Prepare, execute, throttled
from ._engine_local import LocalEngine
from ._engine_ray import RayEngine
from ._export import Done, read_cells, read_done, take_cells, write_cells
from ._sources import sources_hash
from ._state import read_state, write_state
from ._status import StudyStatus, Work, distinct_cells, duration_text, study_status, total_status
from ._store import Progress, Store, database_path
from ._study import PRESETS, Entry, Results, StoreResults, Study, Table

__all__ = [
    "DATA_VARIABLE",
    "PRESETS",
    "Cell",
    "Done",
    "Engine",
    "Entry",
    "LocalEngine",
    "Prepare",
    "Progress",
    "RayEngine",
    "Result",
    "Results",
    "Settings",
    "Store",
    "StoreResults",
    "Study",
    "StudyStatus",
    "Table",
    "Value",
    "Work",
    "canonical_json",
    "cell_function",
    "data_folder",
    "database_path",
    "distinct_cells",
    "duration_text",
    "execute",
    "function_of",
    "read_cells",
    "read_done",
    "read_state",
    "sources_hash",
    "study_status",
    "take_cells",
    "throttled",
    "total_status",
    "write_cells",
    "write_state",
]
