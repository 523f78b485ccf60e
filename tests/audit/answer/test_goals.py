import pytest

from gradveil.audit import Goal

from .made_up import leak, point


@pytest.mark.parametrize(
    ("text", "measure", "limit", "written"),
    [
        ("psnr<=15", "psnr", 15.0, "psnr<=15"),
        ("psnr <= 15 dB", "psnr", 15.0, "psnr<=15"),
        ("identified<=10%", "identified", 0.1, "identified<=10%"),
        ("identified≤0.1", "identified", 0.1, "identified<=10%"),
        ("epsilon<=8", "epsilon", 8.0, "epsilon<=8"),
        ("loss<=+5%", "loss", 0.05, "loss<=+5%"),
        ("loss<=0.05", "loss", 0.05, "loss<=+5%"),
        ("error>=90%", "error", 0.9, "error>=90%"),
    ],
)
def test_a_goal_is_read_and_written(text, measure, limit, written):
    goal = Goal.parse(text)
    assert (goal.measure, goal.limit) == (measure, pytest.approx(limit))
    assert str(goal) == written
    assert Goal.parse(str(goal)) == goal


@pytest.mark.parametrize(
    "text",
    ["", "psnr", "psnr>=15", "psnr<=15%", "epsilon<=8%", "epsilon<=8 dB", "error<=90%",
     "identified<=200%", "psnr<=+15", "ssim<=0.5", "loss<=1.2.3", "psnr<=-1", 15, None],
)  # fmt: skip
def test_other_texts_are_refused_with_what_would_be_right(text):
    with pytest.raises(ValueError, match="A goal should read psnr<=15"):
        Goal.parse(text)


def test_the_worse_end_of_the_interval_decides_at_the_worst_moment():
    one = point("d", 0.9, 0.1, half=0.05, rate=0.2, later=[(2, 0.7), (4, 0.8)])
    assert Goal("error", 0.65).value(one) == pytest.approx(0.65)
    assert Goal("error", 0.64).is_reached(one)
    assert not Goal("error", 0.66).is_reached(one)
    assert Goal("identified", 0.25).value(one) == pytest.approx(0.25)
    assert Goal("loss", 0.15).value(one) == pytest.approx(0.15)
    worst = leak(0.7, 0.05).psnr
    assert Goal("psnr", 99.0).value(one) == pytest.approx(worst.high)


def test_what_was_not_measured_is_not_reached():
    one = point("d", 0.9, 0.1)
    assert Goal("identified", 1.0).value(one) is None
    assert not Goal("identified", 1.0).is_reached(one)
    assert not Goal("epsilon", 100.0).is_reached(one)
    assert Goal("epsilon", 8.0).is_reached(point("d", 0.9, 0.1, epsilon=7.9))
