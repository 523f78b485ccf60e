"""Points, and a search whose answers are known, without any model."""

import math

from gradveil.audit._result import Leak, Point, ToldApart
from gradveil.audit.measure._strengths import Axis
from gradveil.catalog import Spec
from gradveil.scoring import Interval


def interval(mean, half=0.0):
    return Interval(mean, mean - half, mean + half)


def told(rate, half=0.0):
    bits = interval(5 * rate)
    return ToldApart(32, 128, interval(rate, half), bits)


def leak(error, half=0.0, round=0, rate=None, copies=0):
    psnr = interval(12 - 10 * math.log10(max(error, 1e-9)), 2 * half)
    found = None if rate is None else told(rate, half)
    return Leak(round, "adaptive", interval(error, half), psnr, found, (), copies, 4)


def point(defense, error, extra, half=0.0, rate=None, epsilon=None, amount=None, later=()):
    """One whose error at the model as given, and at later rounds, is known."""
    leaks = (leak(error, half, 0, rate), *(leak(e, half, r, rate) for r, e in later))
    loss = interval(1 + extra, half)
    return Point(defense, amount, leaks, loss, None, interval(extra, half), epsilon=epsilon)


def noise_axis(name="noise", start=(-1.0, 0.0, 1.0)):
    return Axis(name, Spec("gradient-noise", {"scale": 1.0}), "scale", start)


class KnownLaboratory:
    moments = (0, 2, 4)

    class settings:
        class releases:
            rounds, delta, sample_rate = 100, 1e-5, 1.0


class KnownSearch:
    """Gives every point from two functions of the strength: what is hidden, and what it costs.

    Args:
        curves: (hidden, extra loss) for each defense by name.
        later: By what the error is multiplied later in the training.
    """

    def __init__(self, curves, later=1.0, half=0.0):
        self.curves, self.later, self.half = curves, later, half
        self.laboratory, self.stopped = KnownLaboratory, None
        self.wanted = {}

    def measure(self, what, wanted, moments=(0,)):
        """All is known at once."""
        for axis, strength in wanted:
            known = self.wanted.setdefault(axis.name, {})
            known[strength] = max(known.get(strength, 1), len(moments))

    def points(self, axis):
        hidden, extra = self.curves[axis.name]
        found = {}
        for strength, moments in sorted(self.wanted.get(axis.name, {}).items()):
            error = hidden(strength)
            later = [(2, error * self.later), (4, error * self.later)] if moments > 1 else []
            found[strength] = point(
                axis.at(strength), error, extra(strength), self.half, later=later
            )
        return found
