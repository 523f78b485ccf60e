"""The paper's claims, each judged on finished cells."""

from ._claims import as_markdown, find, write_claims
from ._judge import Judgement, judge
from ._list import CLAIMS, Claim

__all__ = [
    "CLAIMS",
    "Claim",
    "Judgement",
    "as_markdown",
    "find",
    "judge",
    "write_claims",
]
