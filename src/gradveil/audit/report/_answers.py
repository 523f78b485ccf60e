"""The answers in words: which setting, what it rests on, what it does not promise."""

from typing import Any

import gradveil
from gradveil.catalog import DEFENSES, Spec, build_defense

from .._result import Answer, Point, Releases
from ..answer import Goal, Setting, Solved
from ..measure import Laboratory, planned
from ._numbers import named, plural
from ._words import joined, what_it_does

MEANINGLESS = 20.0
"""ε above which a promise is none."""

UNJUDGED = (
    "This goal cannot be judged: without a defense the attacks are no better than a blind guess, so"
    " that they get no further behind one says nothing. Give a goal on who is identified, or on ε,"
    " or a stronger attack."
)
NOT_REACHED = "Nothing is promised: no setting that was measured reaches the goal."
MORE = "A stronger attack, other data or a later round may reveal more."


def python_line(defense: str, plan: str) -> str:
    """A line that makes the defense in Python.

    >>> python_line("optimal-noise(scale=0.012)", "model")
    'defense = gradveil.OptimalNoise(scale=0.012)'
    """
    made = _call(Spec.parse(defense))
    if plan == "public":
        public = "source=gradveil.Public((public_inputs, public_targets))"
        made = f"{made.removesuffix(')')}, {public})"
    return f"defense = {made}"


def toml_line(defense: str) -> str:
    """A line for a configuration that names a defense.

    >>> toml_line("gradient-noise(scale=0.012)")
    'defense = "gradient-noise(scale=0.012)"'
    """
    escaped = defense.replace("\\", "\\\\").replace('"', '\\"')
    return f'defense = "{escaped}"'


def _call(spec: Spec) -> str:
    name = spec.name.replace(":", ".")
    if name in DEFENSES:
        made = DEFENSES[name].build.__name__
        name = f"gradveil.{made}" if made in gradveil.__all__ else f"gradveil.defenses.{made}"
    items = [
        _text(value) if isinstance(key, int) else f"{key}={_text(value)}"
        for key, value in spec.arguments.items()
    ]
    return f"{name}({', '.join(items)})"


def _text(value: Any) -> str:
    if isinstance(value, Spec):
        return _call(value)
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(_text, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside},)"
    return repr(value)


def answer_of(solved: Solved, laboratory: Laboratory, plain: Point) -> Answer:
    """The answer to one wish."""
    subject = laboratory.subject
    title, goals = solved.wish.title, tuple(map(str, solved.wish.goals))
    if not solved.judged:
        return Answer(title, goals, False, UNJUDGED)
    shown = solved.best or solved.nearest or solved.within_cost
    if shown is None:
        missed = _none_reaches(solved, plain)
        rests_on = _rests_on(laboratory, plain)
        return Answer(title, goals, False, missed, rests_on=rests_on, not_promised=NOT_REACHED)
    name, text = shown.axis.name, shown.point.defense
    defense = planned(subject, build_defense(text, allow_imports=True))
    reached = solved.best is not None
    use = f"Use {named(name, text)}."
    missed = f"{_missed(solved)} The nearest is {named(name, text)}."
    return Answer(
        title=title,
        goals=goals,
        reached=reached,
        sentence=joined(
            use if reached else missed, what_it_does(shown.point, plain, subject.is_image)
        ),
        name=name,
        defense=text,
        python=python_line(text, defense.about.source),
        toml=toml_line(text),
        rests_on=_rests_on(laboratory, shown.point),
        not_promised=_not_promised(shown.point, laboratory.releases),
        equal=solved.equal,
    )


def _missed(solved: Solved) -> str:
    """By how much goals on leakage and on the loss cannot both be met."""
    wish, parts = solved.wish, []
    for setting, goals, merit in (
        (solved.nearest, wish.of_cost, "reaches the goal on leakage"),
        (solved.within_cost, wish.of_leakage, "keeps the loss"),
    ):
        if setting is not None:
            missed = [goal for goal in goals if not goal.is_reached(setting.point)]
            parts += [_says(goal, setting, merit) for goal in missed]
    return joined(f"No setting reaches {' and '.join(map(str, wish.goals))}.", *parts)


def _says(goal: Goal, setting: Setting, merit: str) -> str:
    value = goal.value(setting.point)
    if value is None:
        return ""
    best = named(setting.axis.name, setting.point.defense)
    return (
        f"The best that {merit}, {best}, has {goal.words(value)} (worse end of the interval) where"
        f" {goal.words(goal.limit)} is asked."
    )


def _none_reaches(solved: Solved, plain: Point) -> str:
    which = " and ".join(map(str, solved.wish.goals))
    reasons = []
    for goal in solved.wish.goals:
        if goal.is_formal:
            reasons.append("An ε is solved for with private noise, its strength left open.")
        elif goal.is_cost and plain.loss is None:
            reasons.append("Nothing was trained.")
        elif goal.value(plain) is None:
            reasons.append(f"`{goal.measure}` could not be measured on these data.")
        elif goal in solved.closest:
            reasons.append(_says(goal, solved.closest[goal], "comes nearest"))
    return joined(f"No setting that was measured reaches {which}.", *dict.fromkeys(reasons))


def _rests_on(laboratory: Laboratory, point: Point) -> str:
    subject, federation = laboratory.subject, laboratory.federation
    what = "images" if subject.is_image else "examples"
    moments = ", ".join(str(leak.round) for leak in point.leaks)
    trained = (
        f"; {laboratory.training_seeds} trainings of {federation.rounds} rounds with"
        f" {federation.clients} clients"
        if laboratory.training_seeds
        else ""
    )
    return (
        f"{len(laboratory.attacks)} attack(s) on {plural(subject.batches, 'batch')} of"
        f" {subject.batch_size} {what}, the models after {moments} rounds{trained}. A goal counts"
        " as reached where the worse end of the 95 % interval is within it."
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
