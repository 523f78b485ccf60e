"""A real federated training under a defense: what it costs, and the models on the way."""

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradveil._random import named_stream
from gradveil.defenses import Defense
from gradveil.federated import Federation, Reply, Server, sample_clients
from gradveil.messages import GradientMessage, outputs_of
from gradveil.shapes import Public

from .._subject import POPULATION, Audited, Batch

EVALUATED = 512
"""Public examples at most on which the loss is measured; a quarter where there are few."""


class DivergedError(ValueError):
    """A training whose weights or messages are no longer finite."""


class Pool(NamedTuple):
    """The examples of a training: each client's own, and those for evaluation."""

    clients: tuple[Batch, ...]
    held_out: Batch
    kind: str
    """"public", or the "audited" ones where there are too few."""


def make_pool(subject: Audited, clients: int) -> Pool:
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
            return Pool(shares, (inputs[:count], targets[:count]), "public")
    own = tuple(subject.batch(place) for place in range(min(clients, subject.batches)))
    return Pool(own, (subject.data.inputs, subject.data.targets), "audited")


def trained_model(
    subject: Audited, defense: Defense, federation: Federation, seed: int, rounds: int
) -> nn.Module:
    """The model after so many rounds.

    Batches are the same for all defenses and seeds: seeds are those of the noise.
    """
    pool, model = make_pool(subject, federation.clients), deepcopy(subject.model)
    moved = replace(subject, model=model)
    server = Server(model, federation.optimizer_of(model), federation.sends)
    noise = named_stream("audit-noise", seed)
    batches = [
        _batches(share, subject.batch_size, named_stream("audit-batches", place))
        for place, share in enumerate(pool.clients)
    ]
    shared = isinstance(defense.source, Public)  # the server's; all other state is a client's
    own = [defense if shared else deepcopy(defense) for _ in batches]
    for number in range(1, rounds + 1):
        asked = sample_clients(range(len(batches)), federation.fraction, 0, number)
        drawn = {client: next(batches[client]) for client in asked}
        finite = all(bool(w.isfinite().all()) for w in model.parameters())
        if not finite or not math.isfinite(evaluate_on(moved, model, drawn[asked[0]])[0]):
            raise DivergedError("weights or a loss that are not finite")
        sent = {k: own[k](moved.message(y), x, noise) for k, (x, y) in drawn.items()}
        replies = [(k, Reply(values, subject.batch_size)) for k, values in sent.items()]
        _, refused = server.step(replies)
        if refused:
            raise DivergedError(refused[0].reason)
    return model


@torch.no_grad()
def evaluate_on(subject: Audited, model: nn.Module, batch: Batch) -> tuple[float, float | None]:
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
