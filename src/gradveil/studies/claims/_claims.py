"""The verdict on each claim of the paper, from the finished cells alone."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradveil
from gradveil._files import write_atomically
from gradveil.scoring import MARGIN
from gradveil.studies.runner import StoreResults

from ._claim import Claim, Measure
from ._judge import (
    MINIMUM_GROUPS,
    NOT_REPRODUCED,
    NOT_TESTABLE,
    REPRODUCED,
    Judgement,
    judge,
    withheld,
)
from ._list import CLAIMS
from ._settings import (
    AWARE,
    CONTROL,
    PAPER,
    SETTINGS,
    TUNED,
    Absent,
    counts_in_words,
    difference_text,
    settings_table,
)
from ._testable import AttackMeasure, undefended_gains
from ._views import with_views


@dataclass(frozen=True)
class Finding:
    """One claim in one variant."""

    claim: Claim
    variant: str
    judgement: Judgement

    @property
    def setting(self) -> str | None:
        """ "paper", "aware" or "safe", if its variant stands for one of the three settings."""
        return SETTINGS.get(self.variant)


def find(results: StoreResults, claims: Sequence[Claim] = CLAIMS) -> list[Finding]:
    """Test every variant of every claim; from the same results always the same."""
    viewed = with_views(results)
    return [
        Finding(claim, variant, _judged(claim, measure, viewed))
        for claim in claims
        for variant, measure in claim.variants.items()
    ]


def _judged(claim: Claim, measure: Measure, results: StoreResults) -> Judgement:
    if isinstance(measure, Absent):
        return measure.judgement
    if not isinstance(measure, AttackMeasure):
        return judge(measure(results), claim.margin)
    units, half_width = measure.compared(results)
    judgement = judge(units, claim.margin, half_width)
    return withheld(judgement, measure.undefended(results))


def findings(results: StoreResults) -> list[dict[str, Any]]:
    """The same as plain data, which is the content of ``claims.json``."""
    return [_plain(finding) for finding in find(results)]


def write_claims(results: StoreResults, folder: Path) -> list[Finding]:
    """Write ``claims.md`` and ``claims.json`` into the folder; returns what they say."""
    found = find(results)
    content = json.dumps([_plain(finding) for finding in found], indent=1, allow_nan=False)
    write_atomically(folder / "claims.json", content + "\n")
    write_atomically(folder / "claims.md", as_markdown(found, _basis(results)))
    return found


def as_markdown(findings: Sequence[Finding], basis: Sequence[str] = ()) -> str:
    """A table of verdicts, and what changes from one variant to another in words."""
    lines = [
        "# The paper's claims",
        "",
        f"gradveil {gradveil.__version__}. {len({f.claim.name for f in findings})} claims in three"
        " settings:",
        "",
        *counts_in_words(findings),
        "",
        settings_table(findings),
        "In the third setting nothing of the private batch goes into a plan, the attacker knows the"
        " defense and the plan, and losses are those at the end of a training (MNIST 128 rounds,"
        " CIFAR-10 64, fewer in `quick`); claims about equal ratios and scales are tested at these,"
        " and Theorem 1 with the bound over candidates, which assumes no model of images.",
        "",
        "Differences are oriented such that positive ones support a claim (for claims of"
        " similarity, small ones do). They are paired by batch and seed; intervals are 95 %"
        " bootstrap intervals that draw batches, seeds and images again, widened as few batches"
        " need it; the effect is"
        " the mean over the standard deviation of the independent pairs' differences. With fewer"
        f" than {MINIMUM_GROUPS} independent pairs nothing is decided. A claim about what attacks"
        f" find is {NOT_TESTABLE} where the same attack on the undefended message does not beat a"
        f" blank image by {MARGIN:g} dB in the mean, its whole interval above 0, and has no near"
        " copy. At equal loss what the seeds of the losses leave open is part of the interval, and"
        " trainings that have learned nothing are not compared. There is no"
        " correction for the number of claims: of twenty that are all wrong, one would be taken for"
        " true.",
        "",
        "## All tests",
        "",
        "| claim | source | tested | verdict | difference | effect | pairs |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_row(finding) for finding in findings),
        "",
        "## Where the verdict depends on the attacker or on the score",
        "",
        *(_changes(findings) or ["Nowhere."]),
        "",
        "## Made from",
        "",
        *(basis or ["No finished cells."]),
    ]
    return "\n".join(lines) + "\n"


def _basis(results: StoreResults) -> list[str]:
    """A line for each study: how many cells are finished, and how hard was attacked."""
    lines = []
    for name, cells in results.items():
        settings = [cell.settings for cell in cells if cell.kind == "attack"]
        attacks = ", ".join(sorted({f"`{s['attack']}`" for s in settings}))
        batches = len({(s["start"], s["size"]) for s in settings})
        sizes = "/".join(sorted({str(s["size"]) for s in settings}))
        detail = f"; {batches} batches of {sizes}, attacked with {attacks}" if settings else ""
        found = undefended_gains(results, name)
        if found:
            detail += f"; without a defense {found} below the error of a blank image"
        if cells:
            lines.append(f"- `{name}`: {len(cells)} cells{detail}.")
    return lines


def _row(finding: Finding) -> str:
    claim, judgement = finding.claim, finding.judgement
    first = finding.variant == PAPER
    numbers = difference_text(judgement, sign="", digits=3) or "-"
    numbers += f" ({claim.unit})" if first and judgement.mean is not None else ""
    effect = "-" if judgement.effect is None else f"{judgement.effect:.2g}"
    return (
        f"| {claim.text if first else ''} | {claim.source if first else ''} | {finding.variant} |"
        f" **{judgement.verdict}**: {judgement.reason} | {numbers} | {effect} | {judgement.pairs} |"
    )


def _changes(findings: Sequence[Finding]) -> list[str]:
    """A line for each variant whose verdict is not the one found as in the paper."""
    base = {(f.claim.name, f.variant): f for f in findings}
    lines = []
    for finding in findings:
        other = base.get((finding.claim.name, _compared_with(finding.variant)))
        if other is None or other is finding:
            continue
        before, now = other.judgement, finding.judgement
        if now.verdict == before.verdict or now.mean is None:
            continue
        flips = {before.verdict, now.verdict} == {REPRODUCED, NOT_REPRODUCED}
        lines.append(
            f"- {'**Flips.** ' if flips else ''}{finding.claim.text.replace('... ', '')}"
            f" {other.variant.capitalize()}: {before.verdict}; {finding.variant}: {now.verdict},"
            f" {now.reason} ({_interval(before)} against {_interval(now)}, {finding.claim.unit})."
        )
    return lines


def _compared_with(variant: str) -> str:
    """Stronger attacks with the paper's on the same batches; everything else with the paper."""
    return CONTROL if variant in (TUNED, AWARE) else PAPER


def _interval(judgement: Judgement) -> str:
    return difference_text(judgement, sign="", digits=3) or "no pairs"


def _plain(finding: Finding) -> dict[str, Any]:
    claim = finding.claim
    numbers = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in finding.judgement._asdict().items()
    }
    return {
        "name": claim.name,
        "claim": claim.text,
        "source": claim.source,
        "variant": finding.variant,
        "setting": finding.setting,
        "unit": claim.unit,
        "margin": claim.margin,
        **numbers,
    }
