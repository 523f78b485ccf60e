"""The report's numbers as they are printed, and its sentences, made from these and nothing else."""

import math
from dataclasses import replace
from typing import Any

import gradveil
from gradveil.catalog import DEFENSES, Spec, shown_name
from gradveil.scoring import Interval

from .._answer import Setting, Wish
from .._result import Answer, AuditResult, Frontier, Point, Promise, Releases
from .._settings import COPY, NOTHING, RECOGNISABLE, Goal
from ..measure import Laboratory, Search

ABSENT = "–"


def number(value: float | None) -> str:
    """Three significant digits.

    >>> [number(v) for v in (0.0, 0.02397, 12.345, -0.5, 1234.5, 0.000123, float("inf"), None)]
    ['0', '0.0240', '12.3', '-0.500', '1,234', '1.23e-4', 'infinite', '–']
    """
    if value is None:
        return ABSENT
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1000:
        return f"{value:#.3g}".rstrip(".")
    if 1000 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    digits, power = f"{value:.2e}".split("e")
    return f"{digits}e{int(power)}"


def interval(value: Interval | None) -> str:
    """The ends of an interval, or nothing where both are the mean.

    >>> interval(Interval(0.5, 0.41, 0.6)), interval(Interval(0.5, 0.5, 0.5))
    ('[0.410, 0.600]', '')
    """
    if value is None or value.low == value.high:
        return ""
    return f"[{number(value.low)}, {number(value.high)}]"


