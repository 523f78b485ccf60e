"""The first screen of a report over strengths: sentences, the picture, images, cards, points."""

from ._facts import Sentence, main_answer, most_told, strongest_leak
from ._machine import machine_summary
from ._metrics import share
from ._points import points_table, strength
from ._screen import Screen, first_screen
from ._sentences import dominated, headline, three_sentences

__all__ = [
    "Screen",
    "Sentence",
    "dominated",
    "first_screen",
    "headline",
    "machine_summary",
    "main_answer",
    "most_told",
    "points_table",
    "share",
    "strength",
    "strongest_leak",
    "three_sentences",
]
