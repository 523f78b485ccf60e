"""The report's sentences, made from its numbers and nothing else."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gradveil._runner import Cell, Failure
from gradveil.catalog import shown_name
from gradveil.scoring import MARGIN

from .._result import AuditResult, BoundResult, Frontier, Point
from ..measure import Budget
from ._facts import (
    COPY,
    attack_names,
    grade,
    main_answer,
    most_told,
    strongest_leak,
    twins,
)
from ._numbers import estimate, named, number, plural, share


class Sentence(NamedTuple):
    """A sentence with what it answers."""

    asks: str
    text: str


CANNOT_JUDGE = "these attacks cannot judge this model"

KNOWS_MORE = "An attacker who knows more about the data may get further."
"""What follows `no_further`: attacks without public examples say nothing of one who has them."""

OUTCOMES = {
    "copy": ("up to near copies of the images", "up to nearly all of the values"),
    "recognisable": ("up to recognisable images", "up to much of the values"),
    "blurred": ("at most blurred or partial images", "at most a part of the values"),
}
"""By grade, of images and of values."""


def no_further(strongest: str) -> str:
    """All that may be said where no attack that was run, the strongest named, beats a blind guess.

    >>> no_further("adaptive")
    'The attacks that were run (the strongest: adaptive) got no further than a blind guess'
    """
    return (
        f"The attacks that were run (the strongest: {strongest}) got no further than a blind guess"
    )


def recovered(point: Point, is_image: bool) -> str:
    """What the strongest attack gets at the worst moment that was looked at.

    By the worse end of the interval, as goals are: what cannot be excluded is said.
    """
    leak = strongest_leak(point)
    if leak is None or leak.error is None:
        return "No attack was run."
    numbers = f"{share(leak.error.mean)} of a blind guess's error"
    numbers += f", {number(leak.psnr.mean)} dB" if leak.psnr else ""
    level, attack = grade(leak.error.low), shown_name(leak.attack)
    if leak.copies:
        what = "images" if is_image else "examples"
        outcome = f"rebuilds near copies of {leak.copies} of {leak.examples} {what}"
    elif level == "nothing":
        return f"{no_further(f'{attack}, {numbers}')}. {KNOWS_MORE}"
    else:
        outcome = f"rebuilds {OUTCOMES[level][not is_image]}"
    return f"The strongest attack, {attack}, {outcome} ({numbers})."


def picked_out(point: Point) -> str:
    """How often candidates are told apart; empty where that was not measured."""
    told = most_told(point)
    if told is None:
        return ""
    return (
        f"Given {told.candidates} candidates, one who knows the rest of the batch picks the right"
        f" one in {share(told.rate.mean)} of the trials (chance: {share(told.chance)})."
    )


def training_words(point: Point, undefended: Point) -> str:
    """What training loses; empty where nothing was trained."""
    if point.loss is None:
        return ""
    if not math.isfinite(point.loss.mean):
        return "Training under it fails: the loss is no longer finite."
    instead = f" instead of {number(undefended.loss.mean)}" if undefended.loss else ""
    extra = f" ({100 * point.extra_loss.mean:+.0f} %)" if point.extra_loss else ""
    return f"Training ends with a loss of {number(point.loss.mean)}{instead}{extra}."


def what_it_does(point: Point, undefended: Point, is_image: bool) -> str:
    """What leaks under a setting, and what it costs."""
    costs = training_words(point, undefended)
    return joined(recovered(point, is_image), picked_out(point), costs)


def joined(*sentences: str) -> str:
    """Those that are not empty."""
    return " ".join(text for text in sentences if text)


def verdict(
    point: Point,
    bound: BoundResult | None,
    guess_error: float,
    is_image: bool,
    no_guarantee: str = "",
    *,
    able: bool = True,
) -> str:
    """What the strongest attack found in this run, and what is guaranteed beyond it.

    Where the attacks cannot judge, that they got no further is no merit of the defense, and what
    the exact attacker tells apart is said instead.

    Args:
        point: What was measured of the defense.
        bound: What the theory says.
        guess_error: The mean squared error in [0, 1] units of guessing the mean.
        is_image: Whether the words may speak of images.
        no_guarantee: Why the theory promises nothing, where it does not.
        able: Whether the attacks can judge this model.
    """
    promise = _guarantee(bound, no_guarantee, guess_error, is_image)
    if strongest_leak(point) is None:
        return f"Not attacked in this run. {promise}"
    if not able:
        blind = "without a defense they are no better than a blind guess."
        told = picked_out(point) or "Nothing was measured that could."
        return f"{_capital(CANNOT_JUDGE)}: {blind} {told} {promise}"
    return f"{recovered(point, is_image)} {promise}"


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _guarantee(bound: BoundResult | None, reason: str, guess_error: float, is_image: bool) -> str:
    if bound is None or not bound.holds:
        return f"Nothing is guaranteed: {reason}." if reason else "Nothing is guaranteed."
    what = "images" if is_image else "values"
    text = (
        f"Its Gaussian reference error is {bound.mse:.2g} per entry: a limit if the data were"
        f" Gaussian, not a guarantee for {what}"
    )
    if bound.mse_pixels is not None and bound.mse_pixels <= COPY * guess_error:
        text += f"; it does not exclude near copies of the {what}"
    return f"{text}."


def headline(result: AuditResult) -> str:
    """The answer as a heading."""
    answer = main_answer(result.frontier)
    if answer is None:
        return "What leaks, what is guaranteed, what it costs"
    if not answer.reached:
        return "No defense that was tried reaches the goal"
    return f"Use {named(answer.name, answer.defense)}"


def first_sentences(result: AuditResult) -> list[Sentence]:
    """What leaks without a defense, what to use or what was compared, and how sure that is."""
    frontier, answer = result.frontier, main_answer(result.frontier)
    plain, image = frontier.undefended, result.setup.is_image
    found = [Sentence("Without a defense", recovered(plain, image))]
    if answer is None:
        setup, example = result.setup, "image" if image else "example"
        found += [Sentence("What is equal", setup.equal)] if setup.equal else []
        sure = (
            f"This was measured on {plural(setup.batches, 'batch')} of"
            f" {plural(setup.batch_size, example)} with {plural(setup.seeds, 'seed')} each, not"
            " proved; a stronger attack may find more."
        )
        return [*found, Sentence("How sure this is", sure)]
    before = frontier.answers[: frontier.answers.index(answer)]
    titles = " or ".join(f"“{one.title}”" for one in before if not one.reached)
    missed = f"No setting reaches {titles}." if titles else ""
    asks = "Recommended" if answer.reached else "Not reached"
    found.append(Sentence(asks, joined(missed, answer.sentence)))
    return [*found, Sentence("How sure this is", joined(answer.rests_on, answer.not_promised))]


def dominated(frontier: Frontier) -> str:
    """Which defenses another one beats at every strength; empty if none."""
    names = [f"{c.name} (by {c.dominated_by})" for c in frontier.curves if c.dominated_by]
    if not names:
        return ""
    return f"Never the best choice here, another costs less at equal leakage: {', '.join(names)}."


def audited(result: AuditResult) -> str:
    """What was audited, and with which version."""
    setup = result.setup
    known = setup.weights in ("untrained", "as given")
    weights = setup.weights if known else f"weights of {setup.weights}"
    text = f"{setup.model} ({setup.parameters:,} parameters, {weights}) on {setup.data}"
    version = setup.versions.get("gradveil", "")
    return " · ".join(
        part for part in (text, setup.date, version and f"gradveil {version}") if part
    )


def reading_points(result: AuditResult) -> list[Sentence]:
    """How to read the table of points."""
    frontier, setup = result.frontier, result.setup
    federation, releases = setup.federation, setup.releases
    told, moments = most_told(frontier.undefended), ", ".join(map(str, frontier.moments))
    psnr = "" if frontier.guess_psnr is None else f", {number(frontier.guess_psnr)} dB"
    before = "" if frontier.loss_before is None else f"; before it was {frontier.loss_before:.3g}"
    found = [
        Sentence(
            "Error left",
            f"the strongest attack's squared error over a blind guess's ({frontier.guess}{psnr});"
            " 0 % is a copy, 100 % is no further than the guess",
        ),
        Sentence(
            "Loss",
            f"on other examples, after {plural(federation.rounds, 'round')} with"
            f" {federation.optimizer}, rate {federation.lr:g},"
            f" {plural(federation.clients, 'client')}, {plural(setup.training_seeds, 'seed')},"
            f" trained on {frontier.trained_on} examples{before}",
        ),
        Sentence(
            "Reference error",
            "what no attacker would go below if the data were Gaussian; real data are easier",
        ),
        Sentence(
            "ε",
            f"the promise of differential privacy over {plural(releases.rounds, 'round')},"
            f" δ = {releases.delta:g}, with secret noise (these trainings had seeds) and one"
            " example or client replaced by an empty one; the smaller, the stronger; –: none",
        ),
        Sentence("Beaten", "another defense costs less at equal leakage"),
        Sentence("Beside a number", "its 95 % interval"),
    ]
    if told is not None:
        picks = "how often an attacker who knows the rest of the batch picks the right one of"
        found.insert(1, Sentence("Picked out", f"{picks} {told.candidates} candidates"))
    if len(frontier.moments) > 1:
        found.insert(1, Sentence("Moments", f"rounds {moments} were attacked; the worst counts"))
    return found


RANGE_NOTE = (
    "The attacker was not told the range of the inputs, because it could only be taken from the"
    " audited examples themselves: give public examples or a normalisation."
)
PLAN_NOTE = (
    "Plans marked private are made from the private batch, and tell who was in it at any amount of"
    " noise. Their bounds count what the noise levels reveal. The other plans are made from public"
    " examples or from the model alone, and reveal nothing."
)
STOPPED = {
    "interrupted": "Stopped by the user before all was measured.",
    "time budget": "The time budget ended before all was measured.",
}


def notes(
    said: Sequence[str],
    failures: Mapping[Cell, Failure],
    stopped: str | None,
    *,
    private_plan: bool,
    range_hidden: bool,
) -> list[str]:
    """What a reader should know of this run: what was left out, what the bounds do not count."""
    found = [PLAN_NOTE] if private_plan else []
    if stopped is not None:
        found.append(f"{STOPPED[stopped]} The same command goes on where it stopped.")
    for cell, failure in failures.items():
        reason = " ".join(f"{failure.error}: {failure.message}".split())
        found.append(f"`{cell.name}` failed on {cell.settings['defense']}: {reason}")
    return [*found, *said, *([RANGE_NOTE] if range_hidden else [])]


def equal_words(match: str, budget: Budget | None) -> str:
    """What is equal among the defenses, in one or two sentences."""
    if match == "curves":
        return (
            "Each defense was run over strengths; what it protects is compared with the loss after"
            " a real training."
        )
    if budget is None:
        return "Nothing: all amounts were given."
    noise, pruning = f"isotropic noise of scale {budget.scale:.3g}", f"{budget.ratio:.0%}"
    if budget.match == "scale":
        return f"All noise has the scale {budget.scale:.3g}, all pruning cuts {pruning}."
    if budget.match == "error":
        return (
            f"Wherever there is noise, the reference error (in its simple form) is that of"
            f" {noise}, {budget.error:.3g} per entry; all pruning cuts {pruning}."
        )
    return (
        f"Noise, with clamping or without, makes a training step vary as much as {noise} does"
        f" (equal U2). Pruning keeps as much of a step as magnitude pruning of {pruning} (equal"
        " U1). Noisy pruning has both. What training loses in the end, the loss, need not be"
        " equal."
    )


def undefended_words(result: AuditResult) -> str:
    """What the strongest attack reaches without a defense, beside a blind guess; empty if none."""
    frontier = result.frontier
    leak = frontier.undefended.leaks[0] if frontier.undefended.leaks else None
    if leak is None or leak.error is None or leak.gain is None:
        return ""
    gain = leak.gain
    ends = "" if gain.low == gain.high else f" [{gain.low:.1f}, {gain.high:.1f}]"
    unit = "share of wrong tokens" if result.setup.tokens else "squared error"
    numbers = (
        f"ithout a defense the strongest attack, {shown_name(leak.attack)}, leaves"
        f" {share(leak.error.mean)} of the {unit} of a blind guess ({frontier.guess}):"
        f" {gain.mean:+.1f}{ends} dB, example by example"
    )
    if leak.works:
        return f"W{numbers}."
    return (
        f"{_capital(CANNOT_JUDGE)}: w{numbers}. At least {MARGIN:g} dB in the mean and an interval"
        " above 0 are needed, or a near copy."
    )


def takeaways(result: AuditResult) -> list[str]:
    """The few things to remember."""
    texts = [
        undefended_words(result),
        _gains(result),
        _below(result),
        _formal(result),
    ]
    return [text for text in texts if text]


def _gains(result: AuditResult) -> str:
    """The bounds of optimal defenses over their twins'; equal utility only where losses agree."""
    pairs = [
        (classical, optimal, optimal.bound.trace_mse / classical.bound.trace_mse)
        for classical, optimal in twins(result)
        if classical.bound and optimal.bound and classical.bound.trace_mse > 0
    ]
    if not pairs:
        return ""
    ratios = [f"{optimal.name} {number(ratio)} ×" for _, optimal, ratio in pairs]
    text = f"reference error over that of the classical form: {_list(ratios)}."
    if result.setup.match != "utility":
        return f"The {text}"
    losses = [(classical.loss, optimal.loss) for classical, optimal, _ in pairs]
    if all(a and b and a.low <= b.high and b.low <= a.high for a, b in losses):
        return f"At equal utility, the {text}"
    told = [f"{a.name} {estimate(a.loss)}, {b.name} {estimate(b.loss)}" for a, b, _ in pairs]
    return (
        f"Where as much of a step is kept (U1) and noise makes it vary as much (U2), the {text}"
        f" The loss after training is not equal: {_list(told)}."
    )


