"""How likely a message is under a mechanism, in float64, and under a plan that is an estimate."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal, StudentT

from gradveil._checks import WrongType, check_structure
from gradveil._tensors import Level, Tensors, flatten
from gradveil.mechanisms import (
    LaplaceMechanism,
    Mechanism,
    QuantisationMechanism,
    RoundingMechanism,
    SignMechanism,
    as_tensors,
    level_of,
)

LOG_ROOT_TAU = 0.5 * math.log(2 * math.pi)

COLUMNS = 2**15
"""How many entries of all messages are brought to float64 at a time."""

EXACT = 1e-8
"""A variance of log-levels below it comes from rounding: the levels are known."""


@dataclass(frozen=True)
class Doubt:
    """How far two plans from the same values, each with random probes of its own, are apart.

    With D_i = log Σ_ii - log Σ'_ii of two plans, D_i is a part that all entries of a tensor share,
    and a part of its own.
    """

    levels: Mapping[str, float] = field(default_factory=dict)
    """By tensor, Var[D_i] around the tensor's mean; a tensor that is missing is known exactly."""
    shared: Mapping[str, float] = field(default_factory=dict)
    """By tensor, the square of the mean of D_i."""
    kept: float = 1.0
    """The probability that an entry was kept where one's own plan keeps it ..."""
    pruned: float = 0.0
    """... and where it prunes it."""

    @property
    def levels_differ(self) -> bool:
        return any((*self.levels.values(), *self.shared.values()))

    @staticmethod
    def mean(doubts: Sequence["Doubt"]) -> "Doubt":
        return Doubt(
            {name: fmean(d.levels[name] for d in doubts) for name in doubts[0].levels},
            {name: fmean(d.shared[name] for d in doubts) for name in doubts[0].shared},
            fmean(d.kept for d in doubts),
            fmean(d.pruned for d in doubts),
        )


def doubt_between(one: Any, other: Any, like: Tensors) -> Doubt:
    """How far two plans from the same values are apart; `like` gives the shapes.

    Nothing is planned of signs and of levels of quantisation: nobody is in doubt about them.
    """
    if not isinstance(one, (Mechanism, LaplaceMechanism, RoundingMechanism)):
        return Doubt()
    kind = "step" if isinstance(one, RoundingMechanism) else "std"
    first, second = (as_tensors(getattr(plan, kind), like) for plan in (one, other))
    levels, shared = {}, {}
    for name, level in first.items():
        both = (level > 0) & (second[name] > 0)  # entries count that have noise in both
        differences = 2 * (level[both].double().log() - second[name][both].double().log())
        some = differences if differences.numel() else torch.zeros(1)
        shared[name] = float(some.mean().square())
        levels[name] = float((some - some.mean()).square().mean())
    if not isinstance(one, Mechanism) or one.keep is None or other.keep is None:
        return Doubt(levels, shared)
    own, its = (flatten(as_tensors(k, like)).double() for k in (one.keep, other.keep))

    def share(where: Tensor) -> float:
        """Of what the other keeps; with half an entry more on either side, never 0 or 1."""
        return (float((where * its).sum()) + 0.5) / (float(where.sum()) + 1)

    return Doubt(levels, shared, share(own), share(1 - own))


def log_likelihoods(
    mechanism: Any, values: Sequence[Tensors], sent: Sequence[Tensors], doubt: Doubt | None = None
) -> Tensor:
    """log p(sent | values) of all messages (rows) under all values (columns), in float64.

    With all terms that depend on the mechanism; `doubt` is `None` if this very one was applied.
    """
    for one in sent:
        check_structure(one, values[0], "sent", "values")
    tables = [
        _table(mechanism, name, [one[name] for one in values], [one[name] for one in sent], doubt)
        for name in values[0]
    ]
    return torch.stack(tables).sum(0)


