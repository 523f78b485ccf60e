"""The mechanism of clipping, pruning and Gaussian noise."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradveil._checks import check_finite, check_structure, check_values
from gradveil._random import bernoulli, generator_or_fresh, normal_like
from gradveil._typing import Level, Tensors

from ._doubt import Doubt, doubt_on_levels, shares_kept
from ._doubtful_likelihood import TensorDoubt, doubtful_log_likelihoods
from ._levels import check_level, check_level_structure, level_of, raised, same_level
from ._likelihood import Table, channel_log_likelihood, channel_table
from ._reading import Reading, as_tensors

SURE = 1e-6
"""Errors of a log-likelihood that change no result."""


@dataclass(frozen=True)
class Mechanism:
    """y = r ⊙ clip(g) + std ⊙ ε with ε ~ N(0, I) and r ~ Bernoulli(keep).

    Args:
        std: The standard deviation √Σ_ii of the noise.
        keep: 1 where an entry is sent, 0 where it is pruned, in between where it is sent with
            that probability (a mixed defense). `None` keeps everything.
        clip: The threshold P: entries are clamped to [-P, P]. `None` clamps nothing.

    Each is a number or, by parameter name, a tensor in the parameter's shape.

    Formal guarantees: the noise bounds the error of every reconstruction, as far as the prior is
    right (`reconstruction_bound`). Clamping entries of a batch gradient is not the per-example
    norm clipping of DP-SGD: by itself this mechanism carries NO (ε, δ) guarantee.

    >>> sent = Mechanism(std=0.0, keep={"w": torch.tensor([1.0, 0.0])}).apply(
    ...     {"w": torch.tensor([3.0, 4.0])})
    >>> sent["w"]
    tensor([3., 0.])
    """

    std: Level
    keep: Level | None = None
    clip: Level | None = None

    def __post_init__(self) -> None:
        check_level(self.std, "std", 0, float("inf"))
        if self.keep is not None:
            check_level(self.keep, "keep", 0, 1)
        if self.clip is not None:
            check_level(self.clip, "clip", 0, float("inf"))

    def apply(self, values: Tensors, generator: torch.Generator | None = None) -> Tensors:
        """Draw what is sent. A NaN or an infinity in the values is an error, never sent."""
        self._check_structure(values)
        check_finite(values)
        generator = generator_or_fresh(generator)
        sent = {name: self._send(name, value, generator) for name, value in values.items()}
        check_finite(sent, "mechanism.apply(values)")
        return sent

    def mean(self, values: Tensors) -> Tensors:
        """E[y_i] = keep_i clip(g_i)."""
        self._check_structure(values)
        return {name: self._keep(name) * self._clipped(name, v) for name, v in values.items()}

    def variance(self, values: Tensors) -> Tensors:
        """Var[y_i] = std_i² + keep_i (1 - keep_i) clip(g_i)²."""
        self._check_structure(values)
        return {name: self._variance(name, value) for name, value in values.items()}

    def information(self, values: Tensors) -> Tensors:
        """w_i = keep_i 1{|g_i| < P} / std_i²; infinite where a kept entry has no noise.

        The mean over the cases of a mixed mechanism: Eq. 5 needs no more.
        """
        self._check_structure(values)
        return {name: self._information(name, value) for name, value in values.items()}

    def log_likelihood(self, values: Tensors, sent: Tensors, doubt: Doubt | None = None) -> Tensor:
        """log p(sent | values) in float64, with all terms that depend on the levels.

        Σ_i log[k_i N(y_i; clip(g_i), std_i²) + (1 - k_i) N(y_i; 0, std_i²)]. An entry without
        noise is a point: it adds log k_i where both are equal up to rounding errors, and where
        they are not so large a negative number that nothing outweighs it. With a `doubt` these
        levels and this mask are estimates of the ones that were applied.
        """
        self._check_structure(values)
        check_structure(sent, values, "sent", "values")
        terms = [self._log_likelihood(n, v, sent[n], doubt) for n, v in values.items()]
        return torch.stack(terms).sum()

    def log_likelihoods(
        self, values: Sequence[Tensors], sent: Sequence[Tensors], doubt: Doubt | None = None
    ) -> Tensor:
        """`log_likelihood` of all messages (rows) under all values (columns), by matrix products.

        Where so much cancels that rounding could change who is the most likely, as for entries
        without noise, those that come into question are computed again, one by one.
        """
        for one in values:
            self._check_structure(one)
        for one in sent:
            check_structure(one, values[0], "sent", "values")
        if doubt is not None:
            return torch.stack([self._doubted(one, sent, doubt) for one in values], dim=1)
        tables = [self._table(name, values, sent) for name in values[0]]
        logs, error = (torch.stack([table[k] for table in tables]).sum(0) for k in (0, 1))
        hopeless = logs + error < (logs - error).amax(1, keepdim=True)
        unsure = ~(error <= SURE) & ~hopeless  # also where something is not finite
        for row, column in unsure.nonzero().tolist():
            logs[row, column] = self.log_likelihood(values[column], sent[row])
        return logs

    def doubt(self, other: "Mechanism", like: Tensors) -> Doubt:
        """How far another plan from the same values is from this one; `like` gives the shapes."""
        doubt = doubt_on_levels(as_tensors(self.std, like), as_tensors(other.std, like))
        if self.keep is None or other.keep is None:
            return doubt
        kept, pruned = shares_kept(as_tensors(self.keep, like), as_tensors(other.keep, like))
        return replace(doubt, kept=kept, pruned=pruned)

    def read(self, sent: Tensors, realised: bool = True) -> Reading:
        """Noise around the sent values; pruned entries by themselves say nothing.

        Of a mask that is known, its zeros are pruned, noisy or not. Of one that is not, any 0 in
        the message may be, where entries are pruned at all.
        """
        self._check_structure(sent)
        pruned = self._pruned(sent, realised)
        noise = as_tensors(self.std, sent)
        clip = torch.inf if self.clip is None else self.clip
        std = {name: torch.where(pruned[name], 0.0, level) for name, level in noise.items()}
        return Reading(dict(sent), dict(sent), std, as_tensors(clip, sent), pruned)

    def equals(self, other: "Mechanism") -> bool:
        """Whether both do the same to every message."""
        mine, others = (self.std, self.keep, self.clip), (other.std, other.keep, other.clip)
        return all(same_level(a, b) for a, b in zip(mine, others, strict=True))

    def with_least_noise(self, share: float) -> "Mechanism":
        """No standard deviation below this share of the root mean square of those above 0."""
        std = raised(self.std, share)
        return self if std is self.std else Mechanism(std, self.keep, self.clip)

    def _log_likelihood(
        self, name: str, value: Tensor, sent: Tensor, doubt: Doubt | None
    ) -> Tensor:
        if doubt is not None:
            return self._doubtful(name, value, [sent], doubt)[0]
        level, clipped = level_of(self.std, name), self._clipped(name, value)
        return channel_log_likelihood(sent, clipped, level, self._keep(name))

    def _doubted(self, values: Tensors, sent: Sequence[Tensors], doubt: Doubt) -> Tensor:
        parts = [
            self._doubtful(name, value, [one[name] for one in sent], doubt)
            for name, value in values.items()
        ]
        return torch.stack(parts).sum(0)

    def _doubtful(self, name: str, value: Tensor, sent: Sequence[Tensor], doubt: Doubt) -> Tensor:
        """Of each message, given how well levels and mask are known."""
        one, clipped = {name: value}, self._clipped(name, value)
        all_kept = isinstance(kept := self._keep(name), float) and kept == 1.0
        keep = None if all_kept else as_tensors(self.keep, one)[name]  # type: ignore[arg-type]
        level, shared = doubt.levels.get(name, 0.0), doubt.shared.get(name, 0.0)
        known = TensorDoubt(level, shared, doubt.kept, doubt.pruned)
        std = as_tensors(self.std, one)[name]
        return doubtful_log_likelihoods(sent, clipped, std, keep, known)

    def _table(self, name: str, values: Sequence[Tensors], sent: Sequence[Tensors]) -> Table:
        clipped = [self._clipped(name, one[name]) for one in values]
        own = [one[name] for one in sent]
        return channel_table(own, clipped, level_of(self.std, name), self._keep(name))

    def _pruned(self, sent: Tensors, realised: bool) -> Tensors:
        if self.keep is None:
            return {name: torch.zeros_like(y, dtype=torch.bool) for name, y in sent.items()}
        keep = as_tensors(self.keep, sent)
        if realised:
            return {n: (k == 0) | ((k < 1) & (sent[n] == 0)) for n, k in keep.items()}
        prunes = any(bool((k < 1).any()) for k in keep.values())
        return {name: (y == 0) & prunes for name, y in sent.items()}

    def _send(self, name: str, value: Tensor, generator: torch.Generator) -> Tensor:
        keep, std = self._keep(name), level_of(self.std, name)
        if isinstance(keep, float) and 0 < keep < 1:
            keep = torch.full_like(value, keep)
        if isinstance(keep, Tensor) and bool(((keep > 0) & (keep < 1)).any()):
            keep = bernoulli(keep, generator)
        sent = self._clipped(name, value)
        if not (isinstance(keep, float) and keep == 1.0):
            sent = keep * sent
        if isinstance(std, float) and std == 0.0:
            return sent.to(value.dtype, copy=True)
        return normal_like(value, generator).mul_(std).add_(sent)

    def _clipped(self, name: str, value: Tensor) -> Tensor:
        if self.clip is None:
            return value
        limit = level_of(self.clip, name)
        return value.clamp(-limit, limit)  # type: ignore[arg-type]

    def _keep(self, name: str) -> Tensor | float:
        keep = 1.0 if self.keep is None else level_of(self.keep, name)
        return keep.float() if isinstance(keep, Tensor) and keep.dtype == torch.bool else keep

    def _variance(self, name: str, value: Tensor) -> Tensor:
        keep, std = self._keep(name), level_of(self.std, name)
        noise = torch.as_tensor(std, dtype=value.dtype, device=value.device).square()
        return noise + keep * (1 - keep) * self._clipped(name, value).square()

    def _information(self, name: str, value: Tensor) -> Tensor:
        std = torch.as_tensor(level_of(self.std, name), dtype=value.dtype, device=value.device)
        seen = self._keep(name) * torch.ones_like(value)
        if self.clip is not None:
            seen = seen * (value.abs() < level_of(self.clip, name))
        return torch.where(seen > 0, seen / std.square(), 0.0)

    def _check_structure(self, values: Tensors) -> None:
        check_values(values)
        check_level_structure(self.std, values, "std")
        for level, name in ((self.keep, "keep"), (self.clip, "clip")):
            if level is not None:
                check_level_structure(level, values, name)
