"""Labels of points and curves that are drawn aside."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from paper.figures import Note, apart, label_points, level_curve, overlap


@pytest.fixture
def axis():
    made = Figure(figsize=(4, 3))
    FigureCanvasAgg(made)
    return made.subplots()


def test_boxes_that_touch_do_not_overlap():
    assert overlap((0, 0, 2, 2), (1, 1, 3, 3))
    assert not overlap((0, 0, 2, 2), (2, 0, 3, 2))
    assert not overlap((0, 0, 2, 2), (0, 3, 2, 4))


def test_labels_of_near_points_do_not_cover_each_other(axis):
    axis.set(xlim=(0, 1), ylim=(0, 1))
    notes = [Note(0.5 + 0.02 * k, 0.5 + 0.01 * k, f"{70 + 10 * k}%", "black") for k in range(4)]
    label_points(axis, notes)
    renderer = axis.figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in axis.texts]
    assert len(boxes) >= 3
    extents = [(b.x0, b.y0, b.x1, b.y1) for b in boxes]
    pairs = [(a, b) for k, a in enumerate(extents) for b in extents[k + 1 :]]
    assert not any(overlap(a, b) for a, b in pairs)


@pytest.mark.parametrize(("x", "y"), [(0.02, 0.5), (0.98, 0.5), (0.5, 0.02), (0.5, 0.98)])
def test_no_label_leaves_the_axes(axis, x, y):
    """Not even that of the last of several points, when the better places are taken."""
    axis.set(xlim=(0, 1), ylim=(0, 1))
    label_points(axis, [Note(x, y, "0.0001", "black")] * 8)
    renderer = axis.figure.canvas.get_renderer()
    inside = axis.get_window_extent(renderer).padded(1)
    assert axis.texts
    for text in axis.texts:
        box = text.get_window_extent(renderer)
        assert inside.containsx(box.x0)
        assert inside.containsx(box.x1)
        assert inside.containsy(box.y0)
        assert inside.containsy(box.y1)


def test_a_label_without_a_place_is_left_out(axis):
    axis.set(xlim=(0, 1), ylim=(0, 1))
    label_points(axis, [Note(0.5, 0.5, "0.0001", "black")] * 30)
    assert 2 <= len(axis.texts) < 30


def test_curves_aside_have_the_limits_of_curves_in_place():
    assert [apart(place, 3, points=2.0) for place in range(3)] == [-2.0, 0.0, 2.0]
    rows = [{"level": x, "mean": x, "low": 0.5 * x, "high": 2 * x} for x in (1.0, 3.0)]
    limits, places = [], []
    for aside in (0.0, 5.0):
        made = Figure(figsize=(4, 3))
        FigureCanvasAgg(made)
        axis = made.subplots()
        level_curve(axis, rows, "curve", aside=aside)
        limits.append((axis.get_xlim(), axis.get_ylim()))
        line = axis.containers[0].lines[0]
        places.append(line.get_transform().transform((1.0, 1.0))[0])
    assert limits[0] == limits[1]
    assert places[1] - places[0] == pytest.approx(5 / 72 * made.dpi)
