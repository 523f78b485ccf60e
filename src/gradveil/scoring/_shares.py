"""The interval of a share of successes."""

from gradveil._checks import check_count, check_number
from gradveil._extras import require

from ._intervals import Interval


def share_interval(successes: int, count: int, *, level: float = 0.95) -> Interval:
    """The Clopper-Pearson interval: it holds the true rate at least as often as it says.

    Its ends are quantiles of Beta(k, n - k + 1) and Beta(k + 1, n - k) for k of n successes.

    Reference: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the
    case of the binomial", 1934.

    >>> print(share_interval(20, 20))
    1 [0.8316, 1]
    """
    check_count(count, "count")
    check_number(successes, "successes")
    if not 0 <= successes <= count:
        raise ValueError(
            f"Parameter `successes` should be from 0 to `count = {count}`. Found `successes ="
            f" {successes}`."
        )
    check_number(level, "level")
    if not 0 < level < 1:
        raise ValueError(f"Parameter `level` should be in (0, 1). Found `level = {level}`.")
    require("an interval", "gradveil[audit]", "scipy")
    from scipy.stats import beta  # only intervals need it

    tail = (1 - level) / 2
    low = float(beta.ppf(tail, successes, count - successes + 1)) if successes else 0.0
    high = 1.0
    if successes < count:
        high = float(beta.ppf(1 - tail, successes + 1, count - successes))
    return Interval(successes / count, low, high, level)
