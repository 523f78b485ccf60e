"""The first screen of a report: the answer in three sentences, and for machines."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradveil.catalog import shown_name

from .._result import Answer, AuditResult, Curve, Frontier, Point
from ._facts import answered, main_answer, most_told, share, strongest_leak
from ._gallery import Strip, first_strips
from ._numbers import Figure, number, plural
from ._picture import (
    Metric,
    across,
    beyond_edge,
    frontier_figures,
    metrics,
    rounds_figure,
    rounds_legend,
)
from ._style import Look, looks, setting
from ._tables import Table, candidates, points_table
from ._verdict import KNOWS_MORE, grade, no_further


class Sentence(NamedTuple):
    """One of the sentences of the first screen, with what it answers."""

    asks: str
    text: str


REBUILT = {
    "copy": "rebuilds near copies of the images that it was made from",
    "recognisable": "rebuilds recognisable images of those that it was made from",
    "blurred": "rebuilds blurred or partial images of those that it was made from",
}
READ = {
    "copy": "reads the values that it was made from nearly exactly",
    "recognisable": "recovers much of the values that it was made from",
    "blurred": "recovers a part of the values that it was made from",
}


STILL = {
    "copy": "still rebuilds up to near copies of the images",
    "recognisable": "still rebuilds up to recognisable images",
    "blurred": "rebuilds at most blurred or partial images",
}
STILL_VALUES = {
    "copy": "still reads the values up to nearly exactly",
    "recognisable": "still recovers up to much of the values",
    "blurred": "recovers at most a part of the values",
}
"""By the worse end of the interval: what cannot be excluded is said."""


def headline(result: AuditResult, frontier: Frontier) -> str:
    """The answer as a heading."""
    answer = main_answer(frontier)
    if answer is None:
        return "What leaks, and what it costs to prevent it"
    if not answer.reached:
        return "No defense that was tried reaches the goal"
    amount = setting(answer.defense)
    return f"Use {answer.name}" + ("" if amount == "-" else f" with {amount}")


def three_sentences(result: AuditResult, frontier: Frontier) -> list[Sentence]:
    """What leaks without a defense, what to use, and how sure that is."""
    answer = main_answer(frontier)
    found = [Sentence("Without a defense", _undefended(result, frontier))]
    if answer is None:
        return [*found, Sentence("How sure this is", _measured_only())]
    asks = "Recommended" if answer.reached else "Not reached"
    found.append(Sentence(asks, _use(result, frontier, answer)))
    return [*found, Sentence("How sure this is", _sure(result, frontier, answer))]


def dominated(frontier: Frontier) -> str:
    """Which defenses another one beats at every strength; empty if none."""
    beaten = [c for c in frontier.curves if c.dominated_by]
    names = [f"{curve.name} (by {curve.dominated_by})" for curve in beaten]
    if not names:
        return ""
    return f"Never the best choice here, another costs less at equal leakage: {', '.join(names)}."


def _undefended(result: AuditResult, frontier: Frontier) -> str:
    leak, told = strongest_leak(frontier.undefended), most_told(frontier.undefended)
    picked = ""
    if told is not None:
        one = "image" if result.setup.is_image else "example"
        picked = (
            f" picks the right {one} out of {told.candidates} in {share(told.rate.mean)} of all"
            " trials"
        )
    if leak is None or leak.error is None:
        return f"Whoever reads a message{picked}." if picked else "No attack was run."
    level = grade(leak.error.mean)
    if level == "nothing":
        text = f"Even without a defense {no_further(shown_name(leak.attack))}. {KNOWS_MORE}"
        return f"{text} One who has candidates{picked}." if picked else text
    words = (REBUILT if result.setup.is_image else READ)[level]
    count = f" ({leak.copies} of {leak.examples})" if level == "copy" and leak.copies else ""
    picked = f", and{picked}" if picked else ""
    return f"Whoever reads an undefended message {words}{count}{picked}."


def _use(result: AuditResult, frontier: Frontier, answer: Answer) -> str:
    """One sentence on the setting; the answer's own words where it was not measured or missed."""
    found = answered(frontier, answer)
    if not answer.reached:
        return answer.shortfall or answer.sentence
    if found is None:
        return answer.sentence
    curve, point = found
    amount = setting(point.defense)
    with_amount = "" if amount == "-" else f" with {amount}"
    under = f"{_missed(frontier, answer)}nder {curve.name}{with_amount}"
    text = f"{under}, {_left(result, point)}{_cost(frontier, point)}."
    return f"{text} {KNOWS_MORE}" if _no_further(point) else text


def _missed(frontier: Frontier, answer: Answer) -> str:
    """The goals before this one that nothing reaches, and the first letter of what follows."""
    before = frontier.answers[: frontier.answers.index(answer)]
    titles = [f"“{one.title}”" for one in before if not one.reached]
    return f"No setting reaches {' or '.join(titles)}; u" if titles else "U"


