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

from . import measures
from .grids import NO_PLAN, PRIVATE, PUBLIC, contender_of
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
    variants: Mapping[str, measures.Measure | measures.AttackMeasure | str]
    """Each with its measure, or why it has none."""
    margin: float | None = None
    """For claims of similarity: how much counts as similar."""

    @property
    def data(self) -> str | None:
        """The data set that it is about; some claims have one text for two."""
        return {"mnist": "MNIST", "cifar": "CIFAR-10"}.get(self.name.split("-")[0])

    @property
    def short(self) -> str:
        """Its text with the data set, for a line of a figure."""
        text = self.text.replace("...", "…").removesuffix(".").removesuffix(" …")
        return f"{self.data}: {text}" if self.data else text


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

NO_ATTACKER = "the claim is about training, which no attacker takes part in"


def settings_table(findings: Iterable["Finding"]) -> str:
    """One row for each claim, one column for each setting, with the reasons of empty entries."""
    by_claim: dict[str, dict[str, Finding]] = {}
    for finding in findings:
        if finding.setting:
            by_claim.setdefault(finding.claim.name, {})[finding.setting] = finding
    notes: dict[str, int] = {}
    rows = []
    for found in by_claim.values():
        claim = next(iter(found.values())).claim
        entries = [_entry(found.get(setting), notes) for setting in HEADINGS]
        unit = claim.unit.split(",")[0].split(" of ")[0]
        unit += "" if claim.margin is None else f" (within ±{claim.margin:g})"
        source = f"{claim.data}: {claim.source}" if claim.data else claim.source
        rows.append(f"| {claim.text} | {source} | {unit} | {' | '.join(entries)} |")
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
        told = [
            f"{found.count(v)} {'without a question' if v == measures.NOT_ASKED else v}"
            for v in (*measures.VERDICTS, measures.NOT_TESTED, measures.NOT_ASKED)
            if v in found or v in measures.VERDICTS[:2]
        ]
        lines.append(f"- {heading}: {', '.join(told)}.")
    return lines


def _entry(finding: "Finding | None", notes: dict[str, int]) -> str:
    if finding is None:
        return measures.NOT_ASKED
    found = finding.judgement
    if found.verdict in (measures.NOT_TESTED, measures.NOT_ASKED):
        return f"{found.verdict} ({notes.setdefault(found.reason, len(notes) + 1)})"
    verdict = f"**{found.verdict}**" if found.verdict == measures.NOT_REPRODUCED else found.verdict
    return f"{verdict} {difference_text(found)}".strip()


def difference_text(found: measures.Judgement, sign: str = "+", digits: int = 2) -> str:
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


EVERY = (PAPER, MATCHED, CAPPED, CONTROL, TUNED, AWARE, SAFE)
UNCAPPED = tuple(variant for variant in EVERY if variant != CAPPED)
"""Of claims of similarity: two forms that both leave an attack at a guess would be."""
PHOTOS = (PAPER, MATCHED, CAPPED, AWARE, SAFE)
"""No attack on the same photos is without knowledge of the defense."""


def of_attacks(
    name: str,
    text: str,
    source: str,
    compare: measures.Compare,
    studies: tuple[str, str, str],
    variants: Sequence[str] = EVERY,
    *,
    metric: str = "mse",
    margin: float | None = None,
    aware_compare: measures.Compare | None = None,
    safe_compare: measures.Compare | None = None,
) -> Claim:
    """A claim about what attacks find: one comparison of errors in several variants.

    The studies are those as in the paper, with an attacker who knows the defense, and with plans
    that reveal nothing; in the last two the comparison may be another one. The score of images
    place by place, as in the paper, is `unmatched_` in front of the metric.
    """
    study, aware, safe = studies
    every = {
        PAPER: measures.AttackMeasure(compare, study, f"unmatched_{metric}"),
        MATCHED: measures.AttackMeasure(compare, study, metric),
        CAPPED: measures.AttackMeasure(compare, study, measures.CAPPED_ERROR),
        CONTROL: measures.AttackMeasure(compare, aware, metric, "paper"),
        TUNED: measures.AttackMeasure(compare, aware, metric, "strong"),
        AWARE: measures.AttackMeasure(aware_compare or compare, aware, metric, "aware"),
        SAFE: measures.AttackMeasure(safe_compare or compare, safe, metric, "aware"),
    }
    chosen = {variant: every[variant] for variant in variants}
    return Claim(name, text, source, DECIBEL if metric == "psnr" else ERROR, chosen, margin)


def of_training(
    name: str,
    text: str,
    source: str,
    compare: measures.Compare,
    studies: tuple[str, str],
    losses: tuple[measures.Losses, measures.Losses],
    margin: float | None = None,
) -> Claim:
    """A claim about losses, which no attacker has a part in; studies are those of two settings."""
    paper, safe = (measures.of_losses(compare, *pair) for pair in zip(studies, losses, strict=True))
    unit = LOSS if losses != _WHILE else f"{LOSS}, mean over rounds"
    return Claim(name, text, source, unit, {PAPER: paper, AWARE: NO_ATTACKER, SAFE: safe}, margin)


