"""The answers in words: which setting, what it rests on, what it does not promise."""

from collections.abc import Sequence

from gradveil.catalog import build_defense, shown_amounts

from .._amounts import plan_of, planned
from .._frontier import Answer, Point
from .._subject import Subject
from ._goal import Goal
from ._measuring import Plan
from ._paste import python_line, toml_line
from ._solve import Setting, Solved


def answer_of(solved: Solved, subject: Subject, plan: Plan, plain: Point) -> Answer:
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
    " that they rebuild nothing behind one says nothing. Give a goal on who is identified, or on ε,"
    " or a stronger attack."
)
NOT_REACHED = "Nothing is promised: no setting that was measured reaches the goal."


def strength_words(setting: Setting) -> str:
    """As "optimal noise of scale 0.012"."""
    amounts = shown_amounts(setting.point.defense)
    numbers = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in amounts)
    return f"{setting.axis.name} ({numbers})" if numbers else setting.axis.name


def _sentence(setting: Setting, subject: Subject, missed: str) -> str:
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
    when = "" if len(leaks) == 1 else f" (worst of {len(leaks)} moments of the training)"
    if worst.psnr is not None:
        numbers = f"{worst.psnr.mean:.1f} dB [{worst.psnr.low:.1f}, {worst.psnr.high:.1f}]"
    else:
        numbers = f"{min(worst.error.mean, 1.0):.0%} of a blind guess's error"
        numbers += " or more" if worst.error.mean > 1 else ""
    outcome = _outcome(worst.error.low, worst.copies, worst.examples, what)
    text = f"The strongest attack then {outcome}: {numbers}{when}."
    told = [leak.told_apart for leak in point.leaks if leak.told_apart is not None]
    if told:
        most = max(told, key=lambda one: one.rate.mean)
        text += (
            f" Given {most.candidates} candidates, an attacker who knows all the rest picks the"
            f" right one in {most.rate.mean:.0%} of the cases (chance: {most.chance:.0%})."
        )
    return text


def _outcome(error: float, copies: int, examples: int, what: str) -> str:
    """By the worse end of the interval, as goals are."""
    if copies:
        return f"rebuilds near copies of {copies} of {examples} {what}"
    if error < 0.4:
        return f"rebuilds up to recognisable {what}"
    if error < 0.9:
        return f"rebuilds at most blurred or partial {what}"
    return "finds nothing beyond what one guesses without any message"


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


def _rests_on(plan: Plan, subject: Subject, point: Point) -> str:
    what = "images" if subject.is_image else "examples"
    batches = "1 batch" if subject.batches == 1 else f"{subject.batches} batches"
    moments = ", ".join(str(leak.round) for leak in point.leaks)
    training = plan.training
    return (
        f"{len(plan.attacks)} attack(s) on {batches} of {subject.batch_size} {what}, the models"
        f" after {moments} rounds; {training.seeds} trainings of {training.rounds} rounds with"
        f" {training.clients} clients. A goal counts as reached where the worse end of the 95 %"
        " interval is within it."
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
            f" {releases.sample_rate:g} of them, with secure random numbers. The measured numbers"
            " hold for the attacks that were run."
        )
    return (
        "There is no (ε, δ) guarantee. A stronger attack, other data or a later round may reveal"
        " more."
    )
