"""An audit's result as files: the report, tables, pictures, and numbers as text."""

from ._answer import (
    dominated,
    headline,
    most_told,
    share,
    strength,
    strongest_leak,
    three_sentences,
)
from ._numbers import estimate, number, percent, plural, size
from ._pictures import pictures
from ._report import render_report, write_report
from ._style import setting
from ._verdict import verdict
from ._words import weights
from ._write import as_csv, check_folder, output_folder, prepare_folder, write_results

__all__ = [
    "as_csv",
    "check_folder",
    "dominated",
    "estimate",
    "headline",
    "most_told",
    "number",
    "output_folder",
    "percent",
    "pictures",
    "plural",
    "prepare_folder",
    "render_report",
    "setting",
    "share",
    "size",
    "strength",
    "strongest_leak",
    "three_sentences",
    "verdict",
    "weights",
    "write_report",
    "write_results",
]
