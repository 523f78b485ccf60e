"""The paper's claims, each judged on finished cells."""

from ._claim import Claim
from ._claims import Finding, as_markdown, find, findings, write_claims
from ._judge import Judgement, judge
from ._list import CLAIMS
from ._settings import HEADINGS, SETTINGS, settings_table

__all__ = [
    "CLAIMS",
    "HEADINGS",
    "SETTINGS",
    "Claim",
    "Finding",
    "Judgement",
    "as_markdown",
    "find",
    "findings",
    "judge",
    "settings_table",
    "write_claims",
]
