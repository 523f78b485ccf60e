"""Drawers: every figure from whole, partial and no results, with units and without leftovers."""

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from paper import figures
from paper.reproduce import STUDIES
from tests.paper.synthetic import synthetic_results

ALL = pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
IMAGES = ("mnist-noise-images", "cifar-pruning-images", "mnist-layer-table")


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved, without rendering them."""
    found = []
    monkeypatch.setattr(figures, "save", lambda made, stem: found.append(made))
    return found


@ALL
def test_every_figure_has_labels_with_units_and_a_legend(study, drawn, tmp_path):
    study.draw(study.numbers(synthetic_results(study.cells("quick"))), tmp_path / study.name)
    (made,) = drawn
    if study.name in IMAGES:
        return
    assert any(axis.get_ylabel() or axis.get_yticklabels() for axis in made.axes)
    assert all(axis.get_xlabel() or made._supxlabel or axis.get_xticklabels() for axis in made.axes)
    legends = [axis.get_legend() for axis in made.axes if axis.get_legend()] + made.legends
    assert legends or study.name == "fedavg"


@ALL
def test_no_legend_is_cut_off(study, drawn, tmp_path):
    study.draw(study.numbers(synthetic_results(study.cells("quick"))), tmp_path / study.name)
    (made,) = drawn
    made.draw_without_rendering()
    for legend in [axis.get_legend() for axis in made.axes if axis.get_legend()] + made.legends:
        place = legend.get_window_extent()
        margin = 0.005 * made.bbox.width
        assert place.x0 >= margin
        assert place.x1 <= made.bbox.width - margin


@ALL
def test_figures_are_drawn_from_parts_and_from_nothing(study, drawn, tmp_path):
    results = synthetic_results(study.cells("quick"))
    part = dict([*results.items()][: max(1, len(results) // 4)])
    for some in (part, {}):
        study.draw(study.numbers(some), tmp_path / study.name)
    assert len(drawn) == 2


@pytest.mark.slow
def test_files_are_whole_and_the_same_twice(tmp_path):
    study = STUDIES["mnist-pruning"]
    table = study.numbers(synthetic_results(study.cells("quick")))
    before = dict(matplotlib.rcParams)
    contents = []
    for _ in range(2):
        study.draw(table, tmp_path / "figure")
        contents.append([(tmp_path / f"figure.{s}").read_bytes() for s in ("png", "pdf")])
    assert contents[0] == contents[1]
    assert contents[0][0].startswith(b"\x89PNG")
    assert contents[0][1].startswith(b"%PDF")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["figure.pdf", "figure.png"]
    assert dict(matplotlib.rcParams) == before


def test_colours_of_a_pair_differ_in_lightness_or_marker():
    for classical, optimal in (
        ("gradient-pruning", "optimal-pruning"),
        ("clamped-noise", "optimal-clamped-noise"),
    ):
        looks = figures.LOOKS[classical], figures.LOOKS[optimal]
        assert all(looks[0][part] != looks[1][part] for part in ("color", "marker"))


def test_curves_aside_have_the_limits_of_curves_in_place():
    rows = [{"level": x, "mean": x, "low": 0.5 * x, "high": 2 * x} for x in (1.0, 3.0)]
    limits, places = [], []
    for aside in (0.0, 5.0):
        made = Figure(figsize=(4, 3))
        FigureCanvasAgg(made)
        axis = made.subplots()
        figures.curve(axis, rows, "curve", aside=aside)
        limits.append((axis.get_xlim(), axis.get_ylim()))
        line = axis.containers[0].lines[0]
        places.append(line.get_transform().transform((1.0, 1.0))[0])
    assert limits[0] == limits[1]
    assert places[1] - places[0] == pytest.approx(5 / 72 * made.dpi)
