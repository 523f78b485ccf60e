"""The presets of the studies beyond the paper."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gradveil.catalog import Spec
from gradveil.studies.runner import Cell

from ._grids import MNIST, Grid, every

_QUICK = "steps=60, restarts=1, finish=None"
CHEAPEST = "steps=4, restarts=1, finish=None"
CHEAP = "steps=100, restarts=1, finish=None"
"""Of attacks that run on many batches: one start, and no second-order steps at the end."""

AWARE = {
    "quick": replace(MNIST["quick"], ratios=(0.8, 0.9), scales=(0.01, 0.05)),
    "standard": replace(
        MNIST["standard"],
        size=4,
        starts=every(4, 16),
        steps=100,
        ratios=(0.8, 0.9),
        scales=(0.01, 0.05),
        noise_seeds=(),
    ),
    "paper": replace(
        MNIST["paper"],
        size=4,
        starts=every(4, 8),
        steps=2000,
        ratios=(0.8, 0.9, 0.95),
        scales=(0.001, 0.01, 0.05),
    ),
}
"""Batches of 4, of which an attacker can rebuild something worth protecting."""


def attackers(preset: str) -> dict[str, dict[str, str]]:
    """The three attackers of a preset; in `standard` also those of `frontier`: it shares cells."""
    steps = f"steps={AWARE[preset].steps}"
    strong = {"quick": _QUICK, "standard": CHEAP}.get(preset, steps)
    return three_attackers(steps, strong, "" if preset == "paper" else ", finish=None")


def three_attackers(paper: str, strong: str, aware: str = "") -> dict[str, dict[str, str]]:
    """The paper's, a tuned one, and one that knows the defense; each by its options."""
    return {
        "paper": {"attack": f"paper({paper})", "mechanism": "unknown"},
        "strong": {"attack": f"strong({strong})", "mechanism": "unknown"},
        "aware": {"attack": f"adaptive(unaware=strong({strong}){aware})", "mechanism": "known"},
    }


def attacker_of(settings: Mapping[str, Any]) -> str:
    """Which of the attackers a cell has."""
    return "aware" if settings["mechanism"] == "known" else Spec.parse(settings["attack"]).name


@dataclass(frozen=True)
class BoundGrid:
    """Single images, noise planned from public data, and every attack that fits a CNN."""

    data: str
    starts: tuple[int, ...]
    scales: tuple[float, ...]
    attacks: tuple[str, ...]
    public: Mapping[str, int]
    prior_samples: int = 1000


def _attacks(steps: int, quick: bool) -> tuple[str, ...]:
    options = f"steps={steps}, restarts=1, finish=None" if quick else f"steps={steps}"
    finish, steps_of_search = (", finish=None", 20) if quick else ("", steps)
    search = f"(steps={steps_of_search}, restarts=1)"
    return (
        f"paper(steps={steps})",
        f"strong({options})",
        f"adaptive(unaware=strong({options}){finish})",
        f"dlg{search}",
        f"idlg{search}",
        f"grad-inversion(steps={steps})",
    )


_PUBLIC = {"start": 2000, "size": 1, "batches": 64}

BOUND = {
    "quick": BoundGrid(
        "mnist", every(1, 4), (0.01, 0.1), _attacks(40, True), {**_PUBLIC, "batches": 16}
    ),
    "standard": BoundGrid("mnist", every(1, 6), (0.01, 0.1, 1.0), _attacks(250, False), _PUBLIC),
    "paper": BoundGrid(
        "mnist-test", every(1, 12), (0.001, 0.01, 0.1, 1.0), _attacks(2000, False), _PUBLIC
    ),
}


@dataclass(frozen=True)
class PlanGrid:
    """Estimators and plans on batches of a fresh and of a trained model."""

    grid: Grid
    batches: int
    trained: tuple[int, ...]
    probes: int
    """Of the reference, for each example."""
    public_batches: int
    repeats: int
    """Of the timing."""


PLANS = {
    "quick": PlanGrid(replace(MNIST["quick"], size=16), 4, (0,), 8, 8, 3),
    "standard": PlanGrid(MNIST["standard"], 6, (0, 60), 64, 20, 7),
    "paper": PlanGrid(MNIST["paper"], 8, (0, 60), 64, 20, 7),
}


