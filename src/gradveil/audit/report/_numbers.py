"""Numbers as the report and the command line print them."""

import math

from gradveil.catalog import Spec
from gradveil.scoring import Interval

ABSENT = "–"


def number(value: float | None) -> str:
    """Three significant digits.

    >>> [number(v) for v in (0.0, 0.02397, 12.345, -0.5, 1234.5, 0.000123, float("inf"), None)]
    ['0', '0.0240', '12.3', '-0.500', '1,234', '1.23e-4', 'infinite', '–']
    """
    if value is None:
        return ABSENT
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1000:
        return f"{value:#.3g}".rstrip(".")
    if 1000 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    digits, power = f"{value:.2e}".split("e")
    return f"{digits}e{int(power)}"


def interval(value: Interval | None) -> str:
    """The ends of an interval, or nothing where both are the mean.

    >>> interval(Interval(0.5, 0.41, 0.6)), interval(Interval(0.5, 0.5, 0.5))
    ('[0.410, 0.600]', '')
    """
    if value is None or value.low == value.high:
        return ""
    return f"[{number(value.low)}, {number(value.high)}]"


def share(value: float | None) -> str:
    """A share in percent.

    >>> [share(value) for value in (0.0, 1e-8, 0.01, 0.0167, 0.808, 1.08, 10.0, None)]
    ['0 %', '< 0.01 %', '1 %', '1.7 %', '81 %', '108 %', '1,000 %', '–']
    """
    if value is None:
        return ABSENT
    percents = 100 * value
    if 0 < percents < 0.01:
        return "< 0.01 %"
    return f"{percents:,.0f} %" if percents >= 9.95 else f"{percents:.2g} %"


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "batch"), plural(2, "batch"), plural(3, "seed"), plural(1000, "entry")
    ('1 batch', '2 batches', '3 seeds', '1,000 entries')
    """
    if count == 1:
        return f"1 {noun}"
    many = f"{noun[:-1]}ies" if noun.endswith("y") else noun + ("es" if noun[-2:] == "ch" else "s")
    return f"{count:,} {many}"


def setting(spec: str) -> str:
    """The numbers of a specification that say how strong it is; empty if there are none.

    >>> setting("optimal-pruning(ratio=0.7784362, noise=optimal-noise(scale=0.0123456))")
    'ratio 0.778, scale 0.0123'
    >>> setting("private-noise(noise_multiplier=1.0, clip=0.5)")
    'noise multiplier 1, clip 0.5'
    """
    try:
        amounts = Spec.parse(spec).amounts
    except ValueError:  # a name of the user's that is no specification
        return ""
    return ", ".join(f"{n.replace('_', ' ')} {v:.3g}" for n, v in amounts)


def named(name: str, spec: str) -> str:
    """A defense with its strength.

    >>> named("optimal noise", "optimal-noise(scale=0.3)"), named("sign", "sign-compression")
    ('optimal noise with scale 0.3', 'sign')
    """
    amounts = setting(spec)
    return f"{name} with {amounts}" if amounts else name
