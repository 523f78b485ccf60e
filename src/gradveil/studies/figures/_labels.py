"""Labels of points that do not cover each other."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""

SIZE = 6.5
"""Of the letters, in points."""
WIDE, HIGH = 0.82, 1.4
"""Of a letter and of a line, over the size: enough for digits, points and percent signs."""


class Note(NamedTuple):
    """A point, and what is written beside it."""

    x: float
    y: float
    text: str
    colour: str


def label_points(axis: "Axes", notes: Sequence[Note], reach: float = 6.0) -> None:
    """Write beside each point, at the first place that no point and no label before it has.

    The places are around the point, near ones first, and within the axes, so that no label covers
    the ticks'. Call it when all else is drawn, because the limits of the axes have to be final;
    the layout may still change their size a little. A label that has no free place is left out: the
    points' sizes, or their order on the curve, tell the rest.
    """
    figure = axis.get_figure()
    assert figure is not None
    inches = axis.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    wide, high = 72 * inches.width, 72 * inches.height
    to_axes = axis.transData + axis.transAxes.inverted()
    places = [(wide * a, high * b) for a, b in to_axes.transform([(n.x, n.y) for n in notes])]
    taken = [(x - reach / 2, y - reach / 2, x + reach / 2, y + reach / 2) for x, y in places]
    for note, (x, y) in zip(notes, places, strict=True):
        size = WIDE * SIZE * len(note.text), HIGH * SIZE
        for dx, dy in _places(size, reach):
            box = (x + dx, y + dy, x + dx + size[0], y + dy + size[1])
            within = min(box[:2]) >= 0 and box[2] <= wide and box[3] <= high
            if within and not any(overlap(box, other) for other in taken):
                taken.append(box)
                axis.annotate(
                    note.text,
                    (note.x, note.y),
                    xytext=(dx, dy),
                    textcoords="offset points",
                    fontsize=SIZE,
                    color=note.colour,
                    va="bottom",
                    bbox={"facecolor": "white", "alpha": 0.75, "pad": 0.2, "linewidth": 0},
                )
                break


def overlap(one: Box, other: Box) -> bool:
    """Whether two boxes have a point in common."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _places(size: tuple[float, float], reach: float) -> list[tuple[float, float]]:
    """Lower left corners of a label around its point: right and left, above and below."""
    wide, high = size
    near = [(reach * k, y) for k in (1, 2) for y in (reach * k / 2, -high - reach * k / 2)]
    return [each for x, y in near for each in ((x, y), (-wide - x, y))]
