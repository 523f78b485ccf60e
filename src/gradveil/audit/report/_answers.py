"""The answers in words: which setting, what it rests on, what it does not promise."""

from collections.abc import Sequence
from typing import Any

from gradveil.catalog import DEFENSES, Spec, build_defense, shown_amounts, shown_name

from .._result import Answer, Point
from .._subject import Audited
from ..answer import Goal, Setting, Solved
from ..measure import Plan, plan_of, planned
from ._verdict import KNOWS_MORE, no_further


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
    if spec.name in DEFENSES:
        name = f"gradveil.{DEFENSES[spec.name].build.__name__}"
    else:
        name = spec.name.replace(":", ".")
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


def answer_of(solved: Solved, subject: Audited, plan: Plan, plain: Point) -> Answer:
    """The answer to one wish."""
    goals = tuple(map(str, solved.wish.goals))
    if not solved.judged:
        return Answer(
            solved.wish.title, goals, False, UNJUDGED, not_promised=UNJUDGED, shortfall=UNJUDGED
        )
    shown = solved.best or solved.nearest or solved.within_cost
    if shown is None:
        return Answer(
            solved.wish.title,
            goals,
            False,
            _none_reaches(solved, plain),
            rests_on=_rests_on(plan, subject, plain),
            not_promised=NOT_REACHED,
            shortfall=_none_reaches(solved, plain),
        )
    text = shown.point.defense
    defense = planned(subject, build_defense(text, allow_imports=True))
    missed = "" if solved.best is not None else _missed(solved)
    return Answer(
        title=solved.wish.title,
        goals=goals,
        reached=solved.best is not None,
        sentence=_sentence(shown, subject, missed),
        name=shown.axis.name,
        defense=text,
        python=python_line(text, plan_of(defense)),
        toml=toml_line(text),
        rests_on=_rests_on(plan, subject, shown.point),
        not_promised=_not_promised(shown.point, plan),
        shortfall=missed,
        equal=solved.equal,
    )


MEANINGLESS = 20.0
"""ε above which a promise is none."""

UNJUDGED = (
    "This goal cannot be judged: without a defense the attacks are no better than a blind guess, so"
    " that they get no further behind one says nothing. Give a goal on who is identified, or on ε,"
    " or a stronger attack."
)
NOT_REACHED = "Nothing is promised: no setting that was measured reaches the goal."


def strength_words(setting: Setting) -> str:
    """As "optimal noise of scale 0.012"."""
    amounts = shown_amounts(setting.point.defense)
    numbers = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in amounts)
    return f"{setting.axis.name} ({numbers})" if numbers else setting.axis.name


def _sentence(setting: Setting, subject: Audited, missed: str) -> str:
    point = setting.point
    parts = [
        f"{missed} The nearest is {strength_words(setting)}."
        if missed
        else f"Use {strength_words(setting)}.",
        recovered(point, "images" if subject.is_image else "examples"),
        cost_words(point),
    ]
    return " ".join(part for part in parts if part)


def recovered(point: Point, what: str) -> str:
    """What the strongest attack gets, at the worst moment that was looked at."""
    leaks = [leak for leak in point.leaks if leak.error is not None]
    if not leaks:
        return ""
    worst = min(leaks, key=lambda leak: leak.error.mean if leak.error else 0.0)
    assert worst.error is not None
    when = "" if len(leaks) == 1 else f"worst of {len(leaks)} moments of the training"
    if worst.psnr is not None:
        numbers = f"{worst.psnr.mean:.1f} dB [{worst.psnr.low:.1f}, {worst.psnr.high:.1f}]"
    else:
        numbers = f"{min(worst.error.mean, 1.0):.0%} of a blind guess's error"
        numbers += " or more" if worst.error.mean > 1 else ""
    outcome = _outcome(worst.error.low, worst.copies, worst.examples, what)
    text = f"The strongest attack then {outcome}: {numbers}{when and f' ({when})'}."
    if not outcome:
        said = no_further(", ".join(p for p in (shown_name(worst.attack), numbers, when) if p))
        text = f"T{said[1:]}. {KNOWS_MORE}"
    told = [leak.told_apart for leak in point.leaks if leak.told_apart is not None]
    if told:
        most = max(told, key=lambda one: one.rate.mean)
        text += (
            f" Given {most.candidates} candidates, an attacker who knows all the rest picks the"
            f" right one in {most.rate.mean:.0%} of the cases (chance: {most.chance:.0%})."
        )
    return text


