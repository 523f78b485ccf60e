"""The only room that writes sentences: an audit's result as report, tables and pictures."""

from ._answers import answer_of
from ._facts import most_told, share, strongest_leak
from ._first import dominated, headline, three_sentences
from ._numbers import estimate, number, percent, plural, size
from ._style import setting
from ._tables import strength
from ._verdict import KNOWS_MORE, excludes_copies, no_further, verdict
from ._words import equal_words, notes, undefended_words, weights
from ._write import (
    as_csv,
    check_folder,
    output_folder,
    prepare_folder,
    render_report,
    write_report,
    write_results,
)

__all__ = ["render_report", "write_results"]
