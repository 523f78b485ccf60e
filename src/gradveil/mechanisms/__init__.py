"""What a defense does to a message, stated so that theory and attacks can read it.

Mechanisms clip, prune and add noise, on a grid or not; or round, take signs, quantise.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import (
    WrongType,
    WrongValue,
    check_count,
    check_finite,
    check_methods,
    check_number,
    check_positive,
    check_structure,
    check_values,
)
from gradveil._random import bernoulli, generator_or_fresh, normal_like, small_normals
from gradveil._secure import GRID_BITS, release_on_grid
from gradveil._tensors import Level, Tensors

# What `__all__` does not list is for our own packages.
__all__ = [
    "AnyMechanism",
    "LaplaceMechanism",
    "Mechanism",
    "QuantisationMechanism",
    "RoundingMechanism",
    "SignMechanism",
]


def check_mechanism(mechanism: object, name: str = "mechanism") -> None:
    """Require what a defense plans."""
    methods = ("apply", "mean", "variance", "information")
    check_methods(mechanism, name, methods, "`Mechanism(std=0.1)`")


class AnyMechanism(ABC):
    """A random map y ~ S(g), entry by entry, with the three numbers that the theory needs.

    What has these four methods is one. The fields `std`, `keep`, `clip` and `step` of ours are
    levels: numbers or, by parameter name, tensors in the parameter's shape. `attacks.Adaptive`
    takes a mechanism of one's own for normal noise of its `variance` around the values; what
    changes the values before the noise belongs into `Defense.prepared`.

    >>> isinstance(Mechanism(std=0.1), AnyMechanism)
    True
    """

    def apply(self, values: Tensors, generator: torch.Generator | None = None) -> Tensors:
        """Draw what is sent. A NaN or an infinity in the values is an error, never sent."""
        self._check(values)
        check_finite(values)
        sent = self._sent(values, generator)
        check_finite(sent, "mechanism.apply(values)")
        return sent

    def mean(self, values: Tensors) -> Tensors:
        """E[y_i] given the values; here g_i."""
        self._check(values)
        return dict(values)

    @abstractmethod
    def variance(self, values: Tensors) -> Tensors:
        """Var[y_i] given the values."""

    @abstractmethod
    def information(self, values: Tensors) -> Tensors:
        """w_i of the Fisher information J_F = Σ_i w_i ∇g_i ∇g_iᵀ; infinite where g_i is sent bare.

        For a mixed mechanism this is the mean over its cases, as in Eq. 5.
        """

    @abstractmethod
    def _sent(self, values: Tensors, generator: torch.Generator | None) -> Tensors: ...

    def _check(self, values: Tensors) -> None:
        check_values(values)
        for name in ("std", "keep", "clip", "step"):
            level = getattr(self, name, None)
            if isinstance(level, Mapping):
                check_structure(level, values, name, "values")


@dataclass(frozen=True)
class Mechanism(AnyMechanism):
    """y = r ⊙ clip(g) + std ⊙ ε with ε ~ N(0, I) and r ~ Bernoulli(keep).

    Args:
        std: The standard deviation √Σ_ii of the noise.
        keep: 1 where an entry is sent, 0 where it is pruned, in between where it is sent with
            that probability (a mixed defense). `None` keeps everything.
        clip: The threshold P: entries are clamped to [-P, P]. `None` clamps nothing.

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
        check_level(self.std, "std")
        if self.keep is not None:
            check_level(self.keep, "keep", 1)
        if self.clip is not None:
            check_level(self.clip, "clip")

    def mean(self, values: Tensors) -> Tensors:
        """E[y_i] = keep_i clip(g_i)."""
        self._check(values)
        return {name: self._keep(name) * self._clipped(name, v) for name, v in values.items()}

    def variance(self, values: Tensors) -> Tensors:
        """Var[y_i] = std_i² + keep_i (1 - keep_i) clip(g_i)²."""
        self._check(values)
        stds, variances = as_tensors(self.std, values), {}
        for name, value in values.items():
            keep, square = self._keep(name), self._clipped(name, value).square()
            variances[name] = stds[name].square() + keep * (1 - keep) * square
        return variances

    def information(self, values: Tensors) -> Tensors:
        """w_i = keep_i 1{|g_i| < P} / std_i²; infinite where a kept entry has no noise."""
        self._check(values)
        stds, information = as_tensors(self.std, values), {}
        for name, value in values.items():
            seen = self._keep(name) * torch.ones_like(value)
            if self.clip is not None:
                seen = seen * (value.abs() < level_of(self.clip, name))
            information[name] = torch.where(seen > 0, seen / stds[name].square(), 0.0)
        return information

    def _sent(self, values: Tensors, generator: torch.Generator | None) -> Tensors:
        generator = generator_or_fresh(generator)
        silent = isinstance(self.std, float) and self.std == 0.0
        drawn = {} if silent else small_normals(values, generator)  # before all others
        return {n: self._send(n, v, generator, drawn.get(n)) for n, v in values.items()}

    def _send(
        self, name: str, value: Tensor, generator: torch.Generator, drawn: Tensor | None
    ) -> Tensor:
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