def _table(
    mechanism: Any, name: str, values: list[Tensor], sent: list[Tensor], doubt: Doubt | None
) -> Tensor:
    """Of one tensor; where values cannot lead to what was sent, so negative that it decides."""
    levels = partial(as_tensors, like={name: values[0].double()})
    if isinstance(mechanism, Mechanism):
        clip = None if mechanism.clip is None else level_of(mechanism.clip, name)
        if clip is not None:
            values = [value.clamp(-clip, clip) for value in values]  # type: ignore[arg-type]
        std = levels(mechanism.std)[name]
        keep = None if mechanism.keep is None else levels(mechanism.keep)[name]
        if doubt is None:
            return noise_table(sent, values, std, keep)
        pair = partial(_doubtful, std=std, keep=keep, name=name, doubt=doubt)
    elif isinstance(mechanism, LaplaceMechanism):
        pair = partial(_laplace, std=levels(mechanism.std)[name])
    elif isinstance(mechanism, RoundingMechanism):
        known = doubt or Doubt()
        variance = known.levels.get(name, 0.0) + known.shared.get(name, 0.0)
        pair = partial(_rounded, step=levels(mechanism.step)[name], variance=variance)
    elif isinstance(mechanism, QuantisationMechanism):
        pair = partial(_quantised, levels=mechanism.levels)
    elif isinstance(mechanism, SignMechanism):
        pair = partial(_signs)
    else:
        expected = "have a likelihood that is known exactly, as those of `gradveil.mechanisms`"
        raise WrongType("mechanism", expected, type(mechanism).__name__, "Use `Adaptive`.")
    return torch.stack([torch.stack([pair(y, v) for v in values]) for y in sent])


def rounding_error(
    sent: Tensor, least: Tensor | float = 0.0, where: Tensor | None = None
) -> Tensor:
    """τ_i, how far two computations of one entry may be apart.

    16 · precision · (|y_i| + root mean square + least), the mean over the entries `where` that
    counts, or over all.
    """
    wide, known = sent.double(), torch.finfo(sent.dtype)
    chosen = wide if where is None else wide[where]
    size = chosen.square().mean().sqrt() if chosen.numel() else wide.new_zeros(())
    error: Tensor = 16 * known.eps * (wide.abs() + size + least)
    return error.clamp(min=known.tiny)


def noise_table(
    sent: Sequence[Tensor], values: Sequence[Tensor], std: Tensor, keep: Tensor | None
) -> Tensor:
    """Σ_i log[k_i N(y_i; v_i, std_i²) + (1 - k_i) N(y_i; 0, std_i²)], messages × values.

    By matrix products: with the weights w_i = 1/std_i², and both sides moved by the mean of the
    values, so that little cancels,

        Σ_i w_i (y_i - k_i v_i)² = Σ_i w_i y_i² - 2 Σ_i (w_i y_i) (k_i v_i) + Σ_i w_i (k_i v_i)².

    Message by message where entries have no noise or are kept with a probability in between, and
    where noise is so small that rounding of what cancels could be seen.
    """
    y, v = (torch.stack([one.reshape(-1) for one in each]) for each in (sent, values))
    level = std.double().reshape(-1)
    share = torch.ones_like(level) if keep is None else keep.double().reshape(-1)
    if bool((level > 0).all()) and bool(((share == 0) | (share == 1)).all()):
        logs = torch.zeros(len(y), len(v), dtype=torch.float64, device=y.device)
        terms = torch.zeros_like(logs)
        for start in range(0, y.shape[1], COLUMNS):
            part = slice(start, start + COLUMNS)
            own, other = y[:, part].double(), v[:, part].double() * share[part]
            own, other = own - other.mean(0), other - other.mean(0)
            weighted = own / level[part].square()
            squares = (own * weighted).sum(1, keepdim=True)
            known = (other.square() / level[part].square()).sum(1)
            logs -= 0.5 * (squares - 2 * weighted @ other.T + known)
            terms += squares + known
        if float(terms.max()) * 64 * torch.finfo(torch.float64).eps <= 1e-6:
            return logs - (level.log() + LOG_ROOT_TAU).sum()
    return torch.stack([_noise_row(one, v, level, share) for one in y])


def _noise_row(sent: Tensor, values: Tensor, level: Tensor, share: Tensor) -> Tensor:
    """Of one message under each of the values.

    Where there is no noise y_i is a point: log p is 0 where both agree, and -½ (misfit / τ_i)²
    where they do not, with τ_i the size of a rounding error.
    """
    y, v, noisy = sent.double(), values.double(), level > 0
    spread = torch.where(noisy, level, rounding_error(sent, where=~noisy))
    constant = -(level[noisy].log() + LOG_ROOT_TAU).sum()
    if bool(((share == 0) | (share == 1)).all()):
        return constant - 0.5 * (y - share * v).div_(spread).square_().sum(1)
    kept, pruned = -0.5 * ((y - v) / spread).square(), -0.5 * (y / spread).square()
    return constant + torch.logaddexp(kept + share.log(), pruned + (1 - share).log()).sum(1)


