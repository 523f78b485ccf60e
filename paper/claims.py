"""The paper's claims, each judged on finished cells."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradveil
from gradveil._files import write_atomically
from gradveil._runner import Cell
from gradveil.scoring import MARGIN

from .grids import NO_PLAN, PRIVATE, PUBLIC, contender_of
from .measures import (
    CAPPED_ERROR,
    MINIMUM_GROUPS,
    NOT_ASKED,
    NOT_REPRODUCED,
    NOT_TESTABLE,
    NOT_TESTED,
    REPRODUCED,
    VERDICTS,
    AttackMeasure,
    Judgement,
    Measure,
    best_attack_above_bound,
    best_attack_above_candidates,
    beyond_blank,
    curve_gain,
    error_gain,
    final_losses_of,
    fixed_error,
    fixed_loss,
    growing_loss_gain,
    judge,
    large_error_gain,
    large_loss_gain,
    largest_difference,
    layer_contrast,
    run_gain,
    trained_losses_of,
    undefended_gains,
    withheld,
)
from .numbers import Units
from .study import AllResults

ERROR, DECIBEL, LOSS = "MSE, normalised units", "PSNR, dB", "loss, nats"

SIMILAR_ERROR = 0.1
"""Single runs of one cell differ by about as much (unmatched MSE of 16 MNIST images)."""
SIMILAR_LOSS = 0.03
"""A tenth of what training with little noise gains in the five steps."""


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, and how its differences are taken in each variant."""

    name: str
    text: str
    source: str
    unit: str
    variants: Mapping[str, Measure]
    margin: float | None = None
    """For claims of similarity: how much counts as similar."""


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

    def __call__(self, results: AllResults) -> Units:
        """No differences."""
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
    rows = [_settings_row(found, notes) for found in by_claim.values()]
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


def _settings_row(found: dict[str, "Finding"], notes: dict[str, int]) -> str:
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


PUBLIC_PLANS = "frontier, plans from public examples"
PRIVATE_PLANS = "frontier, plans from the private batch"
PHOTO_PLANS = "cifar-frontier, as attacks and trainings"
AWARE_BOUND = "bound-against-attacks, the attack that knows the defense"


def _planned_from(plan: str) -> Callable[[Cell], bool]:
    return lambda cell: contender_of(cell.settings)[1] in (NO_PLAN, plan)


VIEWS: Mapping[str, tuple[str, Callable[[Cell], bool]]] = {
    PUBLIC_PLANS: ("frontier", _planned_from(PUBLIC)),
    PRIVATE_PLANS: ("frontier", _planned_from(PRIVATE)),
    PHOTO_PLANS: ("cifar-frontier", _planned_from(PUBLIC)),
    AWARE_BOUND: (
        "bound-against-attacks",
        lambda cell: cell.name != "attack" or cell.settings["mechanism"] == "known",
    ),
}
"""The study of each view, and which of its cells the view has."""


def with_views(results: AllResults) -> AllResults:
    """The results of all studies and views by name, in one order, however a store gave them.

    Sums of floats depend on their order in the last digit, and claims should not.
    """
    ordered = {
        name: {cell: cells[cell] for cell in sorted(cells, key=lambda c: (c.name, c.text))}
        for name, cells in results.items()
    }
    views = {
        name: {c: result for c, result in ordered.get(study, {}).items() if has(c)}
        for name, (study, has) in VIEWS.items()
    }
    return {**ordered, **views}