_WHILE = (measures.mean_losses_of, measures.mean_losses_of)
_AFTER = (measures.losses_of, measures.final_losses_of)
_LEARNED = (measures.losses_of, measures.trained_losses_of)
"""The losses of a claim as in the paper, and of real trainings."""


def _on_digits(study: str) -> tuple[str, str, str]:
    return study, f"adaptive-{study.split('-')[1]}", PUBLIC_PLANS


def _on_photos(study: str) -> tuple[str, str, str]:
    return study, f"cifar-adaptive-{study.split('-')[1]}", PHOTO_PLANS


_HIGHER = {
    "pruning": "optimal pruning leaves a higher error than gradient pruning",
    "noise": "optimal noise with clamping leaves a higher error than noise with clamping",
}


def _tradeoff(study: str, source: str) -> Claim:
    """At equal loss. The attack on photos that knows the defense has losses of its own model."""
    data, family, _ = study.split("-")
    digits = data == "mnist"
    studies = _on_digits(study) if digits else _on_photos(study)
    aware, safe = studies[1:]
    return of_attacks(
        study,
        f"At equal training loss {_HIGHER[family]}.",
        source,
        measures.equal_loss(family, study),
        studies,
        EVERY if digits else PHOTOS,
        aware_compare=None if digits else measures.equal_loss(family, aware),
        safe_compare=measures.equal_loss(family, safe, trained=True),
    )


def _photo_pruning(ratio: float, source: str) -> tuple[Claim, Claim]:
    study, percent = "cifar-pruning-tradeoff", f"{ratio * 100:g}"
    name, compare = f"cifar-pruning-{percent}", measures.fixed_levels("pruning", ratio, 0.9)
    text = f"{percent}% optimal pruning leaves a higher error than 90% pruning ..."
    more, studies = "... and trains better.", (study, PHOTO_PLANS)
    return (
        of_attacks(f"{name}-error", text, source, compare, _on_photos(study), PHOTOS),
        of_training(f"{name}-utility", more, source, compare, studies, _AFTER),
    )


def _layers(kind: str, plural: str) -> Claim:
    return Claim(
        f"mnist-layer-noise-{kind}",
        f"The {plural} of some layers get significantly more noise than those of others (at"
        " least twice as much).",
        "appendix, Figure 14",
        "log₂ of the ratio of the most to the least noisy layer, beyond 1",
        {
            PAPER: measures.layer_contrast("mnist-layer-noise", kind),
            AWARE: "the claim is about noise levels, not about what attackers find",
            SAFE: measures.layer_contrast(PUBLIC_PLANS, kind, ("optimal-clamped-noise", 0.1)),
        },
    )