def _below(result: AuditResult) -> str:
    names = [
        d.name
        for d in result.defenses
        if d.bound and any(a.mse.high < d.bound.mse for a in d.attacks)
    ]
    if not names:
        return ""
    return (
        f"An attack went below the reference error for {_list(names)}. That error is a limit for"
        f" Gaussian data, not a guarantee for {'images' if result.setup.is_image else 'inputs'}:"
        " these are easier to guess, so it does not protect them."
    )


def _formal(result: AuditResult) -> str:
    carriers = [d.name for d in result.defenses if d.is_formal]
    if carriers:
        return f"Formal privacy is stated for {_list(carriers)} only; see Guarantees."
    return "None of this carries a formal (ε, δ) privacy guarantee."


def _list(parts: Iterable[str]) -> str:
    """Words with commas and "and"."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


LABELS = {
    "known": "the labels of the batch",
    "counts": "how often each class occurs in the batch, not which image has which label",
    "unknown": "no labels: it has to find them",
}
TOLD = {
    "known": "Know the defense and its settings, but not the noise that was drawn",
    "realised": "Know the defense and the very noise levels or mask, which nobody sends",
    "unknown": "Made for a known defense, but not told of it",
}


def threat_model(result: AuditResult) -> list[str]:
    """What the attacker has, one line each."""
    setup, names = result.setup, attack_names(result)
    threat = setup.threat
    what = "one gradient" if setup.federation.local is None else "one weight update"
    knows = "knows" if threat.statistics else "does not know"
    lines = [
        f"It sees {what} of a batch as it was sent, after the defense; it follows the protocol.",
        "It knows the model with its weights, the loss, the batch size and the inputs' shape.",
        f"It is given {LABELS[threat.labels]}.",
        f"It {knows} the data's mean, standard deviation and range.",
    ]
    for aware, phrase in ((True, TOLD[threat.mechanism]), (False, "Do not know the defense")):
        found = (a for d in result.defenses for a in d.attacks if a.knows_defense is aware)
        attackers = list(dict.fromkeys(names[a.attack] for a in found))
        if attackers:
            lines.append(f"{phrase}: {_list(attackers)}.")
    return lines
