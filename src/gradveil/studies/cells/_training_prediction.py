"""The `training-prediction` cell: the loss after training under a plan, beside its utilities."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil._checks import NonFiniteError
from gradveil._random import named_stream
from gradveil._tensors import total
from gradveil._typing import Tensors
from gradveil.data import Dataset
from gradveil.defenses import OptimalNoise
from gradveil.federated import evaluate
from gradveil.mechanisms import Mechanism, constant_like
from gradveil.messages import GradientMessage
from gradveil.sensitivity import Moments, measure
from gradveil.studies.runner import Settings, Value, cell_function
from gradveil.theory import expected_decrease, fisher_trace, utility

from ._parts import dataset, model

MOMENTUM = 0.9
PRIVATE = "private"


@cell_function("training-prediction")
def training_prediction(settings: Settings) -> Mapping[str, Value]:
    """Train with noise of one shape, whose trace bound is that of isotropic noise of `scale`.

    The shape is planned from public batches every `refresh` steps, or, for "private", from each
    batch itself. Half of the public batches plan; the others set the amount and give the utilities,
    which are those of the first plan. A loss is None where training diverged. Settings: `data`,
    `model`, `shape`, `scale`, `optimizer`, `lr`, `batch_size`, `examples` (to train on, from 0),
    `steps` (after which the loss on the held-out examples is taken), `refresh`, `public`,
    `held_out_start`, `held_out`, `seed`.
    """
    data = dataset(settings["data"])
    net = deepcopy(model({**settings, "model_seed": settings["seed"]}))
    planner = plan(settings, data, net)
    found = planner.utilities(settings)
    losses: list[float | None] = []
    with suppress(NonFiniteError):  # it diverged
        losses.extend(_losses(settings, data, net, planner))
    missing = len(settings["steps"]) - len(losses)
    return {"losses": losses + [None] * missing, "costs": found}


def _losses(
    settings: Settings, data: Dataset, net: nn.Module, planner: "Planner"
) -> Iterator[float]:
    """The loss on the held-out examples after each of `steps`."""
    noise = named_stream("studies", settings["seed"], "noise", 0)
    optimizer = _optimizer(settings, net)
    held_out = data.batch(settings["held_out_start"], settings["held_out"])
    for step in range(max(settings["steps"])):
        if step and step % settings["refresh"] == 0:
            planner = plan(settings, data, net)
        _step(settings, data, net, planner, step, noise)
        optimizer.step()
        if step + 1 in settings["steps"]:
            yield evaluate(net, cross_entropy, *held_out).loss


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
        target_error=moments.input_size / trace,
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


def _step(
    settings: Settings,
    data: Dataset,
    net: nn.Module,
    planner: Planner,
    step: int,
    noise: torch.Generator,
) -> None:
    """Put the defended gradient of the next batch into `.grad`."""
    size = settings["batch_size"]
    start = (step * size + 101 * settings["seed"]) % (settings["examples"] - size)
    inputs, targets = data.batch(start, size)
    message = GradientMessage(net, cross_entropy, targets)
    own = measure(message, inputs, generator=noise) if planner.levels is None else None
    sent = planner.mechanism(own).apply(message.values(inputs), noise)
    for name, parameter in net.named_parameters():
        parameter.grad = sent[name]


def _optimizer(settings: Settings, net: nn.Module) -> torch.optim.Optimizer:
    lr, parameters = settings["lr"], net.parameters()
    if settings["optimizer"] == "adam":
        return torch.optim.Adam(parameters, lr=lr)
    momentum = MOMENTUM if settings["optimizer"] == "momentum" else 0.0
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum)
