"""The mechanism of clipping, pruning and Gaussian noise, continuous or on a grid."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gradveil._checks import (
    check_finite,
    check_methods,
    check_number,
    check_structure,
    check_values,
)
from gradveil._random import bernoulli, generator_or_fresh, normal_like, small_normals
from gradveil._secure import GRID_BITS, release_on_grid
from gradveil._typing import Level, Tensors


class AnyMechanism(Protocol):
    """A random map y ~ S(g), entry by entry, with the three numbers that the theory needs."""

    def apply(self, values: Tensors, generator: torch.Generator | None = None) -> Tensors:
        """Draw what is sent."""
        ...

    def mean(self, values: Tensors) -> Tensors:
        """E[y_i] given the values."""
        ...

    def variance(self, values: Tensors) -> Tensors:
        """Var[y_i] given the values."""
        ...

    def information(self, values: Tensors) -> Tensors:
        """w_i of the Fisher information J_F = Σ_i w_i ∇g_i ∇g_iᵀ; infinite where g_i is sent bare.

        For a mixed mechanism this is the mean over its cases, as in Eq. 5.
        """
        ...


def check_mechanism(mechanism: object, name: str = "mechanism") -> None:
    """Require what a defense plans.

    >>> from gradveil.mechanisms import Mechanism
    >>> check_mechanism(Mechanism(std=1.0))
    """
    methods = ("apply", "mean", "variance", "information")
    check_methods(mechanism, name, methods, "`Mechanism(std=0.1)`")


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
        check_level(self.std, "std", 0, math.inf)
        if self.keep is not None:
            check_level(self.keep, "keep", 0, 1)
        if self.clip is not None:
            check_level(self.clip, "clip", 0, math.inf)

    def apply(self, values: Tensors, generator: torch.Generator | None = None) -> Tensors:
        """Draw what is sent. A NaN or an infinity in the values is an error, never sent."""
        self._check_structure(values)
        check_finite(values)
        sent = self._sent(values, generator_or_fresh(generator))
        check_finite(sent, "mechanism.apply(values)")
        return sent

    def mean(self, values: Tensors) -> Tensors:
        """E[y_i] = keep_i clip(g_i)."""
        self._check_structure(values)
        return {name: self._keep(name) * self._clipped(name, v) for name, v in values.items()}

    def variance(self, values: Tensors) -> Tensors:
        """Var[y_i] = std_i² + keep_i (1 - keep_i) clip(g_i)²."""
        self._check_structure(values)
        variances = {}
        for name, value in values.items():
            keep, noise = self._keep(name), self._std(name, value).square()
            variances[name] = noise + keep * (1 - keep) * self._clipped(name, value).square()
        return variances

    def information(self, values: Tensors) -> Tensors:
        """w_i = keep_i 1{|g_i| < P} / std_i²; infinite where a kept entry has no noise.

        The mean over the cases of a mixed mechanism: Eq. 5 needs no more.
        """
        self._check_structure(values)
        information = {}
        for name, value in values.items():
            seen = self._keep(name) * torch.ones_like(value)
            if self.clip is not None:
                seen = seen * (value.abs() < level_of(self.clip, name))
            square = self._std(name, value).square()
            information[name] = torch.where(seen > 0, seen / square, 0.0)
        return information

    def _sent(self, values: Tensors, generator: torch.Generator) -> Tensors:
        silent = isinstance(self.std, float) and self.std == 0.0
        drawn = {} if silent else small_normals(values, generator)  # before all others
        return {n: self._send(n, v, generator, drawn.get(n)) for n, v in values.items()}

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

    def _clipped(self, name: str, value: Tensor) -> Tensor:
        if self.clip is None:
            return value
        limit = level_of(self.clip, name)
        return value.clamp(-limit, limit)  # type: ignore[arg-type]

    def _keep(self, name: str) -> Tensor | float:
        keep = 1.0 if self.keep is None else level_of(self.keep, name)
        return keep.float() if isinstance(keep, Tensor) and keep.dtype == torch.bool else keep

    def _std(self, name: str, like: Tensor) -> Tensor:
        return torch.as_tensor(level_of(self.std, name), dtype=like.dtype, device=like.device)

    def _check_structure(self, values: Tensors) -> None:
        check_values(values)
        for level, name in ((self.std, "std"), (self.keep, "keep"), (self.clip, "clip")):
            check_level_structure(level, values, name)


@dataclass(frozen=True)
class GridMechanism(Mechanism):
    """y_i = step_i (round(g_i / step_i) + n_i), step_i = std_i / 2^bits, n_i discrete Gaussian.

    P(n) ∝ exp(-n² / (2 · 4^bits)), so the noise has the standard deviation std_i. What can be sent
    are the multiples of the steps, whatever the values are; a continuous Gaussian in floating point
    has sums that only some values lead to (Mironov, "On Significance of the Least Significant Bits
    for Differential Privacy", 2012). To theory and attacks it is the Gaussian with this `std`: at
    2²⁰ steps both have the same likelihood up to 10⁻¹² (`gradveil.privacy.grid_distance`).

    What is sent has the dtype of `std`; values may be in float64, as sums are. `std` is above 0
    where an entry is sent, `keep` is 0 or 1, and nothing is clamped.

    >>> std = {"w": torch.tensor([0.5, 2.0])}
    >>> sent = GridMechanism(std, bits=3).apply({"w": torch.zeros(2)})["w"]
    >>> steps = sent / torch.tensor([0.0625, 0.25])
    >>> bool((steps == steps.round()).all())
    True
    """

    bits: int = GRID_BITS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is not None:
            raise ValueError(
                "A mechanism on a grid should send entries as they are. Found"
                f" `clip = {self.clip}`. Use `Mechanism`."
            )

    def _sent(self, values: Tensors, generator: torch.Generator) -> Tensors:
        sent = {}
        for name, value in values.items():
            dtype = self.std[name].dtype if isinstance(self.std, dict) else value.dtype
            like = {name: value.to(torch.float64)}
            std = level_of(self.std, name)
            is_sent: Tensor | float = 1.0
            if self.keep is not None:
                is_sent = as_tensors(self.keep, like)[name] > 0
                std = torch.where(is_sent, as_tensors(self.std, like)[name], 1.0)
            released = release_on_grid(like[name], std, generator, self.bits)
            sent[name] = (released if self.keep is None else released * is_sent).to(dtype)
        return sent

    def steps(self, like: Tensors) -> Tensors:
        """The step of each entry, in float64."""
        levels = as_tensors(self.std, {name: v.to(torch.float64) for name, v in like.items()})
        return {name: level * 2.0**-self.bits for name, level in levels.items()}


def constant_like(number: float, values: Mapping[str, Tensor]) -> Tensors:
    """A tensor of one number in the shape of each value; it takes no memory.

    >>> constant_like(0.5, {"w": torch.zeros(2)})
    {'w': tensor([0.5000, 0.5000])}
    """
    kinds = {(value.dtype, value.device): value for value in values.values()}
    numbers = {kind: value.new_tensor(number) for kind, value in kinds.items()}
    return {name: numbers[v.dtype, v.device].expand(v.shape) for name, v in values.items()}


def level_of(level: Level, name: str) -> Tensor | float:
    """The level of one parameter: a number wherever it is the same for all of its entries."""
    if isinstance(level, Mapping):
        tensor = level[name]
        return _only(tensor) if _is_constant(tensor) else tensor
    return float(level)


def as_tensors(level: Level, like: Mapping[str, Tensor]) -> Tensors:
    """A level as one tensor for each parameter, in its shape, dtype and place."""
    return {
        n: torch.as_tensor(level_of(level, n), dtype=v.dtype, device=v.device).expand(v.shape)
        for n, v in like.items()
    }


def check_level(level: Level, name: str, low: float, high: float) -> None:
    """Require every level to be in [low, high] and finite."""
    if not isinstance(level, Mapping):
        check_number(level, name)
        level = {"": torch.tensor(float(level), dtype=torch.float64)}
    for key, tensor in level.items():
        if not isinstance(tensor, Tensor) or tensor.is_complex() or tensor.is_meta:
            kind = f"{tensor.dtype} on {tensor.device}" if isinstance(tensor, Tensor) else ""
            raise TypeError(
                f"Parameter `{name}` should be a number, or hold tensors of real numbers by"
                f" parameter name. Found {kind or type(tensor).__name__} for `{key}`. Convert it"
                " with torch.as_tensor."
            )
        if tensor.numel() == 0:
            continue
        tensor = tensor.detach()  # an attacker differentiates plans
        one = _is_constant(tensor)
        least, most = (_only(tensor),) * 2 if one else (float(end) for end in torch.aminmax(tensor))
        if not (low <= least and most <= high and math.isfinite(most)):
            where = f" in `{key}`" if key else ""
            raise ValueError(
                f"Parameter `{name}` should be finite and in [{low:g}, {high:g}]. Found values"
                f" from {least:g} to {most:g}{where}."
            )


def check_level_structure(level: Level | None, values: Mapping[str, Tensor], name: str) -> None:
    """Require a level given by parameter to have the names and shapes of the values."""
    if isinstance(level, Mapping):
        check_structure(level, values, name, "values")


def _only(constant: Tensor) -> float:
    return float(constant.as_strided((), ()).item())


def _is_constant(tensor: Tensor) -> bool:
    """Whether it is one number, expanded."""
    return not any(tensor.stride()) and tensor.numel() > 0
