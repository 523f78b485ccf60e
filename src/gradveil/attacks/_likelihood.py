"""What an attacker makes of a mechanism: how likely a message is, and what it says backwards.

Each function takes the mechanism first and chooses by its class.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import check_structure, check_values
from gradveil._typing import Level, Tensors
from gradveil.mechanisms import (
    LaplaceMechanism,
    Mechanism,
    QuantisationMechanism,
    RoundingMechanism,
    SignMechanism,
    as_tensors,
    level_of,
)

from ._densities import (
    TensorDoubt,
    cell_log_likelihood,
    channel_log_likelihoods,
    channel_table,
    doubtful_log_likelihoods,
    rounding_error,
)


@dataclass(frozen=True)
class Doubt:
    """How far two plans from the same values, each with random probes of its own, are apart.

    Noise levels, steps and masks that follow from sensitivities are estimates. Who plans again
    gets nearly the same ones, and this says how nearly. With D_i = log Σ_ii - log Σ'_ii of two
    plans, D_i is a part that all entries of a tensor share, and a part of its own.

    >>> Doubt(kept=0.9, pruned=0.1).kept
    0.9
    """

    levels: Mapping[str, float] = field(default_factory=dict)
    """By tensor, Var[D_i] around the tensor's mean; a tensor that is missing is known exactly."""
    shared: Mapping[str, float] = field(default_factory=dict)
    """By tensor, the square of the mean of D_i."""
    kept: float = 1.0
    """The probability that an entry was kept where one's own plan keeps it."""
    pruned: float = 0.0
    """The probability that an entry was kept where one's own plan prunes it."""

    def variance(self, name: str) -> float:
        """E[D_i²] in this tensor, both parts together."""
        return self.levels.get(name, 0.0) + self.shared.get(name, 0.0)

    @property
    def levels_differ(self) -> bool:
        """Whether the two plans have different levels anywhere."""
        return any((*self.levels.values(), *self.shared.values()))

    @staticmethod
    def mean(doubts: Sequence["Doubt"]) -> "Doubt":
        """The mean over several pairs of plans."""
        return Doubt(
            {name: fmean(d.levels[name] for d in doubts) for name in doubts[0].levels},
            {name: fmean(d.shared[name] for d in doubts) for name in doubts[0].shared},
            fmean(d.kept for d in doubts),
            fmean(d.pruned for d in doubts),
        )