CLAIMS: tuple[Claim, ...] = (
    of_attacks(
        "mnist-pruning-mse",
        "At equal high ratios optimal pruning leaves a higher MSE than gradient pruning.",
        "5.1, Figure 2",
        measures.level_gain("pruning"),
        _on_digits("mnist-pruning"),
    ),
    of_attacks(
        "mnist-pruning-psnr",
        "At equal high ratios optimal pruning leaves a lower PSNR than gradient pruning.",
        "5.1, Figure 2",
        measures.level_gain("pruning"),
        _on_digits("mnist-pruning"),
        UNCAPPED,
        metric="psnr",
    ),
    of_attacks(
        "mnist-pruning-similar",
        "80% optimal pruning and 90% gradient pruning protect similarly.",
        "5.1, Figures 2 and 3",
        measures.fixed_levels("pruning", 0.8, 0.9),
        _on_digits("mnist-pruning"),
        (PAPER, MATCHED, CONTROL, AWARE, SAFE),
        margin=SIMILAR_ERROR,
    ),
    of_training(
        "mnist-pruning-training",
        "80% optimal pruning trains faster than 90% gradient pruning.",
        "5.1, Figure 3",
        measures.fixed_levels("pruning", 0.8, 0.9),
        ("mnist-pruning-training", PUBLIC_PLANS),
        _WHILE,
    ),
    _tradeoff("mnist-pruning-tradeoff", "5.1, Figure 4"),
    of_attacks(
        "mnist-noise-similar",
        "At equal scale optimal noise with clamping and noise with clamping protect similarly (the"
        " scale where they differ most).",
        "5.1, Figure 5",
        measures.largest_difference("noise"),
        _on_digits("mnist-noise"),
        UNCAPPED,
        margin=SIMILAR_ERROR,
    ),
    of_training(
        "mnist-noise-training",
        "Of noise with clamping of scale 0.1, the optimal form trains faster.",
        "5.1, Figure 6",
        measures.fixed_levels("noise", 0.1, 0.1),
        ("mnist-noise-training", PUBLIC_PLANS),
        _WHILE,
    ),
    _tradeoff("mnist-noise-tradeoff", "5.1, Figure 7"),
    of_attacks(
        "mnist-noise-images-error",
        "Optimal noise with clamping of scale 0.1 protects better than noise with clamping of"
        " scale 0.05 ...",
        "5.1, Figure 8",
        measures.fixed_levels("noise", 0.1, 0.05),
        ("mnist-noise", PRIVATE_PLANS, PUBLIC_PLANS),
        PHOTOS,
    ),
    of_training(
        "mnist-noise-images-utility",
        "... while they train similarly.",
        "5.1, Figure 8",
        measures.fixed_levels("noise", 0.1, 0.05),
        ("mnist-noise-tradeoff", PUBLIC_PLANS),
        _AFTER,
        SIMILAR_LOSS,
    ),
    _tradeoff("cifar-pruning-tradeoff", "5.2, Figure 9"),
    *_photo_pruning(0.7, "5.2, Figure 9"),
    *_photo_pruning(0.8, "5.2, Figure 10"),
    of_attacks(
        "cifar-noise-failure",
        "Above a scale of 0.001 reconstructions of CIFAR-10 fail (worse than a grey image).",
        "5.2",
        measures.beyond_blank(1e-3),
        _on_photos("cifar-noise-error"),
        (PAPER, AWARE, SAFE),
    ),
    _tradeoff("cifar-noise-tradeoff", "5.2, Figure 11"),
    of_training(
        "cifar-noise-growth",
        "The advantage of optimal noise with clamping in training grows with the scale.",
        "5.2, Figure 12",
        measures.growing_gain("noise"),
        ("cifar-noise-utility", PHOTO_PLANS),
        _LEARNED,
    ),
    of_training(
        "cifar-noise-utility",
        "At scales above 0.001 optimal noise with clamping trains better than noise with"
        " clamping ...",
        "appendix, Figure 12",
        measures.level_gain("noise", above=1e-3),
        ("cifar-noise-utility", PHOTO_PLANS),
        _LEARNED,
    ),
    of_attacks(
        "cifar-noise-error",
        "... and leaves a (slightly) higher error.",
        "appendix, Figure 13",
        measures.level_gain("noise", above=1e-3),
        _on_photos("cifar-noise-error"),
        PHOTOS,
    ),
    _layers("weight", "weights"),
    _layers("bias", "biases"),
    Claim(
        "theorem-1",
        "The mean error of every attack is above the lower bound (corrected, Gaussian prior).",
        "Theorem 1",
        "error / bound - 1, the attack and noise that come nearest",
        {
            PAPER: measures.attack_above_bound("bound-against-attacks"),
            AWARE: measures.attack_above_bound(AWARE_BOUND),
            SAFE: measures.attack_above_bound("bound-against-attacks", "candidate_bound", "error"),
        },
    ),
)


@dataclass(frozen=True)
class Finding:
    """One claim in one variant."""

    claim: Claim
    variant: str
    judgement: measures.Judgement

    @property
    def setting(self) -> str | None:
        """ "paper", "aware" or "safe", if its variant stands for one of the three settings."""
        return SETTINGS.get(self.variant)


def find(results: AllResults, claims: Sequence[Claim] = CLAIMS) -> list[Finding]:
    """Test every variant of every claim; from the same results always the same."""
    viewed = with_views(results)

    def judged(claim: Claim, variant: str) -> measures.Judgement:
        measure = claim.variants[variant]
        if isinstance(measure, str):
            return measures.Judgement(measures.NOT_ASKED, reason=measure)
        if not isinstance(measure, measures.AttackMeasure):
            return measures.judge(measure(viewed), claim.margin)
        units, half_width = measure.compared(viewed)
        judgement = measures.judge(units, claim.margin, half_width)
        return measures.withheld(judgement, measure.undefended(viewed))

    return [
        Finding(claim, variant, judged(claim, variant))
        for claim in claims
        for variant in claim.variants
    ]


def write_claims(results: AllResults, folder: Path) -> list[Finding]:
    """Write ``claims.md`` and ``claims.json`` into the folder; returns what they say."""
    found = find(results)
    content = json.dumps([plain(finding) for finding in found], indent=1, allow_nan=False)
    write_atomically(folder / "claims.json", content + "\n")
    write_atomically(folder / "claims.md", as_markdown(found, _basis(results)))
    return found


def as_markdown(findings: Sequence[Finding], basis: Sequence[str] = ()) -> str:
    """Tables of the verdicts in three settings and of all tests, and what they are made from."""
    lines = [
        "# The paper's claims",
        "",
        f"gradveil {gradveil.__version__}. {len({f.claim.name for f in findings})} claims in three"
        " settings:",
        "",
        *counts_in_words(findings),
        "",
        settings_table(findings),
        "Positive differences support a claim (for claims of similarity, small ones do). They are"
        " paired by batch and seed, with 95 % bootstrap intervals; the effect is the mean over the"
        " standard deviation of the independent pairs' differences. There is no correction for the"
        " number of claims: of twenty that are all wrong, one would be taken for true. What is"
        " compared in each setting, and what decides: docs/reproduce.md of gradveil.",
        "",
        "## All tests",
        "",
        "| claim | source | tested | verdict | difference | effect | pairs |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_claims_row(finding) for finding in findings),
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
        found = measures.undefended_gains(results, name)
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


def plain(finding: Finding) -> dict[str, Any]:
    """As an entry of ``claims.json``."""
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
