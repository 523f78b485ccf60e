"""Moments and messages for the tests of defenses, and every defense once."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil import (
    ClampedNoise,
    Defense,
    GradientNoise,
    GradientPruning,
    Moments,
    NoDefense,
    OptimalClampedNoise,
    OptimalNoise,
    OptimalPruning,
    OptimalRounding,
    PrivateNoise,
    Rounding,
)
from gradveil.defenses import QSGD, ErrorFeedback, LaplaceNoise, SignCompression
from gradveil.mechanisms import Mechanism
from gradveil.sensitivity import Exact

Tensors = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]

SHAPES: Shapes = {"weight": (4, 5), "bias": (6,), "scalar": ()}
FREE = {"cap": float("inf"), "floor": 0.0, "least": 0.0}
"""The options under which optimal noise is the optimum of the theorem, without appendix B."""


@dataclass(frozen=True)
class Sweep:
    """Random values and sensitivities, log-normal over `decades` around their sizes."""

    name: str
    value_size: float = 1.0
    slope_size: float = 1.0
    decades: float = 0.5
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = tuple(SHAPES.items())

    def values(self, seed: int = 0) -> Tensors:
        return self._draw(2 * seed, self.value_size)

    def moments(self, seed: int = 0) -> Moments:
        """Of one batch: g_i² and s_i²."""
        slopes = self._draw(2 * seed + 1, self.slope_size)
        return moments_of(self.values(seed), slopes)

    def _draw(self, seed: int, size: float) -> Tensors:
        generator = torch.Generator().manual_seed(seed)

        def draw(shape: tuple[int, ...]) -> Tensor:
            sizes = torch.randn(shape, generator=generator, dtype=torch.float64) * self.decades
            signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
            return signs * size * 10**sizes

        return {name: draw(shape) for name, shape in self.shapes}

    def __str__(self) -> str:
        return self.name


SWEEPS = (
    Sweep("plain"),
    Sweep("wide", decades=3.0),
    Sweep("tiny values", value_size=1e-12, decades=1.0),
    Sweep("tiny slopes", slope_size=1e-12, decades=1.0),
    Sweep("huge values", value_size=1e12, decades=1.0),
    Sweep("huge slopes", slope_size=1e12, decades=1.0),
    Sweep("all equal", decades=0.0),
    Sweep("many", decades=1.0, shapes=(("weight", (30, 40)), ("bias", (7,)), ("scalar", ()))),
    Sweep("one entry", shapes=(("scalar", ()),)),
)


def moments_of(values: Tensors, slopes: Tensors, input_size: int = 10) -> Moments:
    """Moments of one batch from g and ‖∇g‖."""
    return Moments(
        squared_values={name: value.square() for name, value in values.items()},
        squared_sensitivities={name: slope.square() for name, slope in slopes.items()},
        input_size=input_size,
    )


def row(tensors: Tensors) -> Tensor:
    """All entries in one row, in float64."""
    return torch.cat([tensor.reshape(-1).double() for tensor in tensors.values()])


def like(numbers: Tensor, tensors: Tensors) -> Tensors:
    """The inverse of `row`."""
    parts = numbers.split([tensor.numel() for tensor in tensors.values()])
    return {n: part.view(t.shape) for (n, t), part in zip(tensors.items(), parts, strict=True)}


def powers(mechanism: Mechanism) -> Tensor:
    """Σ_ii of all entries."""
    assert isinstance(mechanism.std, dict)
    return row(mechanism.std).square()


def kept(mechanism: Mechanism) -> Tensor:
    """The probabilities with which entries are sent."""
    assert isinstance(mechanism.keep, dict)
    return row(mechanism.keep)


def message(inputs: Tensor) -> Tensors:
    """Smooth, cheap, no gradient of any model; entries of all sizes, one of them 0-d."""
    x = inputs.flatten()
    return {
        "weight": torch.outer(torch.tanh(x[:3]), x[2:5].square() - 0.3),
        "bias": torch.stack([x.sum(), 3 * x[0] * x[1], (0.1 * x).exp().sum() - 5]),
        "scalar": (x * x.roll(1)).sum(),
    }


def batch(seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, generator=generator, dtype=torch.float64).to(dtype)


NOISY: dict[str, Callable[[], Defense]] = {
    "gradient noise": lambda: GradientNoise(0.3),
    "optimal noise": lambda: OptimalNoise(0.3, estimator=Exact(), source="private"),
    "layer-wise noise": lambda: OptimalNoise(
        0.3, granularity="layer", estimator=Exact(), source="private"
    ),
    "DP-SGD": lambda: ClampedNoise(0.3, clip=1.0),
    "optimal DP-SGD": lambda: OptimalClampedNoise(
        0.3, clip=1.0, estimator=Exact(), source="private"
    ),
    "pruning with noise": lambda: GradientPruning(0.4, noise=GradientNoise(0.3)),
    "pruning with optimal noise": lambda: GradientPruning(
        0.4, noise=OptimalNoise(0.3), estimator=Exact()
    ),
    "optimal pruning with noise": lambda: OptimalPruning(
        0.4, noise=GradientNoise(0.3), estimator=Exact(), source="private"
    ),
    "optimal pruning with optimal noise": lambda: OptimalPruning(
        0.4, noise=OptimalNoise(0.3), estimator=Exact(), source="private"
    ),
    "private noise for clients": lambda: PrivateNoise(0.3, clip=1.0, unit="client"),
}
DETERMINISTIC: dict[str, Callable[[], Defense]] = {
    "no defense": NoDefense,
    "pruning": lambda: GradientPruning(0.4),
    "optimal pruning": lambda: OptimalPruning(0.4, estimator=Exact(), source="private"),
    "rounding": lambda: Rounding(0.25),
    "optimal rounding": lambda: OptimalRounding(0.25, estimator=Exact(), source="private"),
}
RIVALS: dict[str, Callable[[], Defense]] = {
    "Laplace noise": lambda: LaplaceNoise(0.3),
    "signs": SignCompression,
    "QSGD": lambda: QSGD(4),
    "error feedback": lambda: ErrorFeedback(0.4),
}
UNPLANNED = ("signs", "QSGD")
"""Their mechanism is the same for all messages."""
ALL = NOISY | DETERMINISTIC | RIVALS
