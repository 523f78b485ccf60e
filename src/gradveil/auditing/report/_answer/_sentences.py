"""The answer in three sentences, for a reader without the theory."""

import math

from gradveil.auditing._frontier import Answer, Curve, Frontier, Point
from gradveil.auditing._result import AuditResult

from .._numbers import number, plural
from .._style import setting
from .._verdict import grade
from ._facts import Sentence, answered, main_answer, most_told, strongest_leak
from ._metrics import share

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
    "nothing": "finds nothing beyond a blind guess",
}
STILL_VALUES = {
    "copy": "still reads the values up to nearly exactly",
    "recognisable": "still recovers up to much of the values",
    "blurred": "recovers at most a part of the values",
    "nothing": "finds nothing beyond a blind guess",
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
        text = "The attacks that were run find no more than a blind guess, even without a defense"
        return f"{text}; but one who has candidates{picked}." if picked else f"{text}."
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
    return f"{under}, {_left(result, point)}{_cost(frontier, point)}."


def _missed(frontier: Frontier, answer: Answer) -> str:
    """The goals before this one that nothing reaches, and the first letter of what follows."""
    before = frontier.answers[: frontier.answers.index(answer)]
    titles = [f"“{one.title}”" for one in before if not one.reached]
    return f"No setting reaches {' or '.join(titles)}; u" if titles else "U"


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
        " the stronger)"
    )
