"""An audit's result as files: the report, tables, pictures, and numbers as text."""

from ._numbers import estimate, number, percent, plural, size
from ._pictures import pictures
from ._report import render_report, write_report
from ._verdict import verdict
from ._words import weights
from ._write import as_csv, check_folder, output_folder, prepare_folder, write_results

__all__ = [
    "as_csv",
    "check_folder",
    "estimate",
    "number",
    "output_folder",
    "percent",
    "pictures",
    "plural",
    "prepare_folder",
    "render_report",
    "size",
    "verdict",
    "weights",
    "write_report",
    "write_results",
]