MNIST_CLAIMS: tuple[Claim, ...] = (
    Claim(
        "mnist-pruning-mse",
        "At equal high ratios optimal pruning leaves a higher MSE than gradient pruning.",
        "5.1, Figure 2",
        ERROR,
        {
            PAPER: error_gain("mnist-pruning", "pruning", "unmatched_mse"),
            MATCHED: error_gain("mnist-pruning", "pruning", "mse"),
            CAPPED: error_gain("mnist-pruning", "pruning", CAPPED_ERROR),
            CONTROL: error_gain("adaptive-pruning", "pruning", "mse", "paper"),
            TUNED: error_gain("adaptive-pruning", "pruning", "mse", "strong"),
            AWARE: error_gain("adaptive-pruning", "pruning", "mse", "aware"),
            SAFE: error_gain(PUBLIC_PLANS, "pruning", "mse", "aware"),
        },
    ),
    Claim(
        "mnist-pruning-psnr",
        "At equal high ratios optimal pruning leaves a lower PSNR than gradient pruning.",
        "5.1, Figure 2",
        DECIBEL,
        {
            PAPER: error_gain("mnist-pruning", "pruning", "unmatched_psnr"),
            MATCHED: error_gain("mnist-pruning", "pruning", "psnr"),
            CONTROL: error_gain("adaptive-pruning", "pruning", "psnr", "paper"),
            TUNED: error_gain("adaptive-pruning", "pruning", "psnr", "strong"),
            AWARE: error_gain("adaptive-pruning", "pruning", "psnr", "aware"),
            SAFE: error_gain(PUBLIC_PLANS, "pruning", "psnr", "aware"),
        },
    ),
    Claim(
        "mnist-pruning-similar",
        "80% optimal pruning and 90% gradient pruning protect similarly.",
        "5.1, Figures 2 and 3",
        ERROR,
        {
            PAPER: fixed_error("mnist-pruning", "unmatched_mse", "optimal-pruning", 0.8, 0.9),
            MATCHED: fixed_error("mnist-pruning", "mse", "optimal-pruning", 0.8, 0.9),
            CONTROL: fixed_error("adaptive-pruning", "mse", "optimal-pruning", 0.8, 0.9, "paper"),
            AWARE: fixed_error("adaptive-pruning", "mse", "optimal-pruning", 0.8, 0.9, "aware"),
            SAFE: fixed_error(PUBLIC_PLANS, "mse", "optimal-pruning", 0.8, 0.9, "aware"),
        },
        SIMILAR_ERROR,
    ),
    Claim(
        "mnist-pruning-training",
        "80% optimal pruning trains faster than 90% gradient pruning.",
        "5.1, Figure 3",
        f"{LOSS}, mean over rounds",
        {
            PAPER: run_gain("mnist-pruning-training", "optimal-pruning", 0.8, 0.9),
            AWARE: NO_ATTACKER,
            SAFE: run_gain(PUBLIC_PLANS, "optimal-pruning", 0.8, 0.9),
        },
    ),
    Claim(
        "mnist-pruning-tradeoff",
        "At equal training loss optimal pruning leaves a higher error than gradient pruning.",
        "5.1, Figure 4",
        ERROR,
        {
            PAPER: curve_gain("mnist-pruning-tradeoff", "pruning", "unmatched_mse"),
            MATCHED: curve_gain("mnist-pruning-tradeoff", "pruning", "mse"),
            CAPPED: curve_gain("mnist-pruning-tradeoff", "pruning", CAPPED_ERROR),
            CONTROL: curve_gain(
                "mnist-pruning-tradeoff", "pruning", "mse", "adaptive-pruning", "paper"
            ),
            TUNED: curve_gain(
                "mnist-pruning-tradeoff", "pruning", "mse", "adaptive-pruning", "strong"
            ),
            AWARE: curve_gain(
                "mnist-pruning-tradeoff", "pruning", "mse", "adaptive-pruning", "aware"
            ),
            SAFE: curve_gain(PUBLIC_PLANS, "pruning", "mse", attacker="aware", trained=True),
        },
    ),
    Claim(
        "mnist-noise-similar",
        "At equal scale optimal noise with clamping and noise with clamping protect similarly (the"
        " scale where they differ most).",
        "5.1, Figure 5",
        ERROR,
        {
            PAPER: largest_difference("mnist-noise", "noise", "unmatched_mse"),
            MATCHED: largest_difference("mnist-noise", "noise", "mse"),
            CONTROL: largest_difference("adaptive-noise", "noise", "mse", "paper"),
            TUNED: largest_difference("adaptive-noise", "noise", "mse", "strong"),
            AWARE: largest_difference("adaptive-noise", "noise", "mse", "aware"),
            SAFE: largest_difference(PUBLIC_PLANS, "noise", "mse", "aware"),
        },
        SIMILAR_ERROR,
    ),
    Claim(
        "mnist-noise-training",
        "Of noise with clamping of scale 0.1, the optimal form trains faster.",
        "5.1, Figure 6",
        f"{LOSS}, mean over rounds",
        {
            PAPER: run_gain("mnist-noise-training", "optimal-clamped-noise", 0.1, 0.1),
            AWARE: NO_ATTACKER,
            SAFE: run_gain(PUBLIC_PLANS, "optimal-clamped-noise", 0.1, 0.1),
        },
    ),
    Claim(
        "mnist-noise-tradeoff",
        "At equal training loss optimal noise with clamping leaves a higher error than noise with"
        " clamping.",
        "5.1, Figure 7",
        ERROR,
        {
            PAPER: curve_gain("mnist-noise-tradeoff", "noise", "unmatched_mse"),
            MATCHED: curve_gain("mnist-noise-tradeoff", "noise", "mse"),
            CAPPED: curve_gain("mnist-noise-tradeoff", "noise", CAPPED_ERROR),
            CONTROL: curve_gain("mnist-noise-tradeoff", "noise", "mse", "adaptive-noise", "paper"),
            TUNED: curve_gain("mnist-noise-tradeoff", "noise", "mse", "adaptive-noise", "strong"),
            AWARE: curve_gain("mnist-noise-tradeoff", "noise", "mse", "adaptive-noise", "aware"),
            SAFE: curve_gain(PUBLIC_PLANS, "noise", "mse", attacker="aware", trained=True),
        },
    ),
    Claim(
        "mnist-noise-images-error",
        "Optimal noise with clamping of scale 0.1 protects better than noise with clamping of"
        " scale 0.05 ...",
        "5.1, Figure 8",
        ERROR,
        {
            PAPER: fixed_error("mnist-noise", "unmatched_mse", "optimal-clamped-noise", 0.1, 0.05),
            MATCHED: fixed_error("mnist-noise", "mse", "optimal-clamped-noise", 0.1, 0.05),
            CAPPED: fixed_error("mnist-noise", CAPPED_ERROR, "optimal-clamped-noise", 0.1, 0.05),
            AWARE: fixed_error(PRIVATE_PLANS, "mse", "optimal-clamped-noise", 0.1, 0.05, "aware"),
            SAFE: fixed_error(PUBLIC_PLANS, "mse", "optimal-clamped-noise", 0.1, 0.05, "aware"),
        },
    ),
    Claim(
        "mnist-noise-images-utility",
        "... while they train similarly.",
        "5.1, Figure 8",
        LOSS,
        {
            PAPER: fixed_loss("mnist-noise-tradeoff", "optimal-clamped-noise", 0.1, 0.05),
            AWARE: NO_ATTACKER,
            SAFE: fixed_loss(PUBLIC_PLANS, "optimal-clamped-noise", 0.1, 0.05, final_losses_of),
        },
        SIMILAR_LOSS,
    ),
)


