"""Everything that determines a training run, as plain values, and what is built from it."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil._checks import (
    check_at_most,
    check_choice,
    check_count,
    check_kind,
    check_not_negative_count,
    check_positive,
    check_seed,
    device_of,
)
from gradveil._imports import AllowImports
from gradveil.catalog import build_defense
from gradveil.data import load_dataset
from gradveil.messages import LocalSteps
from gradveil.models import build_model

from ._client import Client
from ._partition import KINDS, partition
from ._sampling import count_asked
from ._server import Server

OPTIMIZERS: dict[str, Any] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


@dataclass(frozen=True)
class TrainingConfig:
    """A run: strings and numbers only. The defaults are the paper's training on MNIST.

    The strings name registered entries. What builds a run from them takes import paths
    (``package.module:name``) only with its own `allow_imports`, which no configuration can set: a
    configuration may come from elsewhere.
    """

    data: str = "mnist"
    model: str = "simple-conv-net"
    """As `gradveil.models.build_model` reads it: a name, or ``conv-net(width=16)``."""
    defense: str = "no-defense"
    """As `gradveil.catalog.build_defense` reads it."""
    clients: int = 4
    batch_size: int = 16
    """Examples of each client in a round."""
    rounds: int = 64
    partition: str = "iid"
    alpha: float = 0.5
    fraction: float = 1.0
    """The share of clients that is asked in a round."""
    optimizer: str | None = None
    """The server's: "adam", "adamw" or "sgd"; Adam if `None`, for FedAvg SGD."""
    lr: float | None = None
    """The server's learning rate; 1e-3 if `None`, for FedAvg 1: the mean change is added."""
    local_steps: int | None = None
    """FedAvg with so many local steps; `None` for FedSGD."""
    local_lr: float = 0.01
    local_batch_size: int | None = None
    limit: int | None = None
    """Training examples: the first so many. All but the held-out ones if `None`."""
    held_out: int = 512
    """Examples for evaluation, or as many as there are; 0 for none."""
    held_out_start: int | None = None
    """The first of them; right behind the training examples if `None`."""
    evaluate_every: int = 8
    """Rounds between evaluations; the last round is always evaluated."""
    seed: int = 0
    device: str = "cpu"
    """Where gradients, sensitivities and noise are computed, as "cuda:0"."""

    def __post_init__(self) -> None:
        for name in ("data", "model", "defense"):
            check_kind(getattr(self, name), name, str, "It is a name or a path.")
        for name in ("clients", "batch_size", "rounds", "evaluate_every"):
            check_count(getattr(self, name), name)
        for name in ("local_steps", "local_batch_size", "limit"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), name)
        usual = ("adam", 1e-3) if self.local_steps is None else ("sgd", 1.0)
        optimizer = usual[0] if self.optimizer is None else self.optimizer
        lr = usual[1] if self.lr is None else self.lr
        check_choice(self.partition, "partition", KINDS)
        check_choice(optimizer, "optimizer", tuple(OPTIMIZERS))
        check_positive(lr, "lr")
        check_at_most(lr, "lr")
        object.__setattr__(self, "optimizer", optimizer)  # the class is frozen for everyone else
        object.__setattr__(self, "lr", lr)
        check_seed(self.seed)
        check_not_negative_count(self.held_out, "held_out")
        if self.held_out_start is not None:
            check_not_negative_count(self.held_out_start, "held_out_start")
        check_positive(self.alpha, "alpha")
        check_positive(self.local_lr, "local_lr")
        check_at_most(self.local_lr, "local_lr")
        count_asked(self.clients, self.fraction)
        device_of(self.device)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return asdict(self)

    @property
    def local(self) -> LocalSteps | None:
        """FedAvg's local steps."""
        if self.local_steps is None:
            return None
        return LocalSteps(self.local_lr, self.local_steps, self.local_batch_size)


@dataclass(frozen=True)
class Split:
    """Training and held-out examples."""

    inputs: Tensor
    targets: Tensor
    held_out: tuple[Tensor, Tensor] | None


def split_of(config: TrainingConfig) -> Split:
    """Load the data and cut it as the configuration says."""
    data = load_dataset(config.data).to(config.device)
    if config.limit is None and config.held_out >= len(data):
        raise ValueError(
            f"Parameter `held_out` should be below the {len(data)} examples of `{config.data}`."
            f" Found `held_out = {config.held_out}`. Lower it (`--held-out`), or set `limit`."
        )
    count = len(data) - config.held_out if config.limit is None else min(config.limit, len(data))
    if not config.held_out:
        return Split(data.inputs[:count], data.targets[:count], None)
    start = count if config.held_out_start is None else config.held_out_start
    if start < count or start >= len(data):
        raise ValueError(
            f"Parameter `held_out_start` should leave {config.held_out} examples behind the"
            f" {count} for training, of {len(data)} in all. Found `held_out_start = {start}`."
            " Lower `limit`, or set `held_out` to 0."
        )
    end = min(len(data), start + config.held_out)
    kept = (data.inputs[start:end], data.targets[start:end])
    return Split(data.inputs[:count], data.targets[:count], kept)


def model_of(config: TrainingConfig, *, allow_imports: AllowImports = False) -> nn.Module:
    """The model with its initial weights, which the seed determines."""
    model = build_model(config.model, config.seed, allow_imports=allow_imports)
    return model.to(config.device)


def client_of(config: TrainingConfig, identifier: int, data: Split) -> Client:
    """One client with its part of the data."""
    return clients_of(config, data)[identifier]


def clients_of(
    config: TrainingConfig, data: Split, *, allow_imports: AllowImports = False
) -> list[Client]:
    """All clients, 0 to `clients - 1`."""
    parts = partition(
        data.targets, config.clients, config.partition, alpha=config.alpha, seed=config.seed
    )
    return [
        Client(
            identifier,
            data.inputs[part],
            data.targets[part],
            build_defense(config.defense, allow_imports=allow_imports),
            batch_size=config.batch_size,
            seed=config.seed,
            local=config.local,
        )
        for identifier, part in enumerate(parts)
    ]


def server_of(config: TrainingConfig, *, allow_imports: AllowImports = False) -> Server:
    """The server with the initial model and its optimizer."""
    model = model_of(config, allow_imports=allow_imports)
    trained = [p for p in model.parameters() if p.requires_grad]
    kind = "gradient" if config.local_steps is None else "update"
    assert config.optimizer is not None  # __post_init__ has put the usual one there
    return Server(model, OPTIMIZERS[config.optimizer](trained, lr=config.lr), kind)


def loss_of(config: TrainingConfig) -> Any:
    """The loss function: cross-entropy, a mean over examples."""
    return cross_entropy


def rounds_of_epochs(epochs: float, examples: int, config: TrainingConfig) -> int:
    """The rounds in which the asked clients see `examples` examples `epochs` times."""
    asked = count_asked(config.clients, config.fraction)
    return max(1, math.ceil(epochs * examples / (asked * config.batch_size)))