def share(value: float | None) -> str:
    """A share in percent.

    >>> [share(value) for value in (0.0, 1e-8, 0.01, 0.0167, 0.808, 1.08, 10.0, None)]
    ['0 %', '< 0.01 %', '1 %', '1.7 %', '81 %', '108 %', '1,000 %', '–']
    """
    if value is None:
        return ABSENT
    percents = 100 * value
    if 0 < percents < 0.01:
        return "< 0.01 %"
    return f"{percents:,.0f} %" if percents >= 9.95 else f"{percents:.2g} %"


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "batch"), plural(2, "batch"), plural(3, "seed"), plural(1000, "entry")
    ('1 batch', '2 batches', '3 seeds', '1,000 entries')
    """
    if count == 1:
        return f"1 {noun}"
    many = f"{noun[:-1]}ies" if noun.endswith("y") else noun + ("es" if noun[-2:] == "ch" else "s")
    return f"{count:,} {many}"


def setting(spec: str) -> str:
    """The numbers of a specification that say how strong it is; empty if there are none.

    >>> setting("optimal-pruning(ratio=0.7784362, noise=optimal-noise(scale=0.0123456))")
    'ratio 0.778, scale 0.0123'
    >>> setting("private-noise(noise_multiplier=1.0, clip=0.5)")
    'noise multiplier 1, clip 0.5'
    """
    try:
        amounts = Spec.parse(spec).amounts
    except ValueError:  # a name of the user's that is no specification
        return ""
    return ", ".join(f"{n.replace('_', ' ')} {v:.3g}" for n, v in amounts)


def named(name: str, spec: str) -> str:
    """A defense with its strength.

    >>> named("optimal noise", "optimal-noise(scale=0.3)"), named("sign", "sign-compression")
    ('optimal noise with scale 0.3', 'sign')
    """
    amounts = setting(spec)
    return f"{name} with {amounts}" if amounts else name


OUTCOMES = {
    COPY: ("up to near copies of the images", "up to nearly all of the values"),
    RECOGNISABLE: ("up to recognisable images", "up to much of the values"),
    NOTHING: ("at most blurred or partial images", "at most a part of the values"),
}
"""By the largest error, of images and of values."""

CANNOT_JUDGE = "These attacks cannot judge this model"

KNOWS_MORE = "An attacker who knows more about the data may get further."
NO_FURTHER = "The attacks that were run (the strongest: {}) got no further than a blind guess"
"""All that may be said where no attack that was run, the strongest named, beats a blind guess:
attacks without public examples say nothing of one who has them."""


def recovered(point: Point, is_image: bool) -> str:
    """What the strongest attack gets at the worst moment that was looked at.

    By the worse end of the interval, as goals are: what cannot be excluded is said.
    """
    leak = point.strongest
    if leak is None or leak.error is None:
        return "No attack was run."
    numbers = f"{share(leak.error.mean)} of a blind guess's error"
    numbers += f", {number(leak.psnr.mean)} dB" if leak.psnr else ""
    attack, low = shown_name(leak.attack), leak.error.low
    outcome = next((words for most, words in OUTCOMES.items() if low <= most), None)
    if leak.copies:
        what = "images" if is_image else "examples"
        found = f"near copies of {leak.copies} of {leak.examples} {what}"
    elif outcome is None:
        return f"{NO_FURTHER.format(f'{attack}, {numbers}')}. {KNOWS_MORE}"
    else:
        found = outcome[not is_image]
    return f"The strongest attack, {attack}, rebuilds {found} ({numbers})."


def picked_out(point: Point) -> str:
    """How often candidates are told apart; empty where that was not measured."""
    told = point.told_apart
    if told is None:
        return ""
    return (
        f"Given {told.candidates} candidates, one who knows the rest of the batch picks the right"
        f" one in {share(told.rate.mean)} of the trials (chance: {share(1 / told.candidates)})."
    )


def what_it_does(point: Point, undefended: Point, is_image: bool) -> str:
    """What leaks under a setting, and what it costs."""
    costs = ""
    if point.loss is not None and not math.isfinite(point.loss.mean):
        costs = "Training under it fails: the loss is no longer finite."
    elif point.loss is not None:
        instead = f" instead of {number(undefended.loss.mean)}" if undefended.loss else ""
        extra = f" ({100 * point.extra_loss.mean:+.0f} %)" if point.extra_loss else ""
        costs = f"Training ends with a loss of {number(point.loss.mean)}{instead}{extra}."
    return joined(recovered(point, is_image), picked_out(point), costs)


def joined(*sentences: str) -> str:
    """Those that are not empty."""
    return " ".join(text for text in sentences if text)


def verdict(
    point: Point, promise: Promise, guess_error: float, is_image: bool, *, able: bool = True
) -> str:
    """What the strongest attack found in this run, and what is guaranteed beyond it.

    Where the attacks are not able to judge, that they got no further is no merit of the defense,
    and what the exact attacker tells apart is said instead. Of a guess of the mean the squared
    error is given, in [0, 1] units.
    """
    what, bound = "images" if is_image else "values", promise.bound
    why = f": {promise.no_guarantee}" if promise.no_guarantee else ""
    promised = f"Nothing is guaranteed{why}."
    if bound is not None and bound.holds:
        near = bound.mse_pixels is not None and bound.mse_pixels <= COPY * guess_error
        promised = (
            f"Its Gaussian reference error is {bound.mse:.2g} per entry: a limit if the data were"
            f" Gaussian, not a guarantee for {what}"
            f"{f'; it does not exclude near copies of the {what}' if near else ''}."
        )
    if point.strongest is None:
        return f"Not attacked in this run. {promised}"
    if able:
        return f"{recovered(point, is_image)} {promised}"
    told = picked_out(point) or "Nothing was measured that could."
    blind = "without a defense they are no better than a blind guess."
    return f"{CANNOT_JUDGE}: {blind} {told} {promised}"


def headline(result: AuditResult) -> str:
    """The answer as a heading."""
    answer = result.frontier.main
    if answer is None:
        return "What leaks, what is guaranteed, what it costs"
    if not answer.reached:
        return "No defense that was tried reaches the goal"
    return f"Use {named(answer.name, answer.defense)}"


def first_sentences(result: AuditResult) -> list[tuple[str, str]]:
    """What leaks without a defense, what to use or what was compared, and how sure that is.

    Each with what it answers.
    """
    frontier, answer, setup = result.frontier, result.frontier.main, result.setup
    judged = "" if result.can_judge else f"{CANNOT_JUDGE}."
    plain = joined(judged, recovered(frontier.undefended, setup.is_image))
    if answer is None:
        sure = (
            f"This was measured on {plural(setup.batches, 'batch')} of"
            f" {plural(setup.batch_size, 'image' if setup.is_image else 'example')} with"
            f" {plural(setup.seeds, 'seed')} each, not proved; a stronger attack may find more."
        )
        return [("Without a defense", plain), ("How sure this is", sure)]
    before = frontier.answers[: frontier.answers.index(answer)]
    titles = " or ".join(f"“{one.title}”" for one in before if not one.reached)
    missed = f"No setting reaches {titles}." if titles else ""
    return [
        ("Without a defense", plain),
        ("Recommended" if answer.reached else "Not reached", joined(missed, answer.sentence)),
        ("How sure this is", joined(answer.rests_on, answer.not_promised)),
    ]


def what_was_audited(result: AuditResult) -> str:
    """What was audited, and with which version."""
    setup = result.setup
    known = setup.weights in ("untrained", "as given")
    weights = setup.weights if known else f"weights of {setup.weights}"
    text = f"{setup.model} ({setup.parameters:,} parameters, {weights}) on {setup.data}"
    version = setup.versions.get("gradveil", "")
    return " · ".join(filter(None, (text, setup.date, version and f"gradveil {version}")))


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


def notes(search: Search, frontier: Frontier) -> tuple[str, ...]:
    """What a reader should know of this run: what was left out, what the bounds do not count."""
    found = [PLAN_NOTE] if any(curve.plan == "private" for curve in frontier.curves) else []
    if search.stopped is not None:
        found.append(f"{STOPPED[search.stopped]} The same command goes on where it stopped.")
    for cell, failure in search.failures.items():
        reason = " ".join(f"{failure.error}: {failure.message}".split())
        found.append(f"`{cell.name}` failed on {cell.settings['defense']}: {reason}")
    hidden = [] if search.laboratory.subject.range_is_public else [RANGE_NOTE]
    return (*found, *search.notes, *hidden)


def below_reference(result: AuditResult) -> str:
    """For which defenses an attack went below the reference error; empty if for none."""
    bounded = [(d, d.bound) for d in result.defenses if d.bound]
    below = [d.name for d, bound in bounded if any(a.mse.high < bound.mse for a in d.attacks)]
    if not below:
        return ""
    names = " and ".join(filter(None, (", ".join(below[:-1]), below[-1])))
    return (
        f"An attack went below the reference error for {names}. That error is a limit for"
        f" Gaussian data, not a guarantee for {'images' if result.setup.is_image else 'inputs'}:"
        " these are easier to guess, so it does not protect them."
    )


MEANINGLESS = 20.0
"""ε above which a promise is none."""

UNJUDGED = (
    "This goal cannot be judged: without a defense the attacks are no better than a blind guess, so"
    " that they get no further behind one says nothing. Give a goal on who is identified, or on ε,"
    " or a stronger attack."
)
MORE = "A stronger attack, other data or a later round may reveal more."


def python_line(defense: str, plan: str) -> str:
    """A line that makes the defense in Python.

    >>> python_line("optimal-noise(scale=0.012)", "model")
    'defense = gradveil.OptimalNoise(scale=0.012)'
    """
    public = ("source=gradveil.Public((public_inputs, public_targets))",)
    return f"defense = {_python(Spec.parse(defense), *(public if plan == 'public' else ()))}"


def _python(value: Any, *more: str) -> str:
    if not isinstance(value, Spec):
        return repr(value)
    name = value.name.replace(":", ".")
    if name in DEFENSES:
        made = DEFENSES[name].build.__name__
        name = f"gradveil.{made}" if made in gradveil.__all__ else f"gradveil.defenses.{made}"
    items = [f"{key}={_python(part)}" for key, part in value.arguments.items()]
    return f"{name}({', '.join([*items, *more])})"


def answer_of(wish: Wish, laboratory: Laboratory, plain: Point) -> Answer:
    """The answer to one wish."""
    goals, shown = tuple(map(str, wish.goals)), wish.shown
    answer = Answer(wish.title, goals, wish.best is not None, UNJUDGED)
    if not wish.judged:
        return answer
    if shown is None:
        return replace(
            answer,
            sentence=_none_reaches(wish, plain),
            rests_on=_rests_on(laboratory, plain),
            not_promised="Nothing is promised: no setting that was measured reaches the goal.",
        )
    text, use = shown.point.defense, named(shown.axis.name, shown.point.defense)
    found = f"Use {use}." if answer.reached else f"{_missed(wish)} The nearest is {use}."
    return replace(
        answer,
        sentence=joined(found, what_it_does(shown.point, plain, laboratory.subject.is_image)),
        name=shown.axis.name,
        defense=text,
        python=python_line(text, laboratory.plan_of(text)),
        rests_on=_rests_on(laboratory, shown.point),
        not_promised=_not_promised(shown.point, laboratory.settings.releases),
        equal=wish.equal,
    )


def _missed(wish: Wish) -> str:
    """By how much goals on leakage and on the loss cannot both be met."""
    parts = []
    for setting, goals, merit in (
        (wish.nearest, wish.of_cost, "reaches the goal on leakage"),
        (wish.within_cost, wish.of_leakage, "keeps the loss"),
    ):
        missed = [g for g in goals if setting is not None and not g.is_reached(setting.point)]
        parts += [_says(goal, setting, merit) for goal in missed if setting is not None]
    return joined(f"No setting reaches {' and '.join(map(str, wish.goals))}.", *parts)


def _says(goal: Goal, setting: Setting, merit: str) -> str:
    value = goal.value(setting.point)
    if value is None:
        return ""
    name = named(setting.axis.name, setting.point.defense)
    return (
        f"The best that {merit}, {name}, has {goal.shown(value)} (worse end of the interval) where"
        f" {goal.shown(goal.limit)} is asked."
    )


def _none_reaches(wish: Wish, plain: Point) -> str:
    which, reasons = " and ".join(map(str, wish.goals)), []
    for goal in wish.goals:
        if goal.is_formal:
            reasons.append("An ε is solved for with private noise, its strength left open.")
        elif goal.is_cost and plain.loss is None:
            reasons.append("Nothing was trained.")
        elif goal.value(plain) is None:
            reasons.append(f"`{goal.measure}` could not be measured on these data.")
        elif goal in wish.closest:
            reasons.append(_says(goal, wish.closest[goal], "comes nearest"))
    return joined(f"No setting that was measured reaches {which}.", *dict.fromkeys(reasons))


def _rests_on(laboratory: Laboratory, point: Point) -> str:
    subject, federation = laboratory.subject, laboratory.federation
    seeds = laboratory.settings.training_seeds
    trained = f"; {seeds} trainings of {federation.rounds} rounds with {federation.clients} clients"
    return (
        f"{len(laboratory.attacks)} attack(s) on {plural(subject.batches, 'batch')} of"
        f" {subject.batch_size} {'images' if subject.is_image else 'examples'}, the models after"
        f" {', '.join(str(leak.round) for leak in point.leaks)} rounds{trained if seeds else ''}."
        " A goal counts as reached where the worse end of the 95 % interval is within it."
    )


def _not_promised(point: Point, releases: Releases) -> str:
    if point.epsilon is None:
        return f"There is no (ε, δ) guarantee. {MORE}"
    if point.epsilon > MEANINGLESS:
        return f"Its ε is above {MEANINGLESS:g}: differential privacy promises nothing here. {MORE}"
    return (
        f"ε = {point.epsilon:.3g} at δ = {releases.delta:g} holds for any attacker over"
        f" {releases.rounds} rounds, each example (or client) in a share"
        f" {releases.sample_rate:g} of them and one replaced by an empty one, with secure"
        " random numbers; these were simulations with seeds. The measured numbers hold for the"
        " attacks that were run."
    )
