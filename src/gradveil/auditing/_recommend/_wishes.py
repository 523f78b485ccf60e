"""The levels that are solved for where no goal is given."""

from collections.abc import Sequence

from ._goal import Goal
from ._solve import Wish

EPSILON = 8.0
"""Of the formal level."""


def wishes_of(goals: Sequence[Goal], can_judge: bool) -> list[Wish]:
    """The goals, to be met at once, or three levels: nothing, blurred, formal.

    Where the attacks cannot judge the model, the first two are those of the exact attacker.
    """
    if goals:
        return [Wish(" and ".join(map(str, goals)), tuple(goals))]
    nothing, blurred = Goal("error", 0.9), Goal("error", 0.4)
    if not can_judge:
        nothing, blurred = Goal("identified", 0.1), Goal("identified", 0.5)
    names = ("Nothing recognisable", "Blurred at most")
    if not can_judge:
        names = ("Hardly anyone identified", "At most every second identified")
    formal = Wish("Formal: differential privacy", (Goal("epsilon", EPSILON),))
    return [Wish(names[0], (nothing,)), Wish(names[1], (blurred,)), formal]
