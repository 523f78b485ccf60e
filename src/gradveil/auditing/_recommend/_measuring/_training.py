"""A real federated training under a defense: what it costs, and the models on the way."""

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gradveil._checks import check_at_most, check_choice, check_count, check_positive
from gradveil._random import named_stream
from gradveil.defenses import Defense, Public
from gradveil.messages import GradientMessage, outputs_of

from ..._defaults import POPULATION
from ..._subject import Batch, Subject

if TYPE_CHECKING:
    from gradveil.federated import Server

EVALUATED = 512
"""Public examples at most on which the loss is measured; a quarter where there are few."""


class DivergedError(ValueError):
    """A training whose weights or messages are no longer finite."""


@dataclass(frozen=True)
class Training:
    """A federated training as an audit runs it; equal for all defenses.

    In each round every client draws a batch of the audited size from its own examples and sends
    its defended message; the server averages them and takes a step.
    """

    rounds: int = 24
    clients: int = 4
    seeds: int = 3
    """Of the noise; the batches are the same for all."""
    optimizer: str | None = None
    """The server's: "adam", "adamw" or "sgd"; Adam if `None`, for updates SGD."""
    lr: float | None = None
    """The server's; 1e-3 if `None`, for updates 1."""

    def __post_init__(self) -> None:
        from gradveil.federated import OPTIMIZERS

        for name in ("rounds", "clients", "seeds"):
            check_count(getattr(self, name), name)
        if self.optimizer is not None:
            check_choice(self.optimizer, "optimizer", tuple(OPTIMIZERS))
        if self.lr is not None:
            check_positive(self.lr, "lr")
            check_at_most(self.lr, "lr")

    def for_messages(self, kind: str) -> "Training":
        """The same with its optimizer and rate named."""
        usual = ("adam", 1e-3) if kind == "gradient" else ("sgd", 1.0)
        optimizer = usual[0] if self.optimizer is None else self.optimizer
        return replace(self, optimizer=optimizer, lr=usual[1] if self.lr is None else self.lr)

    def moments(self) -> tuple[int, ...]:
        """The rounds at which models are attacked: the first, the middle and the last."""
        return tuple(dict.fromkeys((0, self.rounds // 2, self.rounds)))


@dataclass(frozen=True)
class Pool:
    """The examples of a training: each client's own, and those for evaluation."""

    clients: tuple[Batch, ...]
    held_out: Batch
    is_public: bool


def make_pool(subject: Subject, clients: int) -> Pool:
    """Public examples, without those that plans are made from; the audited ones if too few."""
    size = subject.batch_size
    if subject.public is not None:
        inputs, targets = subject.public
        count = min(EVALUATED, len(inputs) // 4)
        last = len(inputs) - POPULATION * size
        per_client = (last - count) // clients
        if per_client >= size and count:
            starts = [count + k * per_client for k in range(clients)]
            shares = tuple((inputs[s:][:per_client], targets[s:][:per_client]) for s in starts)
            return Pool(shares, (inputs[:count], targets[:count]), True)
    own = (subject.data.inputs, subject.data.targets)
    return Pool(tuple(subject.batch(k) for k in range(min(clients, subject.batches))), own, False)


def train_under(
    subject: Subject, defense: Defense, training: Training, seed: int
) -> Iterator[nn.Module]:
    """The model after each round; it is the same object, changed in place.

    Batches are the same for all defenses and seeds: seeds are those of the noise.
    """
    from gradveil.federated import Reply

    pool, model = make_pool(subject, training.clients), deepcopy(subject.model)
    moved, server = replace(subject, model=model), _server(subject, model, training)
    noise = named_stream("audit-noise", seed)
    batches = [
        _batches(share, subject.batch_size, named_stream("audit-batches", place))
        for place, share in enumerate(pool.clients)
    ]
    shared = isinstance(defense, Public)  # a plan is the server's; all other state is a client's
    own = [defense if shared else deepcopy(defense) for _ in batches]
    for _ in range(training.rounds):
        drawn = [next(share) for share in batches]
        _check_sound(moved, drawn[0])
        sent = [d(moved.message(y), x, noise) for d, (x, y) in zip(own, drawn, strict=True)]
        server.step([(k, Reply(values, subject.batch_size)) for k, values in enumerate(sent)])
        yield model


def _check_sound(subject: Subject, batch: Batch) -> None:
    """Require a model that still computes something."""
    weights = subject.model.parameters()
    if all(bool(w.isfinite().all()) for w in weights) and math.isfinite(
        evaluate_on(subject, subject.model, batch)[0]
    ):
        return
    raise DivergedError(
        "A training under a defense should stay finite. Found weights or a loss that are not: the"
        " defense is too strong for this optimizer, or its rate too large."
    )


def trained_model(
    subject: Subject, defense: Defense, training: Training, seed: int, rounds: int
) -> nn.Module:
    """The model after so many rounds."""
    model = subject.model
    for done, moved in enumerate(train_under(subject, defense, training, seed), start=1):
        model = moved
        if done == rounds:
            break
    return model if rounds else subject.model


@torch.no_grad()
def evaluate_on(subject: Subject, model: nn.Module, batch: Batch) -> tuple[float, float | None]:
    """The loss, and the share of right classes where targets are classes."""
    inputs, targets = batch
    message = GradientMessage(model, subject.loss_fn, targets)
    loss = float(message.loss(message.parameters, inputs, targets))
    if targets.dim() != 1 or targets.is_floating_point():
        return loss, None
    right = outputs_of(message, inputs).argmax(1) == targets
    return loss, float(right.double().mean())


def _batches(share: Batch, size: int, generator: torch.Generator) -> Iterator[Batch]:
    """Batches of one client: all of its examples in a new order, again and again."""
    inputs, targets = share
    while True:
        order = torch.randperm(len(inputs), generator=generator).to(inputs.device)
        for start in range(0, len(inputs) - size + 1, size):
            chosen: Tensor = order[start : start + size]
            yield inputs[chosen], targets[chosen]


def _server(subject: Subject, model: nn.Module, training: Training) -> "Server":
    from gradveil.federated import OPTIMIZERS, Server

    kind = "gradient" if subject.local is None else "update"
    named = training.for_messages(kind)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = OPTIMIZERS[str(named.optimizer)](trained, lr=named.lr)
    return Server(model, optimizer, kind=kind)
