"""Means and shares with intervals of 95 %."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from gradveil._checks import WrongValue, all_finite, check_count, check_number
from gradveil._imports import require
from gradveil._random import generator_or_fresh

Nested: TypeAlias = "Tensor | Sequence[Nested]"
"""Values of images in a 1-d tensor; a list of such for batches; a list of lists for seeds."""

LEVEL = 0.95
"""How often an interval holds the true mean."""

RESAMPLES = 4000


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval; both ends are the mean where there is only one value.

    >>> print(Interval(mean=0.5, low=0.4, high=0.6))
    0.5 [0.4, 0.6]
    """

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


def bootstrap_interval(values: Nested, *, generator: torch.Generator | None = None) -> Interval:
    """The interval of the mean, all levels of the experiment resampled; right for few groups, too.

    Images of one batch are reconstructed together and are not independent: their scatter alone
    makes intervals too narrow. So each resample draws seeds with replacement, batches within each
    drawn seed, and images within each drawn batch. The mean is the mean of the groups' means: each
    batch counts once, whatever its size. A single group stands for what it holds.

    A percentile interval of n groups takes the normal quantile and a variance over n: of 6 groups
    it covers 85 %. Its tails are therefore Φ(-√(n/(n-1)) t), t being Student's quantile for n - 1
    degrees of freedom. No resampled mean leaves the range of the groups, which holds the median
    with probability 1 - 2^(1-n): where that is below the level (up to 5 groups at 95 %), the
    interval is Student's, mean ± t s/√n over the groups' means.

    To compare two attacks on the same images, give the differences: what makes one batch harder
    than another hits both alike and cancels.

    References: Davison and Hinkley, "Bootstrap Methods and their Application", 1997, section 3.8;
    Hesterberg, "What Teachers Should Know About the Bootstrap", 2015.

    >>> batches = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]
    >>> interval = bootstrap_interval(batches, generator=torch.Generator().manual_seed(0))
    >>> interval.mean, interval.low < 2.5 < interval.high
    (2.5, True)
    """
    tree = _checked(values)
    while not isinstance(tree, Tensor) and len(tree) == 1:
        tree = tree[0]  # the outermost level at which something varies
    count, mean = len(tree), _mean(tree)
    if count == 1:
        return Interval(mean, mean, mean)
    require("an interval", "gradveil[audit]", "scipy")
    from scipy.stats import t as student  # only intervals need it

    quantile = float(student.ppf((1 + LEVEL) / 2, count - 1))
    if 1 - 2.0 ** (1 - count) < LEVEL:
        means = torch.tensor([_mean(group) for group in tree], dtype=torch.float64)
        half = quantile * float(means.std()) / math.sqrt(count)
        return Interval(mean, mean - half, mean + half)
    draws = _draw(tree, RESAMPLES, generator_or_fresh(generator))
    inside = min(0.999, math.erf(quantile * math.sqrt(count / (count - 1)) / math.sqrt(2)))
    tails = torch.tensor([(1 - inside) / 2, (1 + inside) / 2], dtype=draws.dtype)
    low, high = torch.quantile(draws, tails).tolist()
    return Interval(mean, low, high)


def _checked(values: Nested) -> Nested:
    found = f"{type(values).__name__} ({values!r})"
    if isinstance(values, Tensor):
        values = values.detach().to("cpu", torch.float64)
        if values.dim() == 1 and len(values) > 0 and all_finite(values):
            return values
        found = f"a tensor of shape {tuple(values.shape)}, finite: {all_finite(values)}"
    elif isinstance(values, Sequence) and len(values) > 0 and not isinstance(values, str):
        return [_checked(child) for child in values]
    expected = "be a non-empty, finite 1-d tensor of values of images, or nested sequences of them"
    raise WrongValue("values", expected, found, "Drop what failed, and pass the rest.")


def _draw(values: Nested, count: int, generator: torch.Generator) -> Tensor:
    """`count` resampled means of this level."""
    size = len(values)
    chosen = torch.randint(size, (count, size), generator=generator, device=generator.device).cpu()
    if isinstance(values, Tensor):
        return values[chosen].mean(dim=1)
    means = torch.empty(count, size, dtype=torch.float64)
    for index, child in enumerate(values):
        here = chosen == index
        means[here] = _draw(child, int(here.sum()), generator)
    return means.mean(dim=1)


def _mean(values: Nested) -> float:
    if isinstance(values, Tensor):
        return float(values.mean())
    return sum(_mean(child) for child in values) / len(values)


def share_interval(successes: int, count: int) -> Interval:
    """The Clopper-Pearson interval: it holds the true rate at least as often as it says.

    Its ends are quantiles of Beta(k, n - k + 1) and Beta(k + 1, n - k) for k of n successes.

    Reference: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the
    case of the binomial", 1934.
    """
    check_count(count, "count")
    check_number(successes, "successes")
    if not 0 <= successes <= count:
        raise WrongValue("successes", f"be from 0 to `count = {count}`", str(successes), "", True)
    require("an interval", "gradveil[audit]", "scipy")
    from scipy.stats import beta  # only intervals need it

    tail, failures = (1 - LEVEL) / 2, count - successes
    low = float(beta.ppf(tail, successes, failures + 1)) if successes else 0.0
    high = float(beta.ppf(1 - tail, successes + 1, failures)) if failures else 1.0
    return Interval(successes / count, low, high)


MARGIN = 1.0
"""Decibels by which an attack's error is to be below a blind guess's in the mean (a fifth less),
the whole interval being above 0."""
COPY = 10.0
"""Decibels from which on an example counts as a near copy; a single one shows that it works."""


@dataclass(frozen=True)
class AgainstGuess:
    """How far the errors of an attack are below those of a blind guess, example by example."""

    gain: Interval
    """The mean of `gain_over_guess`."""
    copies: int
    """Examples with a gain of `COPY` and more."""
    examples: int

    @property
    def works(self) -> bool:
        """Whether the attack beats the guess by a clear margin: a single example by a copy only."""
        clear = self.gain.mean >= MARGIN and self.gain.low > 0
        return self.copies > 0 or (self.examples > 1 and clear)


def gain_over_guess(errors: Tensor, guesses: Tensor) -> Tensor:
    """10 log₁₀ (guess / error) of squared errors; both count as 1e-12 where they are less."""
    guesses, errors = (torch.as_tensor(e).double().clamp(min=1e-12) for e in (guesses, errors))
    return 10 * (guesses / errors).log10()


def against_guess(gains: Nested, generator: torch.Generator | None = None) -> AgainstGuess:
    """From the gains of images, batches and seeds (`gain_over_guess`)."""
    flat, gain = _flat(gains), bootstrap_interval(gains, generator=generator)
    return AgainstGuess(gain, int((flat >= COPY).sum()), len(flat))


def _flat(values: Nested) -> Tensor:
    return values if isinstance(values, Tensor) else torch.cat([_flat(child) for child in values])