@dataclass(frozen=True)
class GridMechanism(Mechanism):
    """y_i = step_i (round(g_i / step_i) + n_i), step_i = std_i / 2^bits, n_i discrete Gaussian.

    P(n) ∝ exp(-n² / (2 · 4^bits)), so the noise has the standard deviation std_i. What can be sent
    are the multiples of the steps, whatever the values are; a continuous Gaussian in floating point
    has sums that only some values lead to (Mironov, "On Significance of the Least Significant Bits
    for Differential Privacy", 2012). To theory and attacks it is the Gaussian with this `std`: at
    2²⁰ steps both have the same likelihood up to 10⁻¹² (`grid_distance` in `privacy/_releases.py`).

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
            expected = "be left out on a grid, which should send entries as they are"
            raise WrongValue("clip", expected, str(self.clip), "Use `Mechanism`.", assigned=True)

    def _sent(self, values: Tensors, generator: torch.Generator | None) -> Tensors:
        generator, sent = generator_or_fresh(generator), {}
        for name, value in values.items():
            dtype = self.std[name].dtype if isinstance(self.std, dict) else value.dtype
            like = {name: value.to(torch.float64)}
            std = level_of(self.std, name)
            if self.keep is None:
                released = release_on_grid(like[name], std, generator, self.bits)
            else:
                is_sent = as_tensors(self.keep, like)[name] > 0
                std = torch.where(is_sent, as_tensors(self.std, like)[name], 1.0)
                released = release_on_grid(like[name], std, generator, self.bits) * is_sent
            sent[name] = released.to(dtype)
        return sent


class _BareMechanism(AnyMechanism):
    """Sends a noise-free function of the values: the Cramér-Rao argument gives no bound."""

    def mean(self, values: Tensors) -> Tensors:
        return self.apply(values)

    def variance(self, values: Tensors) -> Tensors:
        self._check(values)
        return {name: torch.zeros_like(value) for name, value in values.items()}

    def information(self, values: Tensors) -> Tensors:
        self._check(values)
        return {name: torch.full_like(value, torch.inf) for name, value in values.items()}


@dataclass(frozen=True)
class RoundingMechanism(_BareMechanism):
    """y_i = step_i · round(g_i / step_i), to the nearest, ties to even; step 0 sends g_i itself.

    So does a step so small that the number of steps overflows. Deterministic: the bound is 0.

    >>> RoundingMechanism(step=0.5).apply({"w": torch.tensor([0.6, -1.4])})["w"]
    tensor([ 0.5000, -1.5000])
    """

    step: Level

    def __post_init__(self) -> None:
        check_level(self.step, "step")

    def _sent(self, values: Tensors, generator: torch.Generator | None) -> Tensors:
        steps, sent = as_tensors(self.step, values), {}
        for name, value in values.items():
            rounded = torch.round(value / steps[name]) * steps[name]
            sent[name] = torch.where(rounded.isfinite(), rounded, value)
        return sent


@dataclass(frozen=True)
class SignMechanism(_BareMechanism):
    """y_i = step · sign(g_i), with sign(0) = 0. Deterministic: the bound is 0.

    >>> SignMechanism(step=0.5).apply({"w": torch.tensor([3.0, -4.0, 0.0])})["w"]
    tensor([ 0.5000, -0.5000,  0.0000])
    """

    step: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self.step, "step")

    def _sent(self, values: Tensors, generator: torch.Generator | None) -> Tensors:
        return {name: self.step * value.sign() for name, value in values.items()}


@dataclass(frozen=True)
class QuantisationMechanism(_BareMechanism):
    """y_i = a ⌊|g_i|/a + u_i⌋ sign(g_i) with a = ‖g‖₂ / levels of each tensor, u_i uniform.

    So E[y_i] = g_i, and an entry between two levels goes to either with the probability that its
    place says. The norm can be read off what is sent: it is a noise-free function of the values, so
    that there is no bound.

    >>> sent = QuantisationMechanism(levels=5).apply({"w": torch.tensor([3.0, -4.0])})
    >>> sent["w"].round(decimals=3)
    tensor([ 3., -4.])
    """

    levels: int

    def __post_init__(self) -> None:
        check_count(self.levels, "levels")

    def _sent(self, values: Tensors, generator: torch.Generator | None) -> Tensors:
        generator, sent = generator_or_fresh(generator), {}
        for name, value in values.items():
            step, whole, part = self._places(value)
            steps = whole + bernoulli(part, generator)
            sent[name] = (step * steps * value.sign()).to(value.dtype)
        return sent

    mean = AnyMechanism.mean  # E[y_i] = g_i

    def variance(self, values: Tensors) -> Tensors:
        """Var[y_i] = a² f_i (1 - f_i), f_i the part of |g_i|/a behind the point."""
        self._check(values)
        variances = {}
        for name, value in values.items():
            step, _, part = self._places(value)
            variances[name] = (step.square() * part * (1 - part)).to(value.dtype)
        return variances

    def _places(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The step, and |g_i| in steps, before and behind the point; 0 for a tensor of zeros."""
        step = value.double().square().sum().sqrt() / self.levels
        place = value.double().abs() / torch.where(step > 0, step, 1.0)
        return step, place.floor(), place.frac()


