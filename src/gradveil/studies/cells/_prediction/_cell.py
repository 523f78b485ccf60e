"""The `training-prediction` cell: the loss after training under a plan, beside its utilities."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil._checks import NonFiniteError
from gradveil._random import named_stream
from gradveil.data import Dataset
from gradveil.federated import evaluate
from gradveil.messages import GradientMessage
from gradveil.sensitivity import measure
from gradveil.studies.runner import Settings, Value, cell_function

from .._parts import dataset, model
from ._planner import Planner, plan

MOMENTUM = 0.9


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


def _losses(settings: Settings, data: Dataset, net: nn.Module, planner: Planner) -> Iterator[float]:
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