def _laplace(sent: Tensor, value: Tensor, std: Tensor) -> Tensor:
    """Σ_i -|y_i - g_i| / b_i - log 2b_i; nobody is in doubt about its levels."""
    misfit, b = (sent.double() - value.double()).abs(), std.double() / math.sqrt(2)
    exact = -0.5 * (misfit / rounding_error(sent)).square()
    safe = torch.where(b > 0, b, 1.0)
    return torch.where(b > 0, -misfit / safe - (2 * safe).log(), exact).sum()


def _quantised(sent: Tensor, value: Tensor, levels: int) -> Tensor:
    """Σ_i log max(0, 1 - |y_i - g_i| / a): by its level, or because the norm is another."""
    y, v = sent.double(), value.double()
    step = v.square().sum().sqrt() / levels
    error = rounding_error(sent, step)
    unit = torch.where(step > 0, step, 1.0)
    off_grid = (y - step * (y / unit).round()).abs()
    misfit = torch.maximum(off_grid, ((y - v).abs() - step).clamp(min=0))
    chance = (1 - (y - v).abs() / unit).clamp(min=torch.finfo(sent.dtype).eps)
    possible = misfit <= 4 * error
    return torch.where(possible, chance.log(), -0.5 * (misfit / error).square()).sum()


def _signs(sent: Tensor, value: Tensor) -> Tensor:
    """0 where all signs agree; -½ (|v_i| / τ_i)² where one is wrong."""
    v = value.double()
    error = rounding_error(v.to(sent.dtype))
    return -0.5 * torch.where(v.sign() != sent.double().sign(), v / error, 0.0).square().sum()


def _rounded(sent: Tensor, value: Tensor, step: Tensor, variance: float) -> Tensor:
    """0 where values round to what was sent; -½ (distance to the cell / τ_i)² where they do not.

    With a variance of log step_i², these steps are estimates.
    """
    if variance > EXACT:
        return doubtful_log_probabilities(sent, value, step, variance).sum()
    width = step.double()
    outside = ((sent.double() - value.double()).abs() - width / 2).clamp(min=0)
    return -0.5 * (outside / rounding_error(sent, width)).square().sum()


def doubtful_log_probabilities(
    sent: Tensor, value: Tensor, step: Tensor, variance: float
) -> Tensor:
    """Of each rounded entry, when log step_i² is known up to this variance.

    With a log-normal step of density f around the own estimate: y_i = 0 has the probability
    P[step > 2|v_i|]; y_i ≠ 0 is n steps for some n ≥ 1, and its density is
    Σ_n f(|y_i|/n)/n over the n for which v_i rounds to n steps, ||v_i| - |y_i|| ≤ |y_i|/(2n),
    with equal signs. Further than 16 steps from 0 the grid says nothing, and y_i is uniform within
    half a step around v_i. No entry is so unlikely that it decides alone.
    """
    y, v = sent.double(), value.double()
    error, spread = rounding_error(sent), max(0.5 * math.sqrt(variance), 1e-4)
    own = torch.maximum(step.double(), error)
    silent = 0.5 * torch.erfc((2 * v.abs() / own).log() / (spread * math.sqrt(2)))
    misfit, size = (y - v).abs() - error, y.abs().clamp(min=1e-300)
    density = torch.zeros_like(y)
    for n in range(1, 17):
        score = (size / (n * own)).log() / spread
        normal = (-0.5 * score.square() - LOG_ROOT_TAU).exp() / (spread * size)  # f(|y|/n)/n
        density = density + torch.where(misfit <= size / (2 * n), normal, 0.0)
    wide = torch.where(misfit <= own / 2 * (1 + 3 * spread), 1 / own, 0.0)
    density = torch.where(size > 16 * own, wide, density)
    floor = torch.where(y == 0, 1e-9, 1e-9 / own)
    return torch.maximum(torch.where(y == 0, silent, density), floor).log()


