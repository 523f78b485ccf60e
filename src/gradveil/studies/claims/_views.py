"""Parts of a study's cells that claims look at as if they were studies of their own."""

from collections.abc import Callable, Mapping

from gradveil.studies.runner import Cell, StoreResults
from gradveil.studies.shared import NO_PLAN, PRIVATE, PUBLIC, contender_of, plain_kinds

PUBLIC_PLANS = "frontier, plans from public examples"
PRIVATE_PLANS = "frontier, plans from the private batch"
PHOTO_PLANS = "cifar-frontier, as attacks and trainings"
AWARE_BOUND = "bound-against-attacks, the attack that knows the defense"


def _planned_from(plan: str) -> Callable[[Cell], bool]:
    return lambda cell: contender_of(cell.settings)[1] in (NO_PLAN, plan)


VIEWS: Mapping[str, tuple[str, Callable[[Cell], bool]]] = {
    PUBLIC_PLANS: ("frontier", _planned_from(PUBLIC)),
    PRIVATE_PLANS: ("frontier", _planned_from(PRIVATE)),
    PHOTO_PLANS: ("cifar-frontier", _planned_from(PUBLIC)),
    AWARE_BOUND: (
        "bound-against-attacks",
        lambda cell: cell.kind != "attack" or cell.settings["mechanism"] == "known",
    ),
}
"""The study of each view, and which of its cells the view has."""


def with_views(results: StoreResults) -> StoreResults:
    """The results of all studies and views by name, in one order, however a store gave them.

    Sums of floats depend on their order in the last digit, and claims should not.
    """
    ordered = {
        name: {cell: cells[cell] for cell in sorted(cells, key=lambda c: (c.kind, c.text))}
        for name, cells in results.items()
    }
    views = {
        name: plain_kinds({c: result for c, result in ordered.get(study, {}).items() if has(c)})
        for name, (study, has) in VIEWS.items()
    }
    return {**ordered, **views}
