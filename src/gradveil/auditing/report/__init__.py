"""An audit's result as files: the report, tables, pictures, and numbers as text."""

from ._numbers import estimate, number, size
from ._pictures import pictures
from ._report import render_report, write_report
from ._write import as_csv, prepare_folder, write_results

__all__ = [
    "as_csv",
    "estimate",
    "number",
    "pictures",
    "prepare_folder",
    "render_report",
    "size",
    "write_report",
    "write_results",
]
