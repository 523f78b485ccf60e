"""A real federated training under a defense: what it costs, and the models on the way."""

from copy import deepcopy
from typing import NamedTuple

from torch import nn

from gradveil.defenses import Defense
from gradveil.federated import Client, FederatedRun, Federation, Server

from .._subject import POPULATION, Audited, Batch

EVALUATED = 512
"""Public examples at most on which the loss is measured; a quarter where there are few."""


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
    """The model after so many rounds of a `FederatedRun`.

    The seed is that of batches and noise: trainings of one seed have the same batches, whatever the
    defense.

    Raises:
        NoReplyError: If no client of a round has a message that is finite.
    """
    model, size = deepcopy(subject.model), subject.batch_size
    clients = [
        Client(
            place, *share, defense, batch_size=size, least=size, seed=seed, local=subject.local,
            allow_zero=True,
        )
        for place, share in enumerate(make_pool(subject, federation.clients).clients)
    ]  # fmt: skip
    server = Server(model, federation.optimizer_of(model), federation.sends)
    run = FederatedRun(server, clients, subject.loss_fn, fraction=federation.fraction)
    for _ in range(rounds):
        run.step()
    return model
