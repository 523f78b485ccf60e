"""Everything that the templates need for an audit over strengths."""

from dataclasses import dataclass

from gradveil.auditing._frontier import Answer, Frontier
from gradveil.auditing._result import AuditResult

from .._gallery import Strip
from .._layout import Figure
from .._style import Look, looks
from .._tables import Table
from ._axes import across, beyond_edge
from ._facts import Sentence, main_answer
from ._metrics import Metric, metrics
from ._picture import frontier_figures
from ._points import candidates, points_table
from ._rounds import rounds_figure, rounds_legend
from ._sentences import dominated, headline, three_sentences
from ._strips import first_strips


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
    if frontier is None:
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
