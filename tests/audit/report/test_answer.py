"""The first screen's sentences, picture, points and files, without a browser."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
import pytest

from gradveil.audit import AuditResult
from gradveil.audit.report import (
    first_sentences,
    headline,
    points_table,
    render_report,
    write_results,
)
from gradveil.audit.report._charts import (
    Figure,
    edge_of,
    error_height,
    frontier_figures,
    metrics,
)
from gradveil.audit.report._tables import rounds_table
from gradveil.audit.report._words import KNOWS_MORE, NO_FURTHER, recovered
from gradveil.scoring import Interval
from tests.audit.example_frontier import (
    bare_frontier_result,
    frontier_result,
    unreached_result,
)
from tests.audit.example_result import example_result

UNEXPLAINED = (" U1", " U2", "trace", "bare", "prior", "twin")


def figure(result: AuditResult, key: str = "attack") -> Figure:
    return frontier_figures(result)[key]


def sentences(result: AuditResult) -> list[str]:
    return [text for _, text in first_sentences(result)]


def changed(result: AuditResult, **changes: object) -> AuditResult:
    return replace(result, frontier=replace(result.frontier, **changes))  # type: ignore[arg-type]


def test_three_sentences_say_what_leaks_what_to_use_and_how_sure_it_is():
    leaks, use, sure = sentences(frontier_result())
    assert "rebuilds near copies of 15 of 16 images (0.4 % of a blind guess's error" in leaks
    assert use == (
        "Use optimal noise with scale 0.3. The strongest attack, adaptive, rebuilds at most blurred"
        " or partial images (94 % of a blind guess's error, 12.4 dB). Given 60 candidates, one who"
        " knows the rest of the batch picks the right one in 20 % of the trials (chance: 1.7 %)."
        " Training ends with a loss of 1.04 instead of 0.410 (+154 %)."
    )
    answer = frontier_result().frontier.answers[0]
    assert sure == f"{answer.rests_on} {answer.not_promised}"


def test_a_goal_before_it_that_is_missed_is_named():
    first, second, formal = frontier_result().frontier.answers
    use = sentences(changed(frontier_result(), answers=(formal, first, second)))[1]
    assert use.startswith("No setting reaches “Formal”. Use optimal noise with scale 0.3. The")


def test_a_goal_that_is_missed_is_answered_so():
    result = unreached_result()
    assert headline(result) == "No defense that was tried reaches the goal"
    assert "ε = 12.6, 4.6 above it" in sentences(result)[1]
    page = render_report(result)
    assert "not reached</span>" in page
    assert ">recommended<" not in page
    assert 'class="paste"' not in page


def test_attacks_that_find_nothing_undefended_are_called_so():
    frontier = frontier_result().frontier
    undefended = frontier.undefended
    leaks = tuple(
        replace(leak, error=Interval(1.0, 0.95, 1.1), copies=0) for leak in undefended.leaks
    )
    result = changed(frontier_result(), undefended=replace(undefended, leaks=leaks))
    first = sentences(result)[0]
    assert first.startswith(NO_FURTHER.format("adaptive, 100 % of a blind guess's error, 36.1 dB"))
    assert first.endswith(KNOWS_MORE)


def test_of_a_setting_that_no_attack_got_behind_no_more_is_said_than_that():
    """The attacks of the audit ignore public examples: one who does not may find more."""
    point = frontier_result().frontier.curves[1].points[3]
    low = Interval(1.0, 0.95, 1.05)
    safe = replace(point, leaks=tuple(replace(k, error=low, copies=0) for k in point.leaks))
    text = recovered(safe, True)
    assert text.startswith(NO_FURTHER.format("adaptive, 100 % of a blind guess's error, 12.4 dB"))
    assert text.endswith(KNOWS_MORE)
    assert "nothing" not in text


def test_plotly_accepts_every_picture():
    every = (frontier_result(), unreached_result(), bare_frontier_result(), example_result())
    for result in every:
        for drawn in frontier_figures(result).values():
            go.Figure(drawn)


def test_rounds_are_a_table_of_the_answers():
    table = rounds_table(frontier_result())
    assert [column.label for column in table.columns[1:]] == ["Round 0", "Round 20", "Round 40"]
    names = [row[0].text for row in table.rows]
    assert names[:2] == ["no defense", "optimal noise with scale 0.3"]
    point = frontier_result().frontier.curves[1].points[3]
    errors = [leak.error.mean for leak in point.leaks if leak.error]
    assert [cell.value for cell in table.rows[1][1:]] == errors


def test_without_training_there_is_no_chart():
    assert frontier_figures(bare_frontier_result()) == {}
    assert "Nothing was trained or attacked" in render_report(bare_frontier_result())


def test_points_are_drawn_at_their_loss_and_leakage_with_intervals():
    frontier = frontier_result().frontier
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
    curve = frontier_result().frontier.curves[1]
    point = curve.points[0]
    later = replace(point.leaks[2], error=Interval(0.001, 0.0, 0.002))
    worse = replace(point, leaks=(*point.leaks[:2], later))
    (metric, *_) = metrics(frontier_result())
    assert metric.value(worse) == later.error
    assert metric.value(point) == point.leaks[0].error


def test_a_training_that_diverged_is_drawn_at_the_edge_and_called_so():
    result = frontier_result()
    edge = edge_of(result)
    trace = figure(result)["data"][5]
    assert trace["x"][-1] == edge
    assert trace["marker"]["symbol"][-1] == "triangle-right"
    assert math.isfinite(sum(trace["x"]))
    table = points_table(result)
    place = [column.label for column in table.columns].index("Loss")
    assert table.rows[-1][place].text == "diverged"


def test_more_leakage_is_drawn_higher_for_every_kind():
    result = frontier_result()
    for key, drawn in frontier_figures(result).items():
        heights = drawn["data"][1]["y"]
        assert heights[0] > heights[-1], key
    errors = [0.0, 0.001, 0.1, 0.4, 0.9, 1.0, 1.5, 9.0]
    heights = [error_height(error) for error in errors]
    assert heights == sorted(heights, reverse=True)


def test_the_recommended_point_is_marked_and_named():
    rings = figure(frontier_result())["data"][-2:]
    assert [ring["text"] for ring in rings] == [["<b>recommended</b>"], [""]]
    point = frontier_result().frontier.curves[1].points[3]
    assert point.loss is not None
    assert rings[0]["x"] == [point.loss.mean]


def test_the_first_pages_use_no_words_of_the_theory():
    page = render_report(frontier_result())
    start, end = page.index('<section id="answer"'), page.index('<section id="summary"')
    shown = page[start:end]
    assert [word for word in UNEXPLAINED if word in shown] == []


def test_every_point_is_in_the_table_and_the_file(tmp_path: Path):
    result = frontier_result(size=2)
    table = points_table(result)
    assert len(table.rows) == 31
    place = [column.label for column in table.columns].index("Strength")
    strengths = [row[place].text for row in table.rows if row[0].text == "private noise"]
    assert strengths[0] == "multiplier 0.05"
    write_results(result, tmp_path)
    with (tmp_path / "points.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 31 * 3
    assert {row["round"] for row in rows} == {"0", "20", "40"}
    chosen = [row for row in rows if row["answers"] == "Attacks no better than a guess"]
    assert {row["defense"] for row in chosen} == {"optimal-noise(scale=0.3)"}
    assert float(chosen[0]["loss"]) == 1.04


def test_a_comparison_has_its_points_in_a_file(tmp_path: Path):
    result = example_result(size=2)
    write_results(result, tmp_path)
    with (tmp_path / "points.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 9