@dataclass(frozen=True)
class LaplaceMechanism(AnyMechanism):
    """y_i = g_i + b_i ξ_i with the density e^{-|ξ|} / 2, and b_i = std_i / √2.

    Its Fisher information about g_i is 1/b_i² = 2/std_i²: twice that of Gaussian noise of the same
    variance, which has the least of all. 0 sends an entry as it is.

    >>> LaplaceMechanism(std=2.0).information({"w": torch.zeros(2)})["w"]
    tensor([0.5000, 0.5000])
    """

    std: Level

    def __post_init__(self) -> None:
        check_level(self.std, "std")

    def _sent(self, values: Tensors, generator: torch.Generator | None) -> Tensors:
        generator, levels, sent = generator_or_fresh(generator), as_tensors(self.std, values), {}
        for name, value in values.items():
            first, second, third = (normal_like(value, generator) for _ in range(3))
            # √W Z has this density, with W = (Z₁² + Z₂²) / 2 exponential of mean 1
            noise = (0.5 * (first.square() + second.square())).sqrt() * third
            sent[name] = value + levels[name] * noise
        return sent

    def variance(self, values: Tensors) -> Tensors:
        """Var[y_i] = std_i²."""
        self._check(values)
        return {n: s.square() for n, s in as_tensors(self.std, values).items()}

    def information(self, values: Tensors) -> Tensors:
        """w_i = 2 / std_i²; infinite where an entry has no noise."""
        return {name: 2 / variance for name, variance in self.variance(values).items()}


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
    if not isinstance(level, Mapping):
        return float(level)
    tensor = level[name]
    return tensor if any(tensor.stride()) or not tensor.numel() else float(_only(tensor))


def as_tensors(level: Level, like: Mapping[str, Tensor]) -> Tensors:
    """A level as one tensor for each parameter, in its shape, dtype and place."""
    return {
        n: torch.as_tensor(level_of(level, n), dtype=v.dtype, device=v.device).expand(v.shape)
        for n, v in like.items()
    }


def check_level(level: Level, name: str, most: float = math.inf) -> None:
    """Require every level to be in [0, most] and finite."""
    if not isinstance(level, Mapping):
        check_number(level, name)
        level = {"": torch.tensor(float(level), dtype=torch.float64)}
    for key, tensor in level.items():
        if not isinstance(tensor, Tensor) or tensor.is_complex() or tensor.is_meta:
            kind = f"{tensor.dtype} on {tensor.device}" if isinstance(tensor, Tensor) else ""
            expected = "be a number, or hold tensors of real numbers by parameter name"
            found = f"{kind or type(tensor).__name__} for `{key}`"
            raise WrongType(name, expected, found, "Convert it with torch.as_tensor.")
        if tensor.numel() == 0:
            continue
        own = _only(tensor.detach())  # an attacker differentiates plans
        low, high = (float(end) for end in torch.aminmax(own))
        if not (low >= 0 and high <= most and math.isfinite(high)):
            found = f"values from {low:g} to {high:g}{f' in `{key}`' if key else ''}"
            raise WrongValue(name, f"be finite and in [0, {most:g}]", found)


def _only(tensor: Tensor) -> Tensor:
    """The one number of a tensor that is one, expanded; any other tensor as it is."""
    return tensor if any(tensor.stride()) else tensor.as_strided((), ())
