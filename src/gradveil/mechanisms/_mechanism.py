"""The mechanism of clipping, pruning and Gaussian noise."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_finite, check_values
from gradveil._random import bernoulli, generator_or_fresh, normal_like, small_normals
from gradveil._typing import Level, Tensors

from ._levels import check_level, check_level_structure, level_of


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
        drawn = self._normals(values, generator)
        sent = {n: self._send(n, v, generator, drawn.get(n)) for n, v in values.items()}
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

    def _send(
        self, name: str, value: Tensor, generator: torch.Generator, drawn: Tensor | None
    ) -> Tensor:
        """What is sent of one tensor, with the normal numbers that were drawn for it, if any."""
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
        noise = normal_like(value, generator) if drawn is None else drawn.clone()
        return noise.mul_(std).add_(sent)

    def _normals(self, values: Tensors, generator: torch.Generator) -> Tensors:
        """Normal numbers that are drawn before all others, by name."""
        silent = isinstance(self.std, float) and self.std == 0.0
        return {} if silent else small_normals(values, generator)

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
