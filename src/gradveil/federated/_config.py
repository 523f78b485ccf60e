"""Who trains together and how, the configuration of a run, and which data each client has."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy

from gradveil._checks import (
    WrongValue,
    check_at_most,
    check_choice,
    check_count,
    check_flag,
    check_kind,
    check_positive,
    check_seed,
    check_tensor,
    device_of,
)
from gradveil._random import named_stream
from gradveil.data import load_dataset
from gradveil.messages import LocalSteps, LossFunction
from gradveil.privacy import check_delta, check_sample_rate

from ._client import SAMPLINGS

OPTIMIZERS: dict[str, Any] = {"adam": optim.Adam, "adamw": optim.AdamW, "sgd": optim.SGD}
PARTITIONS = ("iid", "dirichlet", "label")
_ATTEMPTS = 11
_SHARDS = 2


@dataclass(frozen=True)
class Federation:
    """How clients train a model together.

    >>> Federation(rounds=10).optimizer, Federation(local=LocalSteps(lr=0.1, steps=2)).lr
    ('adam', 1.0)
    """

    clients: int = 4
    fraction: float = 1.0
    """The share of clients that is asked in a round."""
    batch_size: int | None = None
    """Examples of each client in a round; all that it has if `None`."""
    rounds: int = 24
    local: LocalSteps | None = None
    """FedAvg's local steps; clients send gradients if `None`."""
    optimizer: str | None = None
    """The server's: "adam", "adamw" or "sgd"; Adam if `None`, for updates SGD."""
    lr: float | None = None
    """The server's rate; 1e-3 if `None`, for updates 1: the mean change is added."""
    aggregation: str = "plain"
    """Whether the server sees each message ("plain") or only their sum ("secure")."""

    def __post_init__(self) -> None:
        check_count(self.clients, "clients")
        count_asked(self.clients, self.fraction)
        check_count(self.rounds, "rounds")
        if self.batch_size is not None:
            check_count(self.batch_size, "batch_size")
        if self.local is not None:
            check_kind(self.local, "local", LocalSteps, "Use for example `LocalSteps(0.1, 2)`.")
        usual = ("adam", 1e-3) if self.local is None else ("sgd", 1.0)
        optimizer = usual[0] if self.optimizer is None else self.optimizer
        lr = usual[1] if self.lr is None else self.lr
        check_choice(optimizer, "optimizer", tuple(OPTIMIZERS))
        check_positive(lr, "lr")
        check_at_most(lr, "lr")
        check_choice(self.aggregation, "aggregation", ("plain", "secure"))
        object.__setattr__(self, "optimizer", optimizer)  # the class is frozen for everyone else
        object.__setattr__(self, "lr", lr)

    @property
    def sends(self) -> str:
        """What clients send: "gradient" or "update"."""
        return "gradient" if self.local is None else "update"

    def optimizer_of(self, model: nn.Module) -> optim.Optimizer:
        """The server's optimizer of a model's trainable parameters."""
        trained = [p for p in model.parameters() if p.requires_grad]
        made: optim.Optimizer = OPTIMIZERS[str(self.optimizer)](trained, lr=self.lr)
        return made


def sample_clients(identifiers: Sequence[int], fraction: float, seed: int, round: int) -> list[int]:
    """A fresh random choice of `count_asked` clients for this round, sorted."""
    count = count_asked(len(identifiers), fraction)
    drawn = torch.randperm(len(identifiers), generator=named_stream(seed, "sampling", round))
    return sorted(identifiers[i] for i in drawn[:count].tolist())


def count_asked(clients: int, fraction: float) -> int:
    """⌊fraction · clients + 1/2⌋, at least 1."""
    check_sample_rate(fraction, "fraction")
    return max(1, int(fraction * clients + 0.5))