def _no_further(point: Point) -> bool:
    """Whether no attack can be shown to beat a blind guess, by the worse end of the interval."""
    leak = strongest_leak(point)
    if leak is None or leak.error is None or leak.copies:
        return False
    return grade(leak.error.low) == "nothing"


def _left(result: AuditResult, point: Point) -> str:
    """What the strongest attack gets."""
    leak = strongest_leak(point)
    if leak is None or leak.error is None:
        return "nothing was attacked"
    what = "images" if result.setup.is_image else "examples"
    if leak.copies:
        return (
            f"the strongest attack rebuilds near copies of {leak.copies} of {leak.examples} {what}"
        )
    if _no_further(point):
        return no_further(shown_name(leak.attack))
    outcome = STILL if result.setup.is_image else STILL_VALUES
    return f"the strongest attack {outcome[grade(leak.error.low)]}"


def _cost(frontier: Frontier, point: Point) -> str:
    """What training loses."""
    plain = frontier.undefended.loss
    if point.loss is None:
        return ""
    if not math.isfinite(point.loss.mean):
        return ", but training fails"
    instead = f" instead of {number(plain.mean)}" if plain else ""
    extra = f" ({100 * point.extra_loss.mean:+.0f} %)" if point.extra_loss else ""
    return f", and training ends with a loss of {number(point.loss.mean)}{instead}{extra}"


def _sure(result: AuditResult, frontier: Frontier, answer: Answer) -> str:
    found = answered(frontier, answer)
    if found is None:
        return _measured_only()
    curve, point = found
    measured = _measured(result, point)
    if point.epsilon is None:
        return f"{measured}; nothing is promised against a stronger attack{_recognised(point)}."
    return f"{measured}; {_promise(frontier, curve, point)}."


def _measured_only() -> str:
    return "This was measured with the attacks that were run; a stronger one may find more."


def _measured(result: AuditResult, point: Point) -> str:
    leak = strongest_leak(point)
    if leak is None or leak.error is None:
        return "This was not attacked"
    error, what = leak.error, "image" if result.setup.is_image else "example"
    return (
        f"This is measured on {plural(leak.examples, what)}, not proved: the error of the strongest"
        f" attack is {share(error.mean)} of a blind guess's (95 % interval {share(error.low)} to"
        f" {share(error.high)})"
    )


def _recognised(point: Point) -> str:
    """Nothing to see is not nobody to recognise."""
    told = most_told(point)
    if told is None or told.rate.low <= told.chance:
        return ""
    return (
        f", and who is given {told.candidates} candidates still picks the right one in"
        f" {share(told.rate.mean)} of all trials (chance: {share(told.chance)})"
    )


def _promise(frontier: Frontier, curve: Curve, point: Point) -> str:
    return (
        f"promised against every attacker is differential privacy with ε = {number(point.epsilon)}"
        f" over {plural(frontier.epsilon_rounds, 'round')} (δ = {frontier.delta:g}; the smaller ε,"
        " the stronger), if the noise is secret"
    )


SCHEMA = "gradveil-audit-summary/1"


def machine_summary(result: AuditResult) -> dict[str, Any]:
    """What was audited, the answers, and one row for each point, or each defense and attack.

    Numbers that JSON does not have (infinite, undefined) are null.
    """
    setup, frontier = result.setup, result.frontier
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "date": setup.date,
        "versions": setup.versions,
        "model": setup.model,
        "weights": setup.weights,
        "data": setup.data,
        "command": setup.command,
        "complete": result.complete,
    }
    if frontier is None:
        found |= {"answers": [], "points": result.rows()}
    else:
        answers = [dataclasses.asdict(answer) for answer in frontier.answers]
        found |= {"answers": answers, "points": frontier.rows()}
    plain: dict[str, Any] = _plain(found)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Screen:
    """The first screen and what follows it."""

    headline: str
    sentences: list[Sentence]
    dominated: str
    answer: Answer | None
    """The recommended one."""
    metrics: list[Metric]
    """The switch."""
    figures: dict[str, Figure]
    rounds: Figure | None
    rounds_legend: list[tuple[str, Look]]
    strips: list[Strip]
    points: Table
    looks: dict[str, Look]
    candidates: int | None
    trained: bool
    edge: bool
    """Whether points are drawn at the right edge because their loss is beyond it."""
    frontier: Frontier


def first_screen(result: AuditResult) -> Screen | None:
    """`None` for a comparison at one point each."""
    frontier = result.frontier
    if frontier is None or frontier.is_comparison:
        return None
    return Screen(
        headline=headline(result, frontier),
        sentences=three_sentences(result, frontier),
        dominated=dominated(frontier),
        answer=main_answer(frontier),
        metrics=metrics(frontier, result.setup.is_image),
        figures=frontier_figures(result, frontier),
        rounds=rounds_figure(result, frontier),
        rounds_legend=rounds_legend(result, frontier),
        strips=first_strips(result, frontier),
        points=points_table(result, frontier),
        looks=looks(result),
        candidates=candidates(frontier),
        trained=across(frontier).trained,
        edge=any(beyond_edge(frontier, point) for _, point in frontier.points()),
        frontier=frontier,
    )