CIFAR_CLAIMS: tuple[Claim, ...] = (
    Claim(
        "cifar-pruning-tradeoff",
        "At equal training loss optimal pruning leaves a higher error than gradient pruning.",
        "5.2, Figure 9",
        ERROR,
        {
            PAPER: curve_gain("cifar-pruning-tradeoff", "pruning", "unmatched_mse"),
            MATCHED: curve_gain("cifar-pruning-tradeoff", "pruning", "mse"),
            CAPPED: curve_gain("cifar-pruning-tradeoff", "pruning", CAPPED_ERROR),
            AWARE: curve_gain("cifar-adaptive-pruning", "pruning", "mse", attacker="aware"),
            SAFE: curve_gain(PHOTO_PLANS, "pruning", "mse", attacker="aware", trained=True),
        },
    ),
    *(
        claim
        for ratio, source in ((0.7, "5.2, Figure 9"), (0.8, "5.2, Figure 10"))
        for claim in (
            Claim(
                f"cifar-pruning-{ratio * 100:g}-error",
                f"{ratio * 100:g}% optimal pruning leaves a higher error than 90% pruning ...",
                source,
                ERROR,
                {
                    PAPER: fixed_error(
                        "cifar-pruning-tradeoff", "unmatched_mse", "optimal-pruning", ratio, 0.9
                    ),
                    MATCHED: fixed_error(
                        "cifar-pruning-tradeoff", "mse", "optimal-pruning", ratio, 0.9
                    ),
                    CAPPED: fixed_error(
                        "cifar-pruning-tradeoff", CAPPED_ERROR, "optimal-pruning", ratio, 0.9
                    ),
                    AWARE: fixed_error(
                        "cifar-adaptive-pruning", "mse", "optimal-pruning", ratio, 0.9, "aware"
                    ),
                    SAFE: fixed_error(PHOTO_PLANS, "mse", "optimal-pruning", ratio, 0.9, "aware"),
                },
            ),
            Claim(
                f"cifar-pruning-{ratio * 100:g}-utility",
                "... and trains better.",
                source,
                LOSS,
                {
                    PAPER: fixed_loss("cifar-pruning-tradeoff", "optimal-pruning", ratio, 0.9),
                    AWARE: NO_ATTACKER,
                    SAFE: fixed_loss(PHOTO_PLANS, "optimal-pruning", ratio, 0.9, final_losses_of),
                },
            ),
        )
    ),
    Claim(
        "cifar-noise-failure",
        "Above a scale of 0.001 reconstructions of CIFAR-10 fail (worse than a grey image).",
        "5.2",
        ERROR,
        {
            PAPER: beyond_blank("cifar-noise-error", 1e-3, "unmatched_mse"),
            AWARE: beyond_blank("cifar-adaptive-noise", 1e-3, "mse", "aware"),
            SAFE: beyond_blank(PHOTO_PLANS, 1e-3, "mse", "aware"),
        },
    ),
    Claim(
        "cifar-noise-tradeoff",
        "At equal training loss optimal noise with clamping leaves a higher error than noise with"
        " clamping.",
        "5.2, Figure 11",
        ERROR,
        {
            PAPER: curve_gain("cifar-noise-tradeoff", "noise", "unmatched_mse"),
            MATCHED: curve_gain("cifar-noise-tradeoff", "noise", "mse"),
            CAPPED: curve_gain("cifar-noise-tradeoff", "noise", CAPPED_ERROR),
            AWARE: curve_gain("cifar-adaptive-noise", "noise", "mse", attacker="aware"),
            SAFE: curve_gain(PHOTO_PLANS, "noise", "mse", attacker="aware", trained=True),
        },
    ),
    Claim(
        "cifar-noise-growth",
        "The advantage of optimal noise with clamping in training grows with the scale.",
        "5.2, Figure 12",
        LOSS,
        {
            PAPER: growing_loss_gain("cifar-noise-utility"),
            AWARE: NO_ATTACKER,
            SAFE: growing_loss_gain(PHOTO_PLANS, trained_losses_of),
        },
    ),
    Claim(
        "cifar-noise-utility",
        "At scales above 0.001 optimal noise with clamping trains better than noise with"
        " clamping ...",
        "appendix, Figure 12",
        LOSS,
        {
            PAPER: large_loss_gain("cifar-noise-utility", 1e-3),
            AWARE: NO_ATTACKER,
            SAFE: large_loss_gain(PHOTO_PLANS, 1e-3, trained_losses_of),
        },
    ),
    Claim(
        "cifar-noise-error",
        "... and leaves a (slightly) higher error.",
        "appendix, Figure 13",
        ERROR,
        {
            PAPER: large_error_gain("cifar-noise-error", 1e-3, "unmatched_mse"),
            MATCHED: large_error_gain("cifar-noise-error", 1e-3, "mse"),
            CAPPED: large_error_gain("cifar-noise-error", 1e-3, CAPPED_ERROR),
            AWARE: large_error_gain("cifar-adaptive-noise", 1e-3, "mse", "aware"),
            SAFE: large_error_gain(PHOTO_PLANS, 1e-3, "mse", "aware"),
        },
    ),
)