@dataclass(frozen=True)
class TrainingConfig(Federation):
    """A run, made of strings and numbers only. The defaults are the paper's training on MNIST.

    The strings name registered entries. What builds a run from them takes import paths
    (``package.module:name``) only with its own `allow_imports`, which no configuration can set: a
    configuration may come from elsewhere.
    """

    data: str = "mnist"
    model: str | None = None
    """A name, or ``conv-net(width=16)``, in the sizes of the data (`build_fitting_model`); the
    default for the data if `None`."""
    defense: str = "no-defense"
    """As `gradveil.catalog.build_defense` reads it."""
    batch_size: int = 16
    rounds: int = 64
    partition: str = "iid"
    alpha: float = 0.5
    local: LocalSteps | None = field(init=False, default=None)
    aggregation: str = field(init=False, default="plain")
    local_steps: int | None = None
    """FedAvg with so many local steps; `None` for FedSGD."""
    local_lr: float = 0.01
    local_batch_size: int | None = None
    limit: int | None = None
    """Training examples: the first so many. All but the held-out ones if `None`."""
    held_out: int | None = None
    """Examples for evaluation, or as many as there are; 0 for none. 512 if `None`, of small data a
    fifth."""
    held_out_start: int | None = None
    """The first of them; right behind the training examples if `None`."""
    evaluate_every: int = 8
    """Rounds between evaluations; the last round is always evaluated."""
    sampling: str | None = None
    """Of each client's batches: "shuffle" or "poisson"; see `Client`."""
    sample_rate: float | None = None
    """q of Poisson sampling, a public number: (ε, δ) is then about one example more or less. If
    `None`, batch_size over the number of a client's examples, which makes that number public."""
    target_epsilon: float | None = None
    """The budget: ε(δ) that the run may spend, with a defense that has (ε, δ). Its noise multiplier
    may then be left out: it is solved for."""
    delta: float = 1e-5
    seed: int = 0
    """Of weights, partition, batches and noise."""
    secure: bool = False
    """Whether noise and Poisson samples come from a `SecureGenerator` instead. A run whose noise
    has a seed protects nobody."""
    device: str = "cpu"
    """Where gradients, sensitivities and noise are computed, as "cuda:0"."""

    def __post_init__(self) -> None:
        for name in ("data", "defense", *(["model"] if self.model is not None else [])):
            check_kind(getattr(self, name), name, str, "It is a name or a path.")
        for name in ("evaluate_every", "local_steps", "local_batch_size", "limit"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), name)
        for name in ("held_out", "held_out_start"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), name, least=0)
        check_positive(self.alpha, "alpha")
        check_positive(self.local_lr, "local_lr")
        check_at_most(self.local_lr, "local_lr")
        check_choice(self.partition, "partition", PARTITIONS)
        check_seed(self.seed)
        check_flag(self.secure, "secure")
        check_delta(self.delta)
        if self.sampling is not None:
            check_choice(self.sampling, "sampling", SAMPLINGS)
        if self.sample_rate is not None:
            check_sample_rate(self.sample_rate)
        if self.target_epsilon is not None:
            check_positive(self.target_epsilon, "target_epsilon")
        device_of(self.device)
        if self.local_steps is not None:
            local = LocalSteps(self.local_lr, self.local_steps, self.local_batch_size)
            object.__setattr__(self, "local", local)
        super().__post_init__()

    def to_dict(self) -> dict[str, Any]:
        """What it was made of, as plain values."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    def parts_of(self, targets: Tensor) -> list[Tensor]:
        """The places of each client's examples."""
        return partition(targets, self.clients, self.partition, alpha=self.alpha, seed=self.seed)

    @property
    def loss_fn(self) -> LossFunction:
        """A mean over examples."""
        return cross_entropy


def count_rounds(epochs: float, examples: int, config: TrainingConfig) -> int:
    """The rounds in which the asked clients see `examples` examples `epochs` times.

    With a `sample_rate` q that is epochs / q whatever the number of examples, which a public rate
    is to hide.
    """
    asked = count_asked(config.clients, config.fraction)
    if config.sample_rate is not None:
        return max(1, math.ceil(epochs * config.clients / (asked * config.sample_rate)))
    return max(1, math.ceil(epochs * examples / (asked * config.batch_size)))


@dataclass(frozen=True)
class Split:
    """Training and held-out examples."""

    inputs: Tensor
    targets: Tensor
    held_out: tuple[Tensor, Tensor] | None
    num_classes: int


def load_split(config: TrainingConfig) -> Split:
    """Load the data and cut it as the configuration says."""
    data = load_dataset(config.data)
    if data.targets.is_floating_point():
        advice = "A training minimises the cross-entropy of classes."
        raise WrongValue("data", "hold labels, whole numbers", f"{data.targets.dtype}", advice)
    data, available, held_out = data.to(config.device), len(data), config.held_out
    if held_out is None:
        held_out = 512 if config.limit is not None else min(512, max(1, available // 5))
    elif config.limit is None and held_out >= available:
        expected = f"be below the {available} examples of `{config.data}`"
        raise WrongValue("held_out", expected, f"{held_out}", "Lower it, or set `limit`.", True)
    count = available - held_out if config.limit is None else min(config.limit, available)
    kept = None
    if held_out:
        start = count if config.held_out_start is None else config.held_out_start
        if not count <= start < available:
            left = f"leave {held_out} examples behind the {count} for training"
            expected, advice = f"{left}, of {available} in all", "Lower `limit`, or hold out none."
            raise WrongValue("held_out_start", expected, f"{start}", advice, True)
        kept = data.inputs[start : start + held_out], data.targets[start : start + held_out]
    return Split(data.inputs[:count], data.targets[:count], kept, data.num_classes)


def partition(
    targets: Tensor, clients: int, kind: str = "iid", *, alpha: float = 0.5, seed: int = 0
) -> list[Tensor]:
    """The indices of each client's examples.

    They are those of flwr-datasets' partitioners for the same seed, entry by entry:

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
    check_choice(kind, "kind", PARTITIONS)
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
