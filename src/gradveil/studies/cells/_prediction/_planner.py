"""Noise of one shape whose trace is that of isotropic noise, and its utilities."""

from dataclasses import dataclass, replace
from statistics import fmean

from torch import nn
from torch.nn.functional import cross_entropy

from gradveil._random import named_stream
from gradveil._tensors import total
from gradveil._typing import Tensors
from gradveil.data import Dataset
from gradveil.defenses import OptimalNoise
from gradveil.mechanisms import Mechanism, constant_like
from gradveil.messages import GradientMessage
from gradveil.sensitivity import Moments, measure
from gradveil.studies.runner import Settings
from gradveil.theory import expected_decrease, fisher_trace, utility

PRIVATE = "private"
"""Not a shape: every batch has its own."""


@dataclass(frozen=True)
class Planner:
    """Noise of one shape and amount, and the batches by which it is judged."""

    levels: Tensors | None
    """r, the variances up to a constant; `None`: each batch has its own."""
    amount: float
    judges: list[Moments]

    def mechanism(self, moments: Moments | None) -> Mechanism:
        """The noise on a batch, which only a private plan looks at."""
        levels = self.levels
        if levels is None:
            assert moments is not None
            levels = shape_of("Theorem 2", moments)
        return Mechanism({name: (self.amount * r).sqrt() for name, r in levels.items()})

    def utilities(self, settings: Settings) -> dict[str, float]:
        """Means over the judges; the more, the worse for training."""
        rows = [_costs(judge, self.mechanism(judge), settings) for judge in self.judges]
        return {name: fmean(row[name] for row in rows) for name in rows[0]}


def plan(settings: Settings, data: Dataset, net: nn.Module) -> Planner:
    """A planner at the model's weights, with the trace of isotropic noise of `scale`."""
    moments = _public_moments(settings["public"], data, net)
    half = len(moments) // 2
    planned, judges = Moments.average(moments[:half]), moments[half:]
    wanted = fmean(fisher_trace(judge, Mechanism(settings["scale"])) for judge in judges)
    private = settings["shape"] == PRIVATE
    levels = None if private else shape_of(settings["shape"], planned, wanted)
    unit = Planner(levels, 1.0, judges)
    own = fmean(fisher_trace(judge, unit.mechanism(judge)) for judge in judges)
    return replace(unit, amount=own / wanted)


def shape_of(name: str, moments: Moments, trace: float = 1.0) -> Tensors:
    """Variances up to a constant, with the floors and caps of `OptimalNoise`.

    The trace of their information matters for Adam's optimum alone, whose shape depends on it.
    """
    if name == "isotropic":
        return constant_like(1.0, moments.squared_values)
    if name == "total power":  # s: at a given Σ_i Σ_ii nothing reveals less
        moments = replace(moments, squared_values=constant_like(1.0, moments.squared_values))
    defense = OptimalNoise(
        None if name == "adam" else 1.0,
        target_error=moments.input_size / trace if name == "adam" else None,
        utility=name if name in ("curvature", "adam") else "variance",
        granularity="layer" if name == "layers" else "parameter",
    )
    std = defense.plan(moments).std
    assert isinstance(std, dict)
    power = 4 if name == "steep" else 2  # (s/|g|)², or s/|g|
    return {n: s**power for n, s in std.items()}


def _costs(moments: Moments, mechanism: Mechanism, settings: Settings) -> dict[str, float]:
    values = {name: square.sqrt() for name, square in moments.squared_values.items()}
    variances = mechanism.variance(values)
    curvatures = moments.known_squared_example_values
    adam = expected_decrease(moments, mechanism, settings["lr"], "adam")
    return {
        "U2": -utility(values, mechanism).second,
        "total power": float(total(variances.values())),
        "curvature": float(total(h * variances[n] for n, h in curvatures.items())),
        "Adam's step": -adam,
    }


def _public_moments(public: Settings, data: Dataset, net: nn.Module) -> list[Moments]:
    generator = named_stream("studies", 0, "public moments", 0)
    size = public["size"]
    batches = (data.batch(public["start"] + size * k, size) for k in range(public["batches"]))
    return [
        measure(
            GradientMessage(net, cross_entropy, targets), inputs, generator=generator, examples=True
        )
        for inputs, targets in batches
    ]
