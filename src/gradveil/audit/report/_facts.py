"""Which answer, point and moment of a frontier the report speaks of."""

from .._result import Answer, Curve, Frontier, Leak, Point, ToldApart


def main_answer(frontier: Frontier) -> Answer | None:
    """The first that is reached; the first of all if none is; `None` without answers."""
    reached = (answer for answer in frontier.answers if answer.reached)
    return next(reached, next(iter(frontier.answers), None))


def answered(frontier: Frontier, answer: Answer | None) -> tuple[Curve, Point] | None:
    """The measured point of an answer with its curve."""
    if answer is None or not answer.defense:
        return None
    same = [pair for pair in frontier.points() if pair[1].defense == answer.defense]
    named = [pair for pair in same if pair[0].name == answer.name]
    return next(iter(named or same), None)


def strongest_leak(point: Point) -> Leak | None:
    """The moment at which the strongest attack left the least error."""
    known = [leak for leak in point.leaks if leak.error is not None]
    return min(known, key=lambda leak: leak.error.mean if leak.error else 0.0, default=None)


def most_told(point: Point) -> ToldApart | None:
    """The moment at which candidates are told apart most often."""
    known = [leak.told_apart for leak in point.leaks if leak.told_apart]
    return max(known, key=lambda told: told.rate.mean, default=None)


def pictured_leak(point: Point) -> Leak | None:
    """The strongest moment of those that have pictures."""
    known = [leak for leak in point.leaks if leak.pictures]
    return min(known, key=lambda leak: leak.error.mean if leak.error else 0.0, default=None)


def share(value: float) -> str:
    """A share in percent, short: for axes and sentences.

    >>> [share(value) for value in (0.0, 1e-8, 0.01, 0.0167, 0.808, 1.08, 10.0)]
    ['0 %', '< 0.01 %', '1 %', '1.7 %', '81 %', '108 %', '1,000 %']
    """
    percents = 100 * value
    if 0 < percents < 0.01:
        return "< 0.01 %"
    return f"{percents:,.0f} %" if percents >= 9.95 else f"{percents:.2g} %"
