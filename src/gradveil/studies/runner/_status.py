"""How far the studies are, and how long the rest will take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ._cell import Cell
from ._store import Progress

Work = Mapping[str, Sequence[Cell]]
"""The cells of each study, by its name."""


@dataclass(frozen=True)
class StudyStatus:
    """Cells of one study by state, and the seconds its unfinished ones will take one by one."""

    name: str
    total: int
    done: int
    running: int
    failed: int
    remaining: int
    seconds: float | None


def study_status(work: Work, progress: Mapping[Cell, Progress]) -> list[StudyStatus]:
    """The status of each study."""
    costs = _Costs(work, progress)
    return [_status(name, cells, progress, costs) for name, cells in work.items()]


def total_status(work: Work, progress: Mapping[Cell, Progress]) -> StudyStatus:
    """The status of all studies, with cells that several of them share counted once."""
    costs = _Costs(work, progress)
    return _status("total", distinct_cells(work), progress, costs)


def distinct_cells(work: Work) -> list[Cell]:
    """Every cell once, study by study."""
    return list(dict.fromkeys(cell for cells in work.values() for cell in cells))


def duration_text(seconds: float | None) -> str:
    """A duration to read.

    >>> duration_text(None), duration_text(42.4), duration_text(3700)
    ('unknown', '42 s', '1 h 02 min')
    """
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


class _Costs:
    """Measured seconds of a cell: the mean of its study and kind, of its kind, or of all."""

    def __init__(self, work: Work, progress: Mapping[Cell, Progress]) -> None:
        self._study = {cell: name for name, cells in work.items() for cell in cells}
        measured: dict[object, list[float]] = {}
        for cell in self._study:
            if progress[cell].state == "done" and progress[cell].seconds is not None:
                for group in self._groups(cell):
                    measured.setdefault(group, []).append(progress[cell].seconds or 0.0)
        self._means = {group: fmean(seconds) for group, seconds in measured.items()}

    def of(self, cell: Cell) -> float | None:
        return next((self._means[g] for g in self._groups(cell) if g in self._means), None)

    def _groups(self, cell: Cell) -> list[object]:
        return [(self._study[cell], cell.kind), cell.kind, None]


def _status(
    name: str, cells: Sequence[Cell], progress: Mapping[Cell, Progress], costs: _Costs
) -> StudyStatus:
    distinct = list(dict.fromkeys(cells))
    counts = dict.fromkeys(("done", "running", "failed", "pending"), 0)
    for cell in distinct:
        counts[progress[cell].state] += 1
    open_cells = [cell for cell in distinct if progress[cell].state in ("pending", "running")]
    return StudyStatus(
        name,
        len(distinct),
        counts["done"],
        counts["running"],
        counts["failed"],
        counts["pending"],
        _sum(costs.of(cell) for cell in open_cells),
    )


def _sum(seconds: Iterable[float | None]) -> float | None:
    """The sum, unknown if one of them is."""
    total = 0.0
    for each in seconds:
        if each is None:
            return None
        total += each
    return total