def _outcome(error: float, copies: int, examples: int, what: str) -> str:
    """By the worse end of the interval, as goals are; "" for no further than a blind guess."""
    if copies:
        return f"rebuilds near copies of {copies} of {examples} {what}"
    if error < 0.4:
        return f"rebuilds up to recognisable {what}"
    if error < 0.9:
        return f"rebuilds at most blurred or partial {what}"
    return ""


def cost_words(point: Point) -> str:
    """What training loses, in one sentence."""
    extra = point.extra_loss
    if extra is None:
        return ""
    if extra.mean == float("inf"):
        return "Training under it fails: the loss is no longer finite."
    return (
        f"The loss after training is {extra.mean:+.0%} [{extra.low:+.0%}, {extra.high:+.0%}] beside"
        " that of undefended training."
    )


def _missed(solved: Solved) -> str:
    """By how much goals on leakage and on the loss cannot both be met."""
    parts = []
    if solved.nearest is not None and solved.wish.of_cost:
        parts += [
            _says(goal, solved.nearest, "reaches the goal on leakage") for goal in _costs(solved)
        ]
    if solved.within_cost is not None and solved.wish.of_leakage:
        parts += [
            _says(goal, solved.within_cost, "keeps the loss")
            for goal in solved.wish.of_leakage
            if not goal.is_reached(solved.within_cost.point)
        ]
    which = " and ".join(map(str, solved.wish.goals))
    return f"No setting reaches {which}. {' '.join(part for part in parts if part)}".strip()


def _costs(solved: Solved) -> Sequence[Goal]:
    assert solved.nearest is not None
    return [g for g in solved.wish.of_cost if not g.is_reached(solved.nearest.point)]


def _says(goal: Goal, setting: Setting, merit: str) -> str:
    value = goal.value(setting.point)
    if value is None:
        return ""
    return (
        f"The best that {merit}, {strength_words(setting)}, has {goal.words(value)} (worse end of"
        f" the interval) where {goal.words(goal.limit)} is asked."
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
    return " ".join([f"No setting that was measured reaches {which}.", *dict.fromkeys(reasons)])


def _rests_on(plan: Plan, subject: Audited, point: Point) -> str:
    what = "images" if subject.is_image else "examples"
    batches = "1 batch" if subject.batches == 1 else f"{subject.batches} batches"
    moments = ", ".join(str(leak.round) for leak in point.leaks)
    federation = plan.federation
    trained = (
        f"; {plan.training_seeds} trainings of {federation.rounds} rounds with"
        f" {federation.clients} clients"
        if plan.training_seeds
        else ""
    )
    return (
        f"{len(plan.attacks)} attack(s) on {batches} of {subject.batch_size} {what}, the models"
        f" after {moments} rounds{trained}. A goal counts as reached where the worse end of the"
        " 95 % interval is within it."
    )


def _not_promised(point: Point, plan: Plan) -> str:
    if point.epsilon is not None and point.epsilon > MEANINGLESS:
        return (
            f"Its ε is above {MEANINGLESS:g}: differential privacy promises nothing here. A"
            " stronger attack, other data or a later round may reveal more."
        )
    if point.epsilon is not None:
        releases = plan.releases
        return (
            f"ε = {point.epsilon:.3g} at δ = {releases.delta:g} holds for any attacker over"
            f" {releases.rounds} rounds, each example (or client) in a share"
            f" {releases.sample_rate:g} of them and one replaced by an empty one, with secure"
            " random numbers; these were simulations with seeds. The measured numbers hold for the"
            " attacks that were run."
        )
    return (
        "There is no (ε, δ) guarantee. A stronger attack, other data or a later round may reveal"
        " more."
    )
