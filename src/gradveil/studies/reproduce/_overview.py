"""The figure of everything: verdicts on all claims in all settings, beside the frontier."""

from collections.abc import Iterable
from pathlib import Path

from gradveil.studies.claims import HEADINGS, Finding
from gradveil.studies.figures import draw_summary, verdict_table
from gradveil.studies.runner import StoreResults

from ._registry import STUDIES

OVERVIEW = "summary"
"""The name of its files."""


def draw_overview(findings: Iterable[Finding], results: StoreResults, folder: Path) -> None:
    """Write ``summary.png`` and ``summary.pdf`` from the verdicts and the finished cells."""
    verdicts = verdict_table(
        (found.claim.name, found.claim.text, HEADINGS[found.setting], found.judgement.verdict)
        for found in findings
        if found.setting
    )
    frontier = STUDIES["frontier"].numbers(results.get("frontier", {}))
    draw_summary(folder / OVERVIEW, verdicts, frontier)
