"""The charts' data: colours; the picture of leakage is in test_answer."""

from dataclasses import replace

import pytest

from gradveil.audit.report._charts import GREY, HUES, hues
from tests.audit.example_frontier import frontier_result


def test_every_curve_has_a_colour_of_its_own_which_its_details_share():
    result = frontier_result()
    found = hues(result)
    names = [curve.name for curve in result.frontier.curves]
    assert len({found[name] for name in names}) == len(names)
    assert found["no defense"] == GREY
    chosen = replace(result.defenses[1], name="as chosen", defense="optimal-noise(scale=0.3)")
    assert hues(replace(result, defenses=(chosen,)))["as chosen"] == found["optimal noise"]


@pytest.mark.parametrize("background", [1.0, 0.011])
def test_every_colour_has_contrast_on_light_and_dark(background: float):
    def linear(part: str) -> float:
        value = int(part, 16) / 255
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    for color in (GREY, *HUES):
        red, green, blue = (linear(color[i : i + 2]) for i in (1, 3, 5))
        light = 0.2126 * red + 0.7152 * green + 0.0722 * blue
        pair = sorted((light + 0.05, background + 0.05))
        assert pair[1] / pair[0] >= 3, color
