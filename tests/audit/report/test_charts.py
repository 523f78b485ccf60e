"""The charts' data: what is drawn where."""

from dataclasses import replace

import plotly.graph_objects as go
import pytest

from gradveil.audit._result import AuditResult
from gradveil.audit.report._charts import (
    FLOOR,
    LOSS,
    MSE,
    PSNR,
    all_cost_curves,
    cost_curves,
    tradeoff,
    tradeoff_views,
    utility_axes,
)
from gradveil.audit.report._numbers import Figure, estimate, number
from gradveil.audit.report._style import BOUND, looks, marks
from gradveil.scoring import Interval
from tests.audit.example_result import example_result, tabular_result, unattacked_result


def traces(figure: Figure) -> dict[tuple[str, str], Figure]:
    return {(t["meta"]["defense"], t["meta"]["mark"]): t for t in figure["data"]}


def with_history(result: AuditResult, history: tuple[tuple[int, float], ...]) -> AuditResult:
    defense = result.defenses[0]
    attacks = tuple(
        replace(a, runs=tuple(replace(run, history=history) for run in a.runs))
        for a in defense.attacks
    )
    return replace(result, defenses=(replace(defense, attacks=attacks),))


def test_plotly_accepts_every_figure():
    result = example_result()
    figures = [view.figure for view in tradeoff_views(result)] + [*all_cost_curves(result).values()]
    assert len(figures) == 3 * 2 + 2
    for figure in figures:
        go.Figure(figure)


def test_marks_are_at_the_numbers_of_the_result():
    found = traces(tradeoff(example_result(), LOSS, MSE))
    for defense in example_result().defenses:
        assert ((defense.name, BOUND) in found) == (defense.bound is not None)
        assert defense.training is not None
        for attack in defense.attacks:
            trace = found[defense.name, attack.attack]
            assert trace["x"] == [defense.training.loss_after.mean]
            if defense.is_undefended:  # may lie beyond the edge
                continue
            assert trace["y"] == [attack.mse.mean]
            low = trace["y"][0] - trace["error_y"]["arrayminus"][0]
            high = trace["y"][0] + trace["error_y"]["array"][0]
            assert (low, high) == pytest.approx((attack.mse.low, attack.mse.high))
        if defense.bound:
            assert found[defense.name, BOUND]["y"] == [defense.bound.mse]


def test_hover_names_the_defense_the_mark_and_the_numbers():
    found = traces(tradeoff(example_result(), LOSS, MSE))
    defense = example_result().defenses[2]
    attack = defense.attacks[1]
    text = found[defense.name, attack.attack]["text"][0]
    for part in (defense.name, "attack: adaptive", estimate(attack.mse), estimate(attack.psnr)):
        assert part in text
    assert defense.bound is not None
    text = found[defense.name, BOUND]["text"][0]
    for part in (
        defense.name,
        "reference error",
        number(defense.bound.mse),
        "data that are Gaussian",
    ):
        assert part in text


def test_twins_share_a_colour_and_differ_in_filling():
    styles = looks(example_result())
    assert styles["noise"].color == styles["optimal noise"].color
    assert styles["noise"].color != styles["noise with clamping"].color
    assert (styles["noise"].filled, styles["optimal noise"].filled) == (False, True)
    found = traces(tradeoff(example_result(), LOSS, MSE))
    assert found["noise", BOUND]["marker"]["symbol"] == "triangle-up-open"
    assert found["optimal noise", BOUND]["marker"]["symbol"] == "triangle-up"
    assert len({mark.symbol for mark in marks(example_result())}) == 3


@pytest.mark.parametrize("background", [1.0, 0.011])
def test_every_colour_has_contrast_on_light_and_dark(background: float):
    def linear(part: str) -> float:
        value = int(part, 16) / 255
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    for look in looks(example_result()).values():
        red, green, blue = (linear(look.color[i : i + 2]) for i in (1, 3, 5))
        light = 0.2126 * red + 0.7152 * green + 0.0722 * blue
        pair = sorted((light + 0.05, background + 0.05))
        assert pair[1] / pair[0] >= 3, look


def test_better_is_right_and_up():
    layout = tradeoff(example_result(), LOSS, PSNR)["layout"]
    assert layout["xaxis"]["autorange"] == layout["yaxis"]["autorange"] == "reversed"
    layout = tradeoff(example_result(), LOSS, MSE)["layout"]
    assert (layout["yaxis"]["autorange"], layout["yaxis"]["type"]) == (True, "log")


def test_a_perfect_reconstruction_is_drawn_at_the_floor():
    result = example_result()
    defense = result.defenses[0]
    perfect = replace(defense.attacks[0], mse=Interval(0.0, 0.0, 0.0))
    figure = tradeoff(replace(result, defenses=(replace(defense, attacks=(perfect,)),)), LOSS, MSE)
    assert figure["data"][0]["y"] == [FLOOR]
    assert "squared error 0<br>" in figure["data"][0]["text"][0]


def test_the_undefended_message_does_not_take_the_height_of_the_others():
    result = example_result()
    plain, *others = result.defenses
    attacks = tuple(
        replace(a, mse=Interval(1e-7, 1e-8, 1e-6), psnr=Interval(70.0, 69.0, 71.0))
        for a in plain.attacks
    )
    result = replace(result, defenses=(replace(plain, attacks=attacks), *others))
    for axis, beyond in ((MSE, "1.00e-7"), (PSNR, "70.0")):
        figure = tradeoff(result, LOSS, axis)
        ours, theirs = [], []
        for trace in figure["data"]:
            (ours if trace["meta"]["defense"] == plain.name else theirs).extend(trace["y"])
        edge = ours[0]
        assert ours == [edge] * 2
        assert edge == (min(theirs) / 3 if axis is MSE else max(theirs) + 3)
        assert beyond in figure["data"][0]["text"][0]


def test_what_is_not_finite_is_not_drawn():
    result = example_result()
    defense = result.defenses[0]
    lost = replace(defense.attacks[0], mse=Interval(float("nan"), float("nan"), float("nan")))
    figure = tradeoff(replace(result, defenses=(replace(defense, attacks=(lost,)),)), LOSS, MSE)
    assert figure["data"] == []


def test_axes_are_those_that_were_measured():
    assert [axis.key for axis in utility_axes(example_result())] == ["loss", "first", "second"]
    assert [axis.key for axis in utility_axes(tabular_result())] == ["first", "second"]
    one = replace(example_result(), defenses=example_result().defenses[:1])
    assert [axis.key for axis in utility_axes(one)] == ["first"]
    assert {view.y.key for view in tradeoff_views(tabular_result())} == {"mse"}


def test_cost_curves_hold_the_first_history():
    result = example_result()
    attack = result.defenses[1].attacks[0]
    figure = cost_curves(result, attack.attack)
    assert figure is not None
    line = figure["data"][1]
    assert line["meta"] == {"defense": "noise"}
    assert list(zip(line["x"], line["y"], strict=True)) == list(attack.runs[0].history)
    assert figure["layout"]["yaxis"]["type"] == "log"


def test_costs_below_zero_have_a_linear_axis_and_infinite_ones_are_left_out():
    result = with_history(example_result(), ((0, float("inf")), (1, 2.0), (2, -3.0)))
    figure = cost_curves(result, result.defenses[0].attacks[0].attack)
    assert figure is not None
    assert figure["data"][0]["y"] == [2.0, -3.0]
    assert "type" not in figure["layout"]["yaxis"]


def test_no_history_no_chart():
    assert all_cost_curves(unattacked_result()) == {}
    assert all_cost_curves(with_history(example_result(), ())) == {}
