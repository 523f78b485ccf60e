"""Partition of examples among clients: evenly, Dirichlet(α) over labels, or by label.

One implementation in numpy. It gives the indices of flwr-datasets' partitioners for the same seed,
entry by entry, and needs neither it nor `datasets`.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradveil._checks import (
    WrongValue,
    check_choice,
    check_count,
    check_positive,
    check_seed,
    check_tensor,
)

KINDS = ("iid", "dirichlet", "label")
_ATTEMPTS = 11
_SHARDS = 2


def partition(
    targets: Tensor,
    clients: int,
    kind: str = "iid",
    *,
    alpha: float = 0.5,
    seed: int = 0,
) -> list[Tensor]:
    """The indices of each client's examples.

    - "iid": shuffled, then cut into equal pieces: flwr-datasets' `IidPartitioner` on
      `dataset.shuffle(seed)`.
    - "dirichlet": of each class, client k gets the share p_k with p ~ Dirichlet(α, ..., α):
      `DirichletPartitioner(min_partition_size=1)`, drawn again (at most ten times) until every
      client has an example. Small α: few classes for each client.
    - "label": sorted by label and cut into two shards for each client, dealt at random (McMahan
      et al. 2017): `ShardPartitioner(num_shards_per_partition=2)`. Examples that do not fill a
      shard are left out.

    The seed is that of numpy's default generator.

    >>> [len(part) for part in partition(torch.zeros(10), 4)]
    [3, 3, 2, 2]
    """
    check_choice(kind, "kind", KINDS)
    check_count(clients, "clients")
    check_seed(seed)
    check_tensor(targets, "targets")
    if targets.dim() != 1 and (kind != "iid" or targets.dim() == 0):
        found, advice = f"shape {tuple(targets.shape)}", "Deal other targets with 'iid'."
        raise WrongValue("targets", "hold one label for each example", found, advice)
    labels = targets.cpu().numpy()
    needed = _SHARDS * clients if kind == "label" else clients
    if len(labels) < needed:
        expected = f"hold at least {needed} examples for {clients} clients"
        advice = "Use fewer clients or more data."
        raise WrongValue("targets", expected, f"{len(labels)}", advice)
    rng = np.random.default_rng(seed)
    if kind == "iid":
        parts = [list(part) for part in np.array_split(rng.permutation(len(labels)), clients)]
    elif kind == "dirichlet":
        check_positive(alpha, "alpha")
        parts = _dirichlet(labels, clients, alpha, rng)
    else:
        parts = _by_label(labels, clients, rng)
    return [torch.tensor(part, dtype=torch.int64) for part in parts]


def _dirichlet(
    labels: NDArray[np.int64], clients: int, alpha: float, rng: np.random.Generator
) -> list[list[int]]:
    for _ in range(_ATTEMPTS):
        parts: list[list[int]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            members = np.nonzero(labels == label)[0]
            shares = np.cumsum(rng.dirichlet(np.full(clients, alpha)))
            cuts = (shares * len(members)).astype(int)[:-1]
            for part, piece in zip(parts, np.split(members, cuts), strict=True):
                part.extend(piece.tolist())
        if all(parts):
            return _shuffled(parts, rng)
    expected = "leave every client an example"
    found = f"`alpha = {alpha}` with {clients} clients, which did not in {_ATTEMPTS} draws"
    advice = "Raise it, or use fewer clients."
    raise WrongValue("alpha", expected, found, advice)


def _by_label(labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> list[list[int]]:
    order = np.argsort(labels, kind="stable")
    size = len(labels) // (_SHARDS * clients)
    dealt = rng.permutation(len(labels) // size)[: _SHARDS * clients].reshape(clients, _SHARDS)
    places = [
        [i for shard in row for i in range(shard * size, (shard + 1) * size)] for row in dealt
    ]
    return [order[part].tolist() for part in _shuffled(places, rng)]


def _shuffled(parts: list[list[int]], rng: np.random.Generator) -> list[list[int]]:
    for part in parts:
        rng.shuffle(part)
    return parts
