"""The charts' data: colours; the picture of leakage is in test_answer."""

import pytest

from gradveil.audit.report._charts import looks
from tests.audit.example_result import example_result


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