def _doubtful(
    sent: Tensor, value: Tensor, std: Tensor, keep: Tensor | None, name: str, doubt: Doubt
) -> Tensor:
    """log p(y) for y_i = r_i v_i + std_i ε_i with levels and mask in doubt.

    Where the plan has no noise the spread is τ_i, the size of a rounding error, so that plans with
    different bare entries compare. An entry that was sent although the plan prunes it gets the root
    mean square level of those that the plan keeps.

    Zeros of the message are pruned entries, or sent ones without noise whose value is 0: so the
    mask is seen, and an entry is on the other side of it than in the plan with the probabilities
    of the doubt. Where pruned entries have noise of their own, each is a mixture of both cases.
    """
    y, v, level, error = sent.double(), value.double(), std.double(), rounding_error(sent)
    own, shared = doubt.levels.get(name, 0.0), doubt.shared.get(name, 0.0)
    if keep is None:
        return _with_factor(y - v, level, error, own, shared)
    share = keep.double()
    chance = share * doubt.kept + (1 - share) * doubt.pruned
    full = torch.where(share > 0, level, _typical(level[share > 0]))
    if bool(((share == 0) & (level > 0)).any()):
        noise = torch.where(share == 0, level, _typical(level[share == 0]))
        kept = _density(full.hypot(error), own).log_prob(y - v)
        pruned = _density(noise.hypot(error), own).log_prob(y)
        return torch.logaddexp(kept + chance.log(), pruned + (1 - chance).log()).sum()
    seen = sent != 0
    silent = ~seen & (full == 0) & (v.abs() <= error)
    mask = torch.where(seen, chance, 1 - chance).log().masked_fill(silent, 0.0).sum()
    return mask + _with_factor((y - v)[seen], full[seen], error[seen], own, shared)


def _with_factor(misfit: Tensor, level: Tensor, error: Tensor, own: float, shared: float) -> Tensor:
    """log ∫ p(u) Π_i p(misfit_i | e^u Σ_ii) du: the whole tensor's variances may be off by e^u.

    u is normal with the variance `shared`; Laplace's method at the most likely u, by Newton steps,
    which is exact up to 1/n for n entries.
    """
    scale, noisy = level.hypot(error), level > 0
    known: Tensor = _density(scale, own).log_prob(misfit)
    if shared <= EXACT or not bool(noisy.any()):
        return known.sum()
    squares, u = (misfit / scale)[noisy].square(), 0.0
    rate = 0.0 if own <= EXACT else 1 / (1 + 2 / own)
    for _ in range(12):
        shrunk = squares * math.exp(-u)
        part = 0.5 * (1 + rate) * shrunk / (1 + rate * shrunk)
        slope = float(part.sum()) - 0.5 * len(squares) - u / shared
        curvature = float((part / (1 + rate * shrunk)).sum()) + 1 / shared
        step = max(-2.0, min(2.0, slope / curvature))
        u += step
        if abs(step) < 1e-3:
            break
    moved: Tensor = _density(scale[noisy] * math.exp(u / 2), own).log_prob(misfit[noisy]).sum()
    unlikely = 0.5 * u**2 / shared + 0.5 * math.log(shared * curvature)
    return known[~noisy].sum() + moved - unlikely


def _density(scale: Tensor, own: float) -> Normal | StudentT:
    """Of misfits at this scale, whose log-variance is known up to `own`.

    A variance that is inverse-gamma makes the density Student's, with ν = 1 + 2/own degrees of
    freedom: trigamma(ν/2) ≈ own is the variance of its logarithm.
    """
    if own <= EXACT:
        return Normal(0.0, scale, validate_args=False)
    return StudentT(1 + 2 / own, 0.0, scale, validate_args=False)


def _typical(levels: Tensor) -> Tensor:
    """Their root mean square; 0 where there are none."""
    return (levels.square().sum() / max(1, levels.numel())).sqrt()


def same_noise(one: Any, other: Any) -> bool:
    """Whether both are Gaussian with the same levels, mask and thresholds."""
    if not isinstance(one, Mechanism) or not isinstance(other, Mechanism):
        return one is other

    def same(level: Level | None, its: Level | None) -> bool:
        if not isinstance(level, Mapping) or not isinstance(its, Mapping):
            return level is its or (isinstance(level, float | int) and level == its)
        return level.keys() == its.keys() and all(torch.equal(level[n], its[n]) for n in level)

    return all(same(getattr(one, name), getattr(other, name)) for name in ("std", "keep", "clip"))
