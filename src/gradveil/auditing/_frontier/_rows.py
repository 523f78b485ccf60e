"""A frontier as flat rows, as in points.csv."""

from typing import Any

from gradveil.scoring import Interval

from ._outcome import Frontier, Leak, Point


def point_rows(frontier: Frontier) -> list[dict[str, Any]]:
    """One row for each moment at which a point was attacked; one without attacks for the others."""
    nothing = {"name": "no defense", "family": "", "plan": "", "dominated_by": ""}
    pairs = [(nothing, frontier.undefended)]
    for curve, point in frontier.points():
        names = ("name", "family", "plan", "dominated_by")
        pairs.append(({name: getattr(curve, name) for name in names}, point))
    answers = {
        spec: [answer.title for answer in frontier.answers if answer.defense == spec]
        for _, point in pairs
        for spec in [point.defense]
    }
    return [
        {**names, **_point(point), "answers": "; ".join(answers[point.defense]), **_leak(leak)}
        for names, point in pairs
        for leak in point.leaks or (None,)
    ]


def _point(point: Point) -> dict[str, Any]:
    return {
        "defense": point.defense,
        "amount": point.amount,
        **_ends("loss", point.loss),
        **_ends("extra_loss", point.extra_loss),
        **_ends("accuracy", point.accuracy),
        "bound": point.bound,
        "bound_holds": point.bound_holds,
        "epsilon": point.epsilon,
    }


def _leak(leak: Leak | None) -> dict[str, Any]:
    told = leak.told_apart if leak else None
    return {
        "round": leak.round if leak else None,
        "attack": leak.attack if leak else None,
        "knows_defense": leak.knows_defense if leak else None,
        **_ends("error", leak.error if leak else None),
        **_ends("psnr", leak.psnr if leak else None),
        "candidates": told.candidates if told else None,
        **_ends("told_apart_rate", told.rate if told else None),
        **_ends("told_apart_bits", told.bits if told else None),
        "copies": leak.copies if leak else None,
        "examples": leak.examples if leak else None,
    }


def _ends(name: str, value: Interval | None) -> dict[str, Any]:
    ends = {"": "mean", "_low": "low", "_high": "high"}
    return {f"{name}{end}": getattr(value, part, None) for end, part in ends.items()}
