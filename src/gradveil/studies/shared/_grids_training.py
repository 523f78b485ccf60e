"""The presets of the studies that look at training: with (ε, δ), and what leaks on the way."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gradveil.studies.runner import Cell

from ._grids import every

WAYS = ("isotropic", "shaped", "opacus")
"""To a private gradient."""


@dataclass(frozen=True)
class PrivateGrid:
    """Private trainings of one model at several ε."""

    common: Mapping[str, Any]
    epsilons: tuple[float, ...]
    seeds: tuple[int, ...]

    def cells(self) -> list[Cell]:
        """Every way and ε, and a training without privacy; the first seed of all comes first."""
        runs = [("plain", None), *((way, epsilon) for epsilon in self.epsilons for way in WAYS)]
        return [
            Cell("private-training", {**self.common, "way": way, "epsilon": epsilon, "seed": seed})
            for seed in self.seeds
            for way, epsilon in runs
        ]


_PRIVATE: dict[str, Any] = {
    "data": "mnist",
    "model": "simple-conv-net",
    "delta": 1e-5,
    "clip": 3.0,
    "batch_size": 128,
    "steps": 120,
    "examples": 3200,
    "lr": 2e-3,
    "public": {"start": 3200, "count": 256, "refresh": 20},
    "held_out_start": 4000,
    "held_out": 1000,
}

PRIVATE_TRAINING = {
    "quick": PrivateGrid(
        {
            **_PRIVATE,
            "batch_size": 32,
            "steps": 5,
            "examples": 640,
            "public": {"start": 3200, "count": 32, "refresh": 5},
            "held_out": 128,
        },
        (2.0, 8.0),
        (0, 1),
    ),
    "standard": PrivateGrid(_PRIVATE, (1.0, 3.0, 8.0), tuple(range(6))),
    "paper": PrivateGrid(
        {
            **_PRIVATE,
            "data": "mnist-test",
            "examples": 8000,
            "steps": 250,
            "public": {"start": 8000, "count": 256, "refresh": 20},
            "held_out_start": 8500,
            "held_out": 1500,
        },
        (0.5, 1.0, 2.0, 4.0, 8.0),
        tuple(range(6)),
    ),
}
"""Clip and rate were tuned coarsely for isotropic noise at ε = 3."""


@dataclass(frozen=True)
class LeakageGrid:
    """Attacks and candidates on one model at several stages of its training."""

    data: str
    trained: tuple[int, ...]
    """Steps of training at which the batches are sent."""
    starts: tuple[int, ...]
    attack: str
    """That does not know the defense; the one that does starts from what it finds."""
    draws: int
    trials: int
    """With each draw of candidates."""
    public: Mapping[str, int]
    scale: float = 0.01
    ratio: float = 0.9
    candidates: int = 60
    model: str = "simple-conv-net"
    size: int = 4

    @property
    def attackers(self) -> tuple[dict[str, str], dict[str, str]]:
        """The settings of the one who does not know the defense, and of the one who does."""
        aware = f"adaptive(unaware={self.attack}, finish=None)"
        return (
            {"attack": self.attack, "mechanism": "unknown"},
            {"attack": aware, "mechanism": "known"},
        )

    @property
    def defenses(self) -> dict[str, Mapping[str, int] | None]:
        """Specifications, and where each plan comes from; None: it needs no other data."""
        return {
            "no-defense": None,
            f"gradient-noise(scale={self.scale})": None,
            f"optimal-noise(scale={self.scale})": self.public,
            f"gradient-pruning(ratio={self.ratio})": None,
        }


_LEAKAGE = LeakageGrid(
    "mnist",
    trained=(0, 60, 300),
    starts=every(4, 6),
    attack="strong(steps=100, restarts=1, finish=None)",
    draws=4,
    trials=10,
    public={"start": 2000, "size": 4, "batches": 24},
)

LEAKAGE = {
    "quick": replace(
        _LEAKAGE,
        trained=(0, 20),
        starts=every(4, 2),
        attack="strong(steps=20, restarts=1, finish=None)",
        draws=2,
        trials=3,
        candidates=8,
        public={"start": 2000, "size": 4, "batches": 4},
    ),
    "standard": _LEAKAGE,
    "paper": replace(
        _LEAKAGE,
        data="mnist-test",
        trained=(0, 60, 300, 1000),
        starts=every(4, 12),
        attack="strong(steps=250, restarts=1, finish=None)",
        draws=10,
        trials=20,
    ),
}
