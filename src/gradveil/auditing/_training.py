"""A few real steps of defended training: what the utilities only estimate."""

from copy import deepcopy
from statistics import fmean

import torch
from torch import Tensor, nn

from gradveil.defenses import Defense, NoDefense
from gradveil.messages import GradientMessage
from gradveil.scoring import bootstrap_interval

from ._defaults import CLIENTS, RATE, TRAINING_SEEDS, TRAINING_STEPS
from ._measure_one import seeded
from ._result import TrainingResult
from ._subject import Batch, Subject


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
    plain = _train(subject, NoDefense(), clients, steps, seeded(seed))
    after = [
        _train(subject, deepcopy(defense), clients, steps, seeded(seed, repeat))
        for repeat in range(repeats)
    ]
    losses = bootstrap_interval(torch.tensor(after, dtype=torch.float64), generator=seeded(0))
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
    model = deepcopy(subject.model)
    moved = Subject(**{**vars(subject), "model": model})
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=RATE)
    for _ in range(steps):
        sent = [defense(moved.message(y), x, generator) for x, y in clients]
        mean = {name: torch.stack([s[name] for s in sent]).mean(0) for name in sent[0]}
        _step(model, mean, None if subject.local else optimizer)
    return _loss(subject, model, clients)


@torch.no_grad()
def _step(
    model: nn.Module, mean: dict[str, Tensor], optimizer: torch.optim.Optimizer | None
) -> None:
    for name, parameter in model.named_parameters():
        if name in mean and optimizer is None:
            parameter.add_(mean[name])
        elif name in mean:
            parameter.grad = mean[name].detach()
    if optimizer is not None:
        optimizer.step()


@torch.no_grad()
def _loss(subject: Subject, model: nn.Module, clients: list[Batch]) -> float:
    """The mean over clients; layers that draw random numbers draw the same ones every time."""
    losses = []
    for inputs, targets in clients:
        message = GradientMessage(model, subject.loss_fn, targets)
        losses.append(float(message.loss(message.parameters, inputs, targets)))
    return fmean(losses)
