"""The progress of an audit: parts of known weight, each from 0 to 1."""

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Called with (what is running, the share of the whole audit that is done)."""


class Meter:
    """Adds up weighted parts and tells the share of the whole.

    >>> meter = Meter(4.0, lambda what, share: print(what, share))
    >>> meter.start("first", 1.0)
    first 0.0
    >>> meter.at(0.5)
    first 0.125
    >>> meter.start("second", 3.0)
    second 0.25
    """

    def __init__(self, total: float, progress: Progress | None) -> None:
        self._total, self._progress = max(total, 1e-9), progress
        self._what, self._before, self._weight = "", 0.0, 0.0

    def start(self, what: str, weight: float) -> None:
        """The part before is done; this one begins."""
        self._before += self._weight
        self._what, self._weight = what, weight
        self.at(0.0)

    def at(self, share: float) -> None:
        """How much of the present part is done."""
        if self._progress is not None:
            done = self._before + min(1.0, share) * self._weight
            self._progress(self._what, min(1.0, done / self._total))
