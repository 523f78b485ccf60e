"""The three settings in which each claim is judged, and the table of their verdicts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradveil.studies.runner import StoreResults
from gradveil.studies.shared import Units

from ._judge import NOT_ASKED, NOT_REPRODUCED, NOT_TESTED, VERDICTS, Judgement

if TYPE_CHECKING:
    from ._claims import Finding

PAPER, MATCHED, CAPPED, CONTROL, TUNED, AWARE, SAFE = (
    "as in the paper",
    "matched images",
    "as in the paper, errors counted up to a blank image's",
    "the paper's attack on small batches, matched",
    "tuned attack, matched",
    "attack that knows the defense, matched",
    "plans that reveal nothing, real training, attack that knows the defense, matched",
)
"""Variants of a claim."""

SETTINGS = {PAPER: "paper", AWARE: "aware", SAFE: "safe"}
"""The variants that stand for a setting, and its short name."""

HEADINGS = {
    "paper": "as in the paper",
    "aware": "the attacker knows the defense",
    "safe": "plans that reveal nothing, real training",
}

DATA = {"mnist": "MNIST", "cifar": "CIFAR-10"}
"""By the first word of a claim's name."""


@dataclass(frozen=True)
class Absent:
    """In the place of a measure: why a claim has none in a setting."""

    reason: str

    def __call__(self, results: StoreResults) -> Units:
        return {}

    @property
    def judgement(self) -> Judgement:
        """A verdict without numbers."""
        return Judgement(NOT_ASKED, None, None, None, None, 0, 0, self.reason)


NO_ATTACKER = Absent("the claim is about training, which no attacker takes part in")
NO_ATTACKER_OF_LAYERS = Absent("the claim is about noise levels, not about what attackers find")


def settings_table(findings: Iterable["Finding"]) -> str:
    """One row for each claim, one column for each setting, with the reasons of empty entries."""
    by_claim: dict[str, dict[str, Finding]] = {}
    for finding in findings:
        if finding.setting:
            by_claim.setdefault(finding.claim.name, {})[finding.setting] = finding
    notes: dict[str, int] = {}
    rows = [_row(found, notes) for found in by_claim.values()]
    lines = [
        f"| claim | from | difference in | {' | '.join(HEADINGS.values())} |",
        f"| --- | --- | --- | {' | '.join('---' for _ in HEADINGS)} |",
        *rows,
    ]
    lines += ["", *(f"{number}. {reason}." for reason, number in notes.items())] if notes else []
    return "\n".join(lines) + "\n"


def counts_in_words(findings: Sequence["Finding"]) -> list[str]:
    """How often each verdict came out in each setting."""
    lines = []
    for setting, heading in HEADINGS.items():
        found = [f.judgement.verdict for f in findings if f.setting == setting]
        counts = {v: found.count(v) for v in (*VERDICTS, NOT_TESTED, NOT_ASKED)}
        words = {NOT_ASKED: "without a question"}
        told = [f"{n} {words.get(v, v)}" for v, n in counts.items() if n or v in VERDICTS[:2]]
        lines.append(f"- {heading}: {', '.join(told)}.")
    return lines


def _row(found: dict[str, "Finding"], notes: dict[str, int]) -> str:
    claim = next(iter(found.values())).claim
    entries = [_entry(found.get(setting), notes) for setting in HEADINGS]
    unit = claim.unit.split(",")[0].split(" of ")[0]
    unit += "" if claim.margin is None else f" (within ±{claim.margin:g})"
    data = DATA.get(claim.name.split("-")[0])
    source = f"{data}: {claim.source}" if data else claim.source
    return f"| {claim.text} | {source} | {unit} | {' | '.join(entries)} |"


def _entry(finding: "Finding | None", notes: dict[str, int]) -> str:
    if finding is None:
        return NOT_ASKED
    found = finding.judgement
    if found.verdict in (NOT_TESTED, NOT_ASKED):
        return f"{found.verdict} ({notes.setdefault(found.reason, len(notes) + 1)})"
    verdict = f"**{found.verdict}**" if found.verdict == NOT_REPRODUCED else found.verdict
    return f"{verdict} {difference_text(found)}".strip()


def difference_text(found: Judgement, sign: str = "+", digits: int = 2) -> str:
    """The mean difference and its interval in few characters; nothing without pairs."""
    if found.mean is None:
        return ""
    mean = f"{found.mean:{sign}.{digits}g}"
    if found.low is None or found.high is None:
        return mean
    return f"{mean} [{found.low:.{digits}g}, {found.high:.{digits}g}]"
