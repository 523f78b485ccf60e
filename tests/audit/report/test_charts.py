"""The charts' data: colours and the attacks' costs; the picture of leakage is in test_answer."""

from dataclasses import replace

import plotly.graph_objects as go
import pytest

from gradveil.audit import AuditResult
from gradveil.audit.report._charts import cost_curves
from gradveil.audit.report._facts import looks
from tests.audit.example_result import example_result, unattacked_result


def with_history(result: AuditResult, history: tuple[tuple[int, float], ...]) -> AuditResult:
    defense = result.defenses[0]
    attacks = tuple(
        replace(a, runs=tuple(replace(run, history=history) for run in a.runs))
        for a in defense.attacks
    )
    return replace(result, defenses=(replace(defense, attacks=attacks),))


def test_twins_share_a_colour_and_differ_in_filling():
    styles = looks(example_result())
    assert styles["noise"].color == styles["optimal noise"].color
    assert styles["noise"].color != styles["noise with clamping"].color
    assert (styles["noise"].filled, styles["optimal noise"].filled) == (False, True)


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


def test_cost_curves_hold_the_first_history():
    result = example_result()
    attack = result.defenses[1].attacks[0]
    figure = cost_curves(result)["inverting-gradients"]
    line = figure["data"][1]
    assert line["meta"] == {"defense": "noise"}
    assert list(zip(line["x"], line["y"], strict=True)) == list(attack.runs[0].history)
    assert figure["layout"]["yaxis"]["type"] == "log"
    go.Figure(figure)


def test_costs_below_zero_have_a_linear_axis_and_infinite_ones_are_left_out():
    result = with_history(example_result(), ((0, float("inf")), (1, 2.0), (2, -3.0)))
    figure = cost_curves(result)["inverting-gradients"]
    assert figure["data"][0]["y"] == [2.0, -3.0]
    assert "type" not in figure["layout"]["yaxis"]


def test_no_history_no_chart():
    assert cost_curves(unattacked_result()) == {}
    assert cost_curves(with_history(example_result(), ())) == {}
