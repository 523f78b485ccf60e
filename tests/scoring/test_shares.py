import pytest
from scipy.stats import binom, binomtest

from gradveil.scoring import share_interval


@pytest.mark.parametrize(("successes", "count"), [(0, 20), (20, 20), (7, 20), (1, 3), (150, 200)])
def test_it_is_the_exact_binomial_interval(successes: int, count: int) -> None:
    found = share_interval(successes, count)
    expected = binomtest(successes, count).proportion_ci(0.95, "exact")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == successes / count


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.93])
def test_it_covers_at_least_as_often_as_it_says(rate: float) -> None:
    intervals = [share_interval(k, 30) for k in range(31)]
    covered = sum(
        binom.pmf(k, 30, rate) for k, one in enumerate(intervals) if one.low <= rate <= one.high
    )
    assert covered >= 0.95


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((5, 4), "from 0 to"), ((-1, 4), "from 0 to"), ((0, 0), "`count`")],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[int, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        share_interval(*arguments)
