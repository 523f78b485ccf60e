"""A few steps of defended training, to measure what the utilities only estimate."""

from copy import deepcopy
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import nn

from gradveil._random import numbered_stream
from gradveil.defenses import Defense, NoDefense
from gradveil.messages import GradientMessage
from gradveil.scoring import bootstrap_interval

from ._defaults import CLIENTS, RATE, TRAINING_SEEDS, TRAINING_STEPS
from ._result import TrainingResult
from ._subject import Batch, Subject

if TYPE_CHECKING:
    from gradveil.federated import Server


def defended_training(
    subject: Subject,
    defense: Defense,
    seed: int,
    steps: int = TRAINING_STEPS,
    repeats: int = TRAINING_SEEDS,
) -> TrainingResult:
    """The loss on the clients' examples after some rounds, over several seeds of the noise.

    In each round every client defends the message of its own batch and the server averages: Adam
    on gradients, a plain sum for weight updates. The examples are public ones where there are
    enough, else the audited ones.
    """
    clients = client_batches(subject)
    before = _loss(subject, subject.model, clients)
    plain = _train(subject, NoDefense(), clients, steps, numbered_stream(seed))
    after = [
        _train(subject, deepcopy(defense), clients, steps, numbered_stream(seed, repeat))
        for repeat in range(repeats)
    ]
    losses = bootstrap_interval(
        torch.tensor(after, dtype=torch.float64), generator=numbered_stream(0)
    )
    return TrainingResult(steps, before, losses, plain)


def client_batches(subject: Subject) -> list[Batch]:
    """One batch for each client."""
    size = subject.batch_size
    if subject.public is None or len(subject.public[0]) < CLIENTS * size:
        return [subject.batch(index) for index in range(min(CLIENTS, subject.batches))]
    inputs, targets = (part[: CLIENTS * size].split(size) for part in subject.public)
    return list(zip(inputs, targets, strict=True))


def _train(
    subject: Subject,
    defense: Defense,
    clients: list[Batch],
    steps: int,
    generator: torch.Generator,
) -> float:
    from gradveil.federated import Reply

    model = deepcopy(subject.model)
    moved, server = Subject(**{**vars(subject), "model": model}), _server(subject, model)
    for _ in range(steps):
        sent = [defense(moved.message(y), x, generator) for x, y in clients]
        replies = [Reply(values, len(x)) for values, (x, _) in zip(sent, clients, strict=True)]
        server.step(list(enumerate(replies)))
    return _loss(subject, model, clients)


def _server(subject: Subject, model: nn.Module) -> "Server":
    from gradveil.federated import Server

    if subject.local is not None:
        return Server(model, kind="update")
    trained = [p for p in model.parameters() if p.requires_grad]
    return Server(model, torch.optim.Adam(trained, lr=RATE))


@torch.no_grad()
def _loss(subject: Subject, model: nn.Module, clients: list[Batch]) -> float:
    """The mean over clients; layers that draw random numbers draw the same ones every time."""
    losses = []
    for inputs, targets in clients:
        message = GradientMessage(model, subject.loss_fn, targets)
        losses.append(float(message.loss(message.parameters, inputs, targets)))
    return fmean(losses)