RATES = {"sgd": 0.1, "momentum": 0.02, "adam": 1e-3}
"""By optimizer, tuned coarsely without a defense (MNIST CNN, batches of 32)."""


@dataclass(frozen=True)
class PredictionGrid:
    """Trainings under noise of several shapes and amounts."""

    common: Mapping[str, Any]
    shapes: tuple[str, ...]
    scales: Mapping[str, tuple[float, ...]]
    """By optimizer: amounts that neither do nothing nor end in divergence."""
    seeds: tuple[int, ...]

    def cells(self) -> list[Cell]:
        """Every shape, amount, optimizer and seed."""
        return [
            Cell(
                "training-prediction",
                {
                    **self.common,
                    "seed": seed,
                    "optimizer": optimizer,
                    "lr": RATES[optimizer],
                    "scale": scale,
                    "shape": shape,
                },
            )
            for seed in self.seeds
            for optimizer, scales in self.scales.items()
            for scale in scales
            for shape in self.shapes
        ]


_SHAPES = (
    "isotropic",
    "Theorem 2",
    "curvature",
    "adam",
    "total power",
    "steep",
    "layers",
    "private",
)
_TRAINING = {
    "data": "mnist",
    "model": "simple-conv-net",
    "batch_size": 32,
    "examples": 3200,
    "steps": [20, 100],
    "refresh": 30,
    "public": {"start": 3200, "size": 32, "batches": 8},
    "held_out_start": 4000,
    "held_out": 512,
}
_AMOUNTS = {"sgd": (0.05, 0.1, 0.2), "momentum": (0.03, 0.05, 0.1), "adam": (0.01, 0.03, 0.1)}

PREDICTION = {
    "quick": PredictionGrid(
        {
            **_TRAINING,
            "batch_size": 8,
            "steps": [5, 10],
            "public": {"start": 3200, "size": 8, "batches": 4},
            "held_out": 128,
        },
        ("isotropic", "Theorem 2", "curvature", "total power"),
        {"sgd": (0.1, 0.3), "adam": (0.01, 0.1)},
        (0,),
    ),
    "standard": PredictionGrid(_TRAINING, _SHAPES, _AMOUNTS, (0, 1)),
    "paper": PredictionGrid({**_TRAINING, "data": "mnist-test"}, _SHAPES, _AMOUNTS, (0, 1, 2, 3)),
}


@dataclass(frozen=True)
class PublicPlanGrid:
    """Plans from few and from many public batches, through training."""

    data: str
    model: str
    trained: tuple[int, ...]
    batches: int
    counts: tuple[int, ...]
    """Of public batches."""
    population: int
    """Batches that stand for the population."""
    strange: int
    """Batches of another kind; 0 for none."""
    public: int = 2000
    """The first public example."""
    probes: int = 16


PUBLIC_PLANS = {
    "quick": PublicPlanGrid("mnist", MNIST["quick"].model, (0,), 4, (2, 4), 8, 2, probes=4),
    "standard": PublicPlanGrid(
        "mnist", MNIST["standard"].model, (0, 60, 300), 24, (2, 8, 24), 180, 8
    ),
    "paper": PublicPlanGrid(
        "mnist-test", MNIST["paper"].model, (0, 60, 300), 32, (2, 8, 24), 450, 8
    ),
}


@dataclass(frozen=True)
class FedAvgGrid:
    """Clients that send the weight change after local steps."""

    grid: Grid
    local: Mapping[str, Any]
    rounds: int
    seeds: tuple[int, ...]


_LOCAL = {"lr": 0.05, "steps": 4, "batch_size": 2}

FEDAVG = {
    "quick": FedAvgGrid(
        replace(MNIST["quick"], starts=every(4, 4), steps=30), {**_LOCAL, "steps": 2}, 6, (0, 1, 2)
    ),
    "standard": FedAvgGrid(
        replace(AWARE["standard"], starts=every(4, 6), steps=250), _LOCAL, 32, tuple(range(6))
    ),
    "paper": FedAvgGrid(replace(AWARE["paper"], steps=2000), _LOCAL, 64, tuple(range(4))),
}
