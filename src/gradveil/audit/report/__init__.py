"""The only room that writes sentences: an audit's result as report, tables and pictures."""

from ._tables import points_table, summary_table
from ._words import (
    answer_of,
    first_sentences,
    headline,
    notes,
    number,
    plural,
    share,
    verdict,
    what_was_audited,
)
from ._write import check_folder, csv_text, render_report, write_results

# What `__all__` does not list is for our own packages.
__all__ = ["render_report", "write_results"]
