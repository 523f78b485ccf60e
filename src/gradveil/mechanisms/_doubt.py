"""How well somebody knows a mechanism that another one planned from the same values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import Tensor


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


def doubt_on_levels(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Doubt:
    """From √Σ_ii of two plans; entries count that have noise in both."""
    levels, shared = {}, {}
    for name, level in one.items():
        both = (level > 0) & (other[name] > 0)
        differences = 2 * (level[both].double().log() - other[name][both].double().log())
        mean = differences.mean() if differences.numel() else torch.zeros(())
        shared[name] = float(mean.square())
        levels[name] = float((differences - mean).square().mean()) if differences.numel() else 0.0
    return Doubt(levels, shared)


def shares_kept(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> tuple[float, float]:
    """P(the other keeps | one keeps) and P(the other keeps | one prunes), never 0 or 1.

    Half an entry is added on either side, so that no single entry makes a plan impossible.
    """
    sums = torch.zeros(4, dtype=torch.float64)
    for name, mask in one.items():
        a, b = mask.double(), other[name].double()
        sums += torch.stack([(a * b).sum(), a.sum(), ((1 - a) * b).sum(), (1 - a).sum()]).cpu()
    both, kept, only_other, pruned = sums.tolist()
    return (both + 0.5) / (kept + 1), (only_other + 0.5) / (pruned + 1)