THEORY_CLAIMS: tuple[Claim, ...] = (
    *(
        Claim(
            f"mnist-layer-noise-{kind}",
            f"The {plural} of some layers get significantly more noise than those of others (at"
            " least twice as much).",
            "appendix, Figure 14",
            "log₂ of the ratio of the most to the least noisy layer, beyond 1",
            {
                PAPER: layer_contrast("mnist-layer-noise", kind),
                AWARE: NO_ATTACKER_OF_LAYERS,
                SAFE: layer_contrast(PUBLIC_PLANS, kind, ("optimal-clamped-noise", 0.1)),
            },
        )
        for kind, plural in (("weight", "weights"), ("bias", "biases"))
    ),
    Claim(
        "theorem-1",
        "The mean error of every attack is above the lower bound (corrected, Gaussian prior).",
        "Theorem 1",
        "error / bound - 1, the attack and noise that come nearest",
        {
            PAPER: best_attack_above_bound("bound-against-attacks"),
            AWARE: best_attack_above_bound(AWARE_BOUND),
            SAFE: best_attack_above_candidates("bound-against-attacks"),
        },
    ),
)


CLAIMS: tuple[Claim, ...] = (*MNIST_CLAIMS, *CIFAR_CLAIMS, *THEORY_CLAIMS)


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


def find(results: AllResults, claims: Sequence[Claim] = CLAIMS) -> list[Finding]:
    """Test every variant of every claim; from the same results always the same."""
    viewed = with_views(results)
    return [
        Finding(claim, variant, _judged(claim, measure, viewed))
        for claim in claims
        for variant, measure in claim.variants.items()
    ]


def _judged(claim: Claim, measure: Measure, results: AllResults) -> Judgement:
    if isinstance(measure, Absent):
        return measure.judgement
    if not isinstance(measure, AttackMeasure):
        return judge(measure(results), claim.margin)
    units, half_width = measure.compared(results)
    judgement = judge(units, claim.margin, half_width)
    return withheld(judgement, measure.undefended(results))


def findings(results: AllResults) -> list[dict[str, Any]]:
    """The same as plain data, which is the content of ``claims.json``."""
    return [_plain(finding) for finding in find(results)]


def write_claims(results: AllResults, folder: Path) -> list[Finding]:
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
        *(_claims_row(finding) for finding in findings),
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


def _basis(results: AllResults) -> list[str]:
    """A line for each study: how many cells are finished, and how hard was attacked."""
    lines = []
    for name, cells in results.items():
        settings = [cell.settings for cell in cells if cell.name == "attack"]
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


def _claims_row(finding: Finding) -> str:
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
