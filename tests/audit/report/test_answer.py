"""The first screen's sentences, picture, points and files, without a browser."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
import pytest

from gradveil.audit import AuditResult, Curve, Frontier, Point
from gradveil.audit.report import (
    KNOWS_MORE,
    dominated,
    headline,
    no_further,
    render_report,
    three_sentences,
    write_results,
)
from gradveil.audit.report._first import first_screen, machine_summary
from gradveil.audit.report._numbers import Figure
from gradveil.audit.report._picture import across, error_height, frontier_figures, metrics
from gradveil.audit.report._style import looks
from gradveil.audit.report._tables import points_table
from gradveil.scoring import Interval
from tests.audit.example_frontier import (
    bare_frontier_result,
    frontier_result,
    unreached_result,
)
from tests.audit.example_result import example_result

UNEXPLAINED = (" U1", " U2", "trace", "bare", "prior", "twin")


def frontier_of(result: AuditResult) -> Frontier:
    assert result.frontier is not None
    return result.frontier


def figure(result: AuditResult, key: str = "attack") -> Figure:
    return frontier_figures(result, frontier_of(result))[key]


def sentences(result: AuditResult) -> list[str]:
    return [sentence.text for sentence in three_sentences(result, frontier_of(result))]


def changed(result: AuditResult, **changes: object) -> AuditResult:
    return replace(result, frontier=replace(frontier_of(result), **changes))  # type: ignore[arg-type]


def test_three_sentences_say_what_leaks_what_to_use_and_how_sure_it_is():
    leaks, use, sure = sentences(frontier_result())
    assert "rebuilds near copies of the images that it was made from (15 of 16)" in leaks
    assert "picks the right image out of 60 in 100 %" in leaks
    assert use == (
        "Under optimal noise with scale 0.3, the strongest attack rebuilds at most blurred or"
        " partial images, and training ends with a loss of 1.04 instead of 0.410 (+154 %)."
    )
    assert "not proved" in sure
    assert "94 % of a blind guess's (95 % interval 81 % to 108 %)" in sure
    assert "picks the right one in 20 % of all trials (chance: 1.7 %)" in sure


def test_a_goal_before_it_that_is_missed_is_named():
    first, second, formal = frontier_of(frontier_result()).answers
    use = sentences(changed(frontier_result(), answers=(formal, first, second)))[1]
    assert use.startswith("No setting reaches “Formal”; under optimal noise with scale 0.3, the")


def test_a_formal_promise_is_said_with_its_terms():
    frontier = frontier_of(frontier_result())
    private = frontier.curves[-1]
    answer = replace(
        frontier.answers[0], name=private.name, defense=private.points[2].defense, reached=True
    )
    sure = sentences(changed(frontier_result(), answers=(answer,)))[2]
    assert "promised against every attacker is differential privacy with ε = 61.4" in sure
    assert "100 rounds (δ = 1e-05; the smaller ε, the stronger)" in sure


def test_a_goal_that_is_missed_is_answered_so():
    result = unreached_result()
    assert headline(result, frontier_of(result)) == "No defense that was tried reaches the goal"
    assert "ε = 12.6, 4.6 above it" in sentences(result)[1]
    page = render_report(result)
    assert "not reached</span>" in page
    assert ">recommended<" not in page
    assert 'class="paste"' not in page


def test_attacks_that_find_nothing_undefended_are_called_so():
    frontier = frontier_of(frontier_result())
    undefended = frontier.undefended
    leaks = tuple(replace(leak, error=Interval(1.0, 0.9, 1.1)) for leak in undefended.leaks)
    result = changed(frontier_result(), undefended=replace(undefended, leaks=leaks))
    first = sentences(result)[0]
    assert first.startswith(
        f"Even without a defense {no_further('adaptive')}. {KNOWS_MORE} One who"
    )


def test_of_a_setting_that_no_attack_got_behind_no_more_is_said_than_that():
    """The attacks of the audit ignore public examples: one who does not may find more."""
    result = frontier_result()
    frontier = frontier_of(result)
    low = Interval(1.0, 0.95, 1.05)
    curves = tuple(
        replace(
            curve,
            points=tuple(
                replace(p, leaks=tuple(replace(k, error=low, copies=0) for k in p.leaks))
                for p in curve.points
            ),
        )
        for curve in frontier.curves
    )
    second = sentences(changed(result, curves=curves))[1]
    assert no_further("adaptive") in second
    assert second.endswith(KNOWS_MORE)
    assert "nothing" not in second


def test_dominated_defenses_are_named_with_the_better_one():
    assert "noise (by optimal noise), pruning (by optimal pruning)" in dominated(
        frontier_of(frontier_result())
    )
    free = tuple(replace(c, dominated_by="") for c in frontier_of(frontier_result()).curves)
    assert dominated(frontier_of(changed(frontier_result(), curves=free))) == ""


def test_plotly_accepts_every_picture():
    for result in (frontier_result(), unreached_result(), bare_frontier_result()):
        screen = first_screen(result)
        assert screen is not None
        for drawn in (*screen.figures.values(), *([screen.rounds] if screen.rounds else [])):
            go.Figure(drawn)
    assert first_screen(example_result()) is None


def test_points_are_drawn_at_their_loss_and_leakage_with_intervals():
    frontier = frontier_of(frontier_result())
    trace = figure(frontier_result())["data"][1]
    curve = frontier.curves[1]
    losses, errors = zip(*((p.loss, p.leaks[0].error) for p in curve.points), strict=True)
    assert trace["name"] == curve.name
    assert trace["x"] == [loss.mean for loss in losses]
    assert trace["y"] == [error_height(error.mean) for error in errors]
    low = [y - d for y, d in zip(trace["y"], trace["error_y"]["arrayminus"], strict=True)]
    assert low == pytest.approx([error_height(error.high) for error in errors])
    ticks = figure(frontier_result())["layout"]["yaxis"]
    named = dict(zip(ticks["ticktext"], ticks["tickvals"], strict=True))
    assert named["40 %"] == error_height(0.4)


def test_the_worst_moment_counts():
    curve = frontier_of(frontier_result()).curves[1]
    point = curve.points[0]
    later = replace(point.leaks[2], error=Interval(0.001, 0.0, 0.002))
    worse = replace(point, leaks=(*point.leaks[:2], later))
    (metric, *_) = metrics(frontier_of(frontier_result()), True)
    assert metric.value(worse) == later.error
    assert metric.value(point) == point.leaks[0].error


def test_a_training_that_diverged_is_drawn_at_the_edge_and_called_so():
    result = frontier_result()
    edge = across(frontier_of(result)).edge
    trace = figure(result)["data"][5]
    assert trace["x"][-1] == edge
    assert trace["marker"]["symbol"][-1] == "triangle-right"
    assert math.isfinite(sum(trace["x"]))
    table = points_table(result, frontier_of(result))
    place = [column.label for column in table.columns].index("Loss")
    assert table.rows[-1][place].text == "diverged"


def test_more_leakage_is_drawn_higher_for_every_kind():
    result = frontier_result()
    for key, drawn in frontier_figures(result, frontier_of(result)).items():
        heights = drawn["data"][1]["y"]
        assert heights[0] > heights[-1], key
    errors = [0.0, 0.001, 0.1, 0.4, 0.9, 1.0, 1.5, 9.0]
    heights = [error_height(error) for error in errors]
    assert heights == sorted(heights, reverse=True)


def test_the_recommended_point_is_marked_and_named():
    rings = figure(frontier_result())["data"][-2:]
    assert [ring["text"] for ring in rings] == [["<b>recommended</b>"], [""]]
    point = frontier_of(frontier_result()).curves[1].points[3]
    assert point.loss is not None
    assert rings[0]["x"] == [point.loss.mean]


def test_curves_and_their_details_share_a_look():
    styles = looks(frontier_result())
    assert styles["noise"].color == styles["optimal noise"].color
    assert (styles["noise"].filled, styles["optimal noise"].filled) == (False, True)
    own = Curve("mine", "own", "", "", (Point("mine", None, (), None, None),))
    assert looks(changed(frontier_result(), curves=(own,)))["mine"].filled


def test_the_first_pages_use_no_words_of_the_theory():
    page = render_report(frontier_result())
    start, end = page.index('<section id="answer"'), page.index('<section id="summary"')
    shown = page[start:end]
    assert [word for word in UNEXPLAINED if word in shown] == []


def test_every_point_is_in_the_table_the_file_and_the_summary(tmp_path: Path):
    result = frontier_result(size=2)
    assert len(points_table(result, frontier_of(result)).rows) == 31
    write_results(result, tmp_path)
    with (tmp_path / "points.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 31 * 3
    assert {row["round"] for row in rows} == {"0", "20", "40"}
    chosen = [row for row in rows if row["answers"] == "Attacks no better than a guess"]
    assert {row["defense"] for row in chosen} == {"optimal-noise(scale=0.3)"}
    assert float(chosen[0]["loss"]) == 1.04
    assert len(machine_summary(result)["points"]) == len(rows)


def test_a_comparison_has_a_summary_for_machines_and_no_points_file(tmp_path: Path):
    result = example_result(size=2)
    write_results(result, tmp_path)
    assert not (tmp_path / "points.csv").exists()
    assert len(machine_summary(result)["points"]) == len(result.rows())
    assert machine_summary(result)["answers"] == []
