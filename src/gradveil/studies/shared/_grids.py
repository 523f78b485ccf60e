"""The presets: which data, model, batches, seeds, steps and levels each of them takes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gradveil.studies.runner import Cell

from ._levels import defense_spec, is_pruning, name_and_level

PRUNING = ("gradient-pruning", "optimal-pruning")
NOISE = ("dpsgd", "optimal-dpsgd")


@dataclass(frozen=True)
class Grid:
    """Reconstruction and short training on one data set."""

    data: str
    model: str
    size: int
    """Images in a batch that is attacked."""
    starts: tuple[int, ...]
    """The first image of each batch."""
    seeds: tuple[int, ...]
    steps: int
    """Of the attack."""
    ratios: tuple[float, ...]
    scales: tuple[float, ...]
    large_scales: tuple[float, ...] = ()
    noise_seeds: tuple[int, ...] = ()
    """Further seeds of defenses that draw noise."""
    estimator: str = "auto"
    short_seeds: tuple[int, ...] = (0,)
    """Of the five training steps on one batch."""
    short_examples: int = 64
    pruning_lr: float = 1e-3
    noise_lr: float = 1e-3
    """Of those five steps."""

    @property
    def attack(self) -> str:
        """Inverting Gradients as in the paper."""
        return f"paper(steps={self.steps})"

    def levels(self, names: Iterable[str], levels: Iterable[float]) -> list[str]:
        """Specifications of all these defenses at all these levels."""
        levels = [*levels]
        return [defense_spec(name, level, self.estimator) for level in levels for name in names]

    def attack_cells(self, defenses: Iterable[str], **changes: Any) -> list[Cell]:
        """Each defense on each batch and seed; the first seed of all batches comes first."""
        defenses = [*defenses]
        noisy = {defense for defense in defenses if name_and_level(defense)[0] in NOISE}
        common: Mapping[str, Any] = {
            "data": self.data,
            "model": self.model,
            "size": self.size,
            "attack": self.attack,
            "mechanism": "unknown",
            **changes,
        }
        return [
            Cell("attack", {**common, "start": start, "seed": seed, "defense": defense})
            for seed in (*self.seeds, *self.noise_seeds)
            for start in self.starts
            for defense in defenses
            if seed in self.seeds or defense in noisy
        ]

    def short_cells(self, defenses: Iterable[str]) -> list[Cell]:
        """Five steps of Adam by four clients on one batch, for each defense and seed."""
        defenses = [*defenses]
        return [
            Cell(
                "short-training",
                {
                    "data": self.data,
                    "model": self.model,
                    "start": 0,
                    "examples": self.short_examples,
                    "clients": 4,
                    "batch_size": self.short_examples // 4,
                    "rounds": 5,
                    "optimizer": "adam",
                    "lr": self.pruning_lr if is_pruning(defense) else self.noise_lr,
                    "defense": defense,
                    "seed": seed,
                },
            )
            for seed in self.short_seeds
            for defense in defenses
        ]


@dataclass(frozen=True)
class Curves:
    """Training on MNIST with four clients of 16 images a round."""

    data: str
    rounds: int
    seeds: tuple[int, ...]
    estimator: str = "auto"
    layer_seeds: tuple[int, ...] = ()
    """Further seeds of the runs whose noise is looked at layer by layer."""
    examples: int = 4096
    held_out: tuple[int, int] = (4352, 512)
    """The first of the held-out examples, and how many."""

    def settings(self, defense: str, seed: int) -> dict[str, Any]:
        """One run; the learning rate is the paper's for the kind of defense."""
        return {
            "data": self.data,
            "model": "simple-conv-net",
            "start": 0,
            "examples": self.examples,
            "clients": 4,
            "batch_size": 16,
            "rounds": self.rounds,
            "optimizer": "adam",
            "lr": 5e-4 if is_pruning(defense) else 1e-3,
            "defense": defense,
            "seed": seed,
            "held_out": self.held_out[1],
            "held_out_start": self.held_out[0],
        }

    def cells(
        self, defenses: Iterable[tuple[str, float | None]], more: Iterable[int] = ()
    ) -> list[Cell]:
        """Each defense with each seed; the first seed of all defenses comes first."""
        specs = [defense_spec(name, level, self.estimator) for name, level in defenses]
        return [
            Cell("training", self.settings(spec, seed))
            for seed in (*self.seeds, *more)
            for spec in specs
        ]


def every(step: int, count: int) -> tuple[int, ...]:
    """The starts of `count` consecutive batches of `step` images."""
    return tuple(range(0, step * count, step))


_SKETCH = "sketch(probes=10)"
_CNN = "simple-conv-net"

MNIST = {
    "quick": Grid(
        "mnist",
        _CNN,
        size=4,
        starts=every(4, 6),
        seeds=(0,),
        steps=80,
        ratios=(0.8, 0.9, 0.95),
        scales=(0.01, 0.05, 0.1),
        short_seeds=tuple(range(6)),
    ),
    "standard": Grid(
        "mnist",
        _CNN,
        size=16,
        starts=every(16, 16),
        seeds=(0,),
        steps=500,
        ratios=(0.8, 0.9, 0.95),
        scales=(0.01, 0.05, 0.1),
        noise_seeds=(1, 2),
        short_seeds=tuple(range(6)),
    ),
    "paper": Grid(
        "mnist-test",
        _CNN,
        size=16,
        starts=every(16, 4),
        seeds=(0,),
        steps=2000,
        ratios=(0.7, 0.8, 0.9, 0.95, 0.99),
        scales=(0.01, 0.02, 0.05, 0.1, 0.2),
        estimator=_SKETCH,
    ),
}

_CIFAR = Grid(
    "cifar10",
    "conv-net(width=16)",
    size=2,
    starts=every(2, 4),
    seeds=(0,),
    steps=1000,
    ratios=(0.7, 0.8, 0.9, 0.95),
    scales=(1e-4, 3e-4, 1e-3),
    large_scales=(1e-2, 1e-1),
    short_examples=8,
    pruning_lr=5e-5,
    noise_lr=1e-4,
)

_SMALL_CIFAR = replace(
    _CIFAR,
    starts=every(2, 6),
    ratios=(0.7, 0.8, 0.9),
    scales=(1e-4, 1e-3),
    large_scales=(1e-2,),
    short_seeds=tuple(range(6)),
)

CIFAR = {
    "quick": replace(_SMALL_CIFAR, steps=20),
    "standard": replace(_SMALL_CIFAR, model="conv-net(width=32)", starts=every(2, 10), steps=500),
    "paper": replace(_CIFAR, model="conv-net(width=64)", estimator=_SKETCH),
}
"""At width 16 the paper's attack finds no more than a blank image has, even without a defense."""

CURVES = {
    "quick": Curves("mnist", rounds=12, seeds=tuple(range(6))),
    "standard": Curves("mnist", rounds=128, seeds=tuple(range(6)), layer_seeds=tuple(range(6, 16))),
    "paper": Curves("mnist-test", rounds=64, seeds=(0,), estimator=_SKETCH, held_out=(5000, 1024)),
}