def _doubt_on_levels(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Doubt:
    """From √Σ_ii of two plans; entries count that have noise in both."""
    levels, shared = {}, {}
    for name, level in one.items():
        both = (level > 0) & (other[name] > 0)
        differences = 2 * (level[both].double().log() - other[name][both].double().log())
        mean = differences.mean() if differences.numel() else torch.zeros(())
        shared[name] = float(mean.square())
        levels[name] = float((differences - mean).square().mean()) if differences.numel() else 0.0
    return Doubt(levels, shared)


def _shares_kept(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> tuple[float, float]:
    """P(the other keeps | one keeps) and P(the other keeps | one prunes), never 0 or 1.

    Half an entry is added on either side, so that no single entry makes a plan impossible.
    """
    sums = torch.zeros(4, dtype=torch.float64)
    for name, mask in one.items():
        a, b = mask.double(), other[name].double()
        sums += torch.stack([(a * b).sum(), a.sum(), ((1 - a) * b).sum(), (1 - a).sum()]).cpu()
    both, kept, only_other, pruned = sums.tolist()
    return (both + 0.5) / (kept + 1), (only_other + 0.5) / (pruned + 1)


ON_GRID = 1e-3
"""How far from a whole number of steps a quantised entry may be, in steps, because of rounding."""


@dataclass(frozen=True)
class Reading:
    """Where the values can be, entry by entry, given what was sent.

    clip(g_i) is in [low_i, high_i], seen through noise of standard deviation std_i.
    """

    low: Tensors
    high: Tensors
    std: Tensors
    """0 where an entry was pruned: what it says does not depend on noise."""
    clip: Tensors
    """The thresholds P of clamping to [-P, P] before the noise; infinite where there are none."""
    pruned: Tensors
    """Where the value was not sent, or may not have been: its interval is the sent 0 itself, and
    what 0 says depends on why it was pruned, which the defense knows (`pruned_limits`)."""

    @classmethod
    def all_sent(cls, low: Tensors, high: Tensors, std: Tensors) -> "Reading":
        """Of a message in which nothing was clamped or pruned."""
        clip = {name: torch.full_like(y, torch.inf) for name, y in std.items()}
        pruned = {name: torch.zeros_like(y, dtype=torch.bool) for name, y in std.items()}
        return cls(dict(low), dict(high), std, clip, pruned)


@singledispatch
def read(mechanism: Any, sent: Tensors, realised: bool = True) -> Reading:
    """What was sent, as a statement on each entry of the values.

    Args:
        mechanism: That was applied, or one like it.
        sent: What left the client.
        realised: Whether this very mechanism was applied. One that was planned from an estimate
            has levels like it, but another mask.
    """
    raise TypeError(
        "Parameter `observation` should have a Mechanism or a RoundingMechanism, or a defense that"
        f" plans one. Found {type(mechanism).__name__}. Derive it from one of"
        " `gradveil.mechanisms`."
    )


@read.register
def _read_noise(mechanism: Mechanism, sent: Tensors, realised: bool = True) -> Reading:
    """Noise around the sent values; pruned entries by themselves say nothing.

    Of a mask that is known, its zeros are pruned, noisy or not. Of one that is not, any 0 in the
    message may be, where entries are pruned at all.
    """
    pruned = {name: torch.zeros_like(y, dtype=torch.bool) for name, y in sent.items()}
    if mechanism.keep is not None:
        keep = as_tensors(mechanism.keep, sent)
        if realised:
            pruned = {n: (k == 0) | ((k < 1) & (sent[n] == 0)) for n, k in keep.items()}
        elif any(bool((k < 1).any()) for k in keep.values()):
            pruned = {name: y == 0 for name, y in sent.items()}
    levels = as_tensors(mechanism.std, sent)
    std = {name: torch.where(pruned[name], 0.0, level) for name, level in levels.items()}
    clip = torch.inf if mechanism.clip is None else mechanism.clip
    return Reading(dict(sent), dict(sent), std, as_tensors(clip, sent), pruned)


@read.register
def _read_laplace(mechanism: LaplaceMechanism, sent: Tensors, realised: bool = True) -> Reading:
    """Noise around the sent values, for searches that take it for Gaussian of this variance."""
    return Reading.all_sent(sent, sent, as_tensors(mechanism.std, sent))


@read.register
def _read_levels(mechanism: QuantisationMechanism, sent: Tensors, realised: bool = True) -> Reading:
    """Noise around the sent values, of one level for each tensor.

    The coarsest grid that holds all entries has the step a, and ‖g‖ = levels · a. As
    E‖y‖² = ‖g‖² + Σ_i Var[y_i], the mean variance is (‖y‖² - ‖g‖²) / n. In a small tensor all
    entries may lie on a coarser grid, and then its noise is taken for too small. That the noise
    has another shape, and that the norm is known exactly, is not used.
    """

    def deviation(sent: Tensor) -> Tensor:
        y = sent.double()
        norm = mechanism.levels * _grid_step(y, mechanism.levels)
        variance = (y.square().sum() - norm**2).clamp(min=0) / max(1, y.numel())
        return variance.sqrt().to(sent.dtype).expand(sent.shape)

    return Reading.all_sent(sent, sent, {name: deviation(y) for name, y in sent.items()})


@read.register
def _read_cells(mechanism: RoundingMechanism, sent: Tensors, realised: bool = True) -> Reading:
    """The cells that were rounded to what was sent."""
    half = {name: step / 2 for name, step in as_tensors(mechanism.step, sent).items()}
    low, high = ({n: y + sign * half[n] for n, y in sent.items()} for sign in (-1, 1))
    return Reading.all_sent(low, high, {name: torch.zeros_like(y) for name, y in sent.items()})


@read.register
def _read_signs(mechanism: SignMechanism, sent: Tensors, realised: bool = True) -> Reading:
    """The half-line that has the sign; {0} where 0 was sent."""
    return Reading.all_sent(
        {name: torch.where(y < 0, -torch.inf, 0.0).to(y) for name, y in sent.items()},
        {name: torch.where(y > 0, torch.inf, 0.0).to(y) for name, y in sent.items()},
        {name: torch.zeros_like(y) for name, y in sent.items()},
    )


def with_least_noise(mechanism: Any, share: float) -> Any:
    """No standard deviation below this share of the root mean square of those above 0."""
    level = getattr(mechanism, "std", None)
    if not isinstance(mechanism, (Mechanism, LaplaceMechanism)) or not isinstance(level, dict):
        return mechanism
    entries = sum(int((s > 0).sum()) for s in level.values())
    if entries == 0:
        return mechanism
    square = torch.stack([s.square().sum() for s in level.values()]).sum()
    least = share * float((square / entries).sqrt())
    std = {name: s.clamp(min=least) for name, s in level.items()}
    if isinstance(mechanism, LaplaceMechanism):
        return LaplaceMechanism(std)
    return Mechanism(std, mechanism.keep, mechanism.clip)


def doubt_between(one: Any, other: Any, like: Tensors) -> Doubt:
    """How far two plans from the same values are apart; `like` gives the shapes.

    Nothing is planned of signs and of levels of quantisation: nobody is in doubt about them.
    """
    if isinstance(one, RoundingMechanism):
        return _doubt_on_levels(as_tensors(one.step, like), as_tensors(other.step, like))
    if not isinstance(one, (Mechanism, LaplaceMechanism)):
        return Doubt()
    doubt = _doubt_on_levels(as_tensors(one.std, like), as_tensors(other.std, like))
    if isinstance(one, LaplaceMechanism) or one.keep is None or other.keep is None:
        return doubt
    kept, pruned = _shares_kept(as_tensors(one.keep, like), as_tensors(other.keep, like))
    return replace(doubt, kept=kept, pruned=pruned)


def log_likelihood(
    mechanism: Any, values: Tensors, sent: Tensors, doubt: Doubt | None = None
) -> Tensor:
    """log p(sent | values), a float64 number, with all terms that depend on the mechanism.

    Args:
        mechanism: That was applied, or planned again.
        values: What the message would be.
        sent: What left the client.
        doubt: `None` if this very mechanism was applied; otherwise how well it is known.
    """
    check_values(values)
    check_structure(sent, values, "sent", "values")
    terms = [_log_likelihood(mechanism, n, v, sent[n], doubt) for n, v in values.items()]
    return torch.stack(terms).sum()


def log_likelihoods(
    mechanism: Any, values: Sequence[Tensors], sent: Sequence[Tensors], doubt: Doubt | None = None
) -> Tensor:
    """`log_likelihood` of all messages (rows) under all values (columns)."""
    if not isinstance(mechanism, Mechanism):
        rows = [[log_likelihood(mechanism, v, one, doubt) for v in values] for one in sent]
        return torch.stack([torch.stack(row) for row in rows])
    for one in values:
        check_values(one)
    for one in sent:
        check_structure(one, values[0], "sent", "values")
    if doubt is not None:
        return torch.stack([_doubted(mechanism, one, sent, doubt) for one in values], dim=1)
    tables = [
        channel_table(
            [one[name] for one in sent],
            [_clipped(mechanism, name, one[name]) for one in values],
            level_of(mechanism.std, name),
            _kept(mechanism, name),
        )
        for name in values[0]
    ]
    return torch.stack(tables).sum(0)


@singledispatch
def _log_likelihood(
    mechanism: Any, name: str, value: Tensor, sent: Tensor, doubt: Doubt | None
) -> Tensor:
    """Of one tensor; where values cannot lead to what was sent, so negative that it decides."""
    raise TypeError(
        "A mechanism should have a likelihood that tells candidates apart. Found"
        f" {type(mechanism).__name__}. Plan a Mechanism or a RoundingMechanism."
    )


@_log_likelihood.register
def _of_gaussian(
    mechanism: Mechanism, name: str, value: Tensor, sent: Tensor, doubt: Doubt | None
) -> Tensor:
    """Σ_i log[k_i N(y_i; clip(g_i), std_i²) + (1 - k_i) N(y_i; 0, std_i²)].

    With a `doubt` these levels and this mask are estimates of the ones that were applied.
    """
    if doubt is not None:
        return _doubtful(mechanism, name, value, [sent], doubt)[0]
    level, clipped = level_of(mechanism.std, name), _clipped(mechanism, name, value)
    return channel_log_likelihoods(sent, clipped[None], level, _kept(mechanism, name))[0]


@_log_likelihood.register
def _of_laplace(
    mechanism: LaplaceMechanism, name: str, value: Tensor, sent: Tensor, doubt: Doubt | None
) -> Tensor:
    """Σ_i -|y_i - g_i| / b_i - log 2b_i; nobody is in doubt about its levels."""
    misfit = (sent.double() - value.double()).abs()
    b = as_tensors(mechanism.std, {name: misfit})[name] / math.sqrt(2)
    exact = -0.5 * (misfit / rounding_error(sent)).square()
    safe = torch.where(b > 0, b, 1.0)
    return torch.where(b > 0, -misfit / safe - (2 * safe).log(), exact).sum()


@_log_likelihood.register
def _of_quantised(
    mechanism: QuantisationMechanism, name: str, value: Tensor, sent: Tensor, doubt: Doubt | None
) -> Tensor:
    """Σ_i log max(0, 1 - |y_i - g_i| / a): by its level, or because the norm is another."""
    y, v = sent.double(), value.double()
    step = v.square().sum().sqrt() / mechanism.levels
    error = rounding_error(sent, step)
    unit = torch.where(step > 0, step, 1.0)
    off_grid = (y - step * (y / unit).round()).abs()
    misfit = torch.maximum(off_grid, ((y - v).abs() - step).clamp(min=0))
    chance = (1 - (y - v).abs() / unit).clamp(min=torch.finfo(sent.dtype).eps)
    possible = misfit <= 4 * error
    return torch.where(possible, chance.log(), -0.5 * (misfit / error).square()).sum()


@_log_likelihood.register
def _of_rounded(
    mechanism: RoundingMechanism, name: str, value: Tensor, sent: Tensor, doubt: Doubt | None
) -> Tensor:
    """0 where all values lie in the cells that were sent."""
    variance = 0.0 if doubt is None else doubt.variance(name)
    return cell_log_likelihood(
        sent, value, as_tensors(mechanism.step, {name: value})[name], variance
    )


@_log_likelihood.register
def _of_signs(
    mechanism: SignMechanism, name: str, value: Tensor, sent: Tensor, doubt: Doubt | None
) -> Tensor:
    """0 where all signs agree; -½ (|v_i| / τ_i)² where one is wrong."""
    v = value.double()
    error = rounding_error(v.to(sent.dtype))
    return -0.5 * torch.where(v.sign() != sent.double().sign(), v / error, 0.0).square().sum()


def _doubted(
    mechanism: Mechanism, values: Tensors, sent: Sequence[Tensors], doubt: Doubt
) -> Tensor:
    parts = [
        _doubtful(mechanism, name, value, [one[name] for one in sent], doubt)
        for name, value in values.items()
    ]
    return torch.stack(parts).sum(0)


def _doubtful(
    mechanism: Mechanism, name: str, value: Tensor, sent: Sequence[Tensor], doubt: Doubt
) -> Tensor:
    """Of each message, given how well levels and mask are known."""
    one, kept = {name: value}, _kept(mechanism, name)
    all_kept = isinstance(kept, float) and kept == 1.0
    keep = None if all_kept else as_tensors(mechanism.keep, one)[name]  # type: ignore[arg-type]
    level, shared = doubt.levels.get(name, 0.0), doubt.shared.get(name, 0.0)
    known = TensorDoubt(level, shared, doubt.kept, doubt.pruned)
    std = as_tensors(mechanism.std, one)[name]
    return doubtful_log_likelihoods(sent, _clipped(mechanism, name, value), std, keep, known)


def _clipped(mechanism: Mechanism, name: str, value: Tensor) -> Tensor:
    if mechanism.clip is None:
        return value
    limit = level_of(mechanism.clip, name)
    return value.clamp(-limit, limit)  # type: ignore[arg-type]


def _kept(mechanism: Mechanism, name: str) -> Tensor | float:
    keep = 1.0 if mechanism.keep is None else level_of(mechanism.keep, name)
    return keep.float() if isinstance(keep, Tensor) and keep.dtype == torch.bool else keep


def same_noise(one: Any, other: Any) -> bool:
    """Whether both are Gaussian with the same levels, mask and thresholds."""
    if not isinstance(one, Mechanism) or not isinstance(other, Mechanism):
        return one is other
    pairs = ((one.std, other.std), (one.keep, other.keep), (one.clip, other.clip))
    return all(_same_level(a, b) for a, b in pairs)


def _same_level(one: Level | None, other: Level | None) -> bool:
    if one is other or not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return one is other or (isinstance(one, float | int) and one == other)
    return one.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in one.items())


def _grid_step(sent: Tensor, levels: int) -> Tensor:
    """The largest a of which all entries are multiples; 0 where all of them are 0."""
    sizes = sent.abs()[sent != 0]
    if not sizes.numel():
        return sent.new_zeros(())
    least = sizes.min()
    for parts in range(1, levels + 1):
        steps = sizes * parts / least
        if bool(((steps - steps.round()).abs() <= ON_GRID * parts).all()):
            return least / parts
    return least
