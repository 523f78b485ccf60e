"""The configuration of a training run, and the data, clients and server that it describes."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil._checks import (
    check_at_most,
    check_choice,
    check_count,
    check_flag,
    check_kind,
    check_not_negative_count,
    check_positive,
    check_seed,
    device_of,
)
from gradveil._imports import AllowImports
from gradveil.catalog import build_defense
from gradveil.data import Dataset, load_dataset
from gradveil.messages import LocalSteps, LossFunction
from gradveil.models import build_fitting_model, count_classes, default_model
from gradveil.privacy import check_delta, check_sample_rate

from ._client import Client
from ._partition import KINDS, partition
from ._planner import Planner
from ._sampling import SAMPLINGS, count_asked
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
    model: str | None = None
    """A name, or ``conv-net(width=16)``, in the sizes of the data (`build_fitting_model`); the
    default for the data if `None`."""
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
        check_flag(self.secure, "secure")
        if self.sampling is not None:
            check_choice(self.sampling, "sampling", SAMPLINGS)
        if self.sample_rate is not None:
            check_sample_rate(self.sample_rate)
        if self.target_epsilon is not None:
            check_positive(self.target_epsilon, "target_epsilon")
        check_delta(self.delta)
        for name in ("held_out", "held_out_start"):
            if getattr(self, name) is not None:
                check_not_negative_count(getattr(self, name), name)
        check_positive(self.alpha, "alpha")
        check_positive(self.local_lr, "local_lr")
        check_at_most(self.local_lr, "local_lr")
        count_asked(self.clients, self.fraction)
        device_of(self.device)

    def fitted_to(self, data: "Split") -> "TrainingConfig":
        """The same configuration with its model named: the data's default where there was none."""
        return replace(self, model=self.model or default_model(data.inputs.shape[1:]))

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return asdict(self)

    @property
    def loss_fn(self) -> LossFunction:
        """The loss function: cross-entropy, a mean over examples."""
        return cross_entropy

    @property
    def local(self) -> LocalSteps | None:
        """FedAvg's local steps."""
        if self.local_steps is None:
            return None
        return LocalSteps(self.local_lr, self.local_steps, self.local_batch_size)


def count_rounds(epochs: float, examples: int, config: TrainingConfig) -> int:
    """The rounds in which the asked clients see `examples` examples `epochs` times."""
    asked = count_asked(config.clients, config.fraction)
    return max(1, math.ceil(epochs * examples / (asked * config.batch_size)))


HELD_OUT = 512
"""Examples for evaluation, where the user does not say."""

PUBLIC = 128
"""Of these, so many are what a server plans from."""


@dataclass(frozen=True)
class Split:
    """Training and held-out examples."""

    inputs: Tensor
    targets: Tensor
    held_out: tuple[Tensor, Tensor] | None
    num_classes: int


def load_split(config: TrainingConfig) -> Split:
    """Load the data and cut it as the configuration says."""
    return split_data(config, load_dataset(config.data))


def split_data(config: TrainingConfig, data: Dataset) -> Split:
    """Training and held-out examples, cut as the configuration says."""
    data = data.to(config.device)
    held_out = _count_held_out(config, len(data))
    count = len(data) - held_out if config.limit is None else min(config.limit, len(data))
    kept = None
    if held_out:
        start = count if config.held_out_start is None else config.held_out_start
        _check_start(start, count, held_out, len(data))
        end = min(len(data), start + held_out)
        kept = (data.inputs[start:end], data.targets[start:end])
    return Split(data.inputs[:count], data.targets[:count], kept, data.num_classes)


def initial_model(
    config: TrainingConfig, data: Split, *, allow_imports: AllowImports = False
) -> nn.Module:
    """The model with its initial weights, which the seed determines; checked to fit the data."""
    shape = data.inputs.shape[1:]
    model = build_fitting_model(
        config.model, shape, data.num_classes, config.seed, allow_imports=allow_imports
    ).to(config.device)
    count_classes(model, config.loss_fn, data.inputs[:2], data.targets)
    return model


def build_clients(
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
            sampling=config.sampling,
            sample_rate=config.sample_rate,
            secure=config.secure,
        )
        for identifier, part in enumerate(parts)
    ]


def build_server(
    config: TrainingConfig, data: Split, *, allow_imports: AllowImports = False
) -> Server:
    """The server with the initial model and its optimizer."""
    model = initial_model(config, data, allow_imports=allow_imports)
    trained = [p for p in model.parameters() if p.requires_grad]
    kind = "gradient" if config.local_steps is None else "update"
    assert config.optimizer is not None  # __post_init__ has put the usual one there
    return Server(model, OPTIMIZERS[config.optimizer](trained, lr=config.lr), kind)


def usual_planner(
    config: TrainingConfig, data: Split, *, allow_imports: AllowImports = False
) -> Planner | None:
    """The planner of a run whose clients wait for the server's shapes; `None` for all others.

    It plans from the first 128 held-out examples, which stand for public ones.
    """
    defense = build_defense(config.defense, allow_imports=allow_imports)
    if defense.about.source != "server":
        return None
    if data.held_out is None or len(data.held_out[0]) < 2:
        raise ValueError(
            f"Parameter `held_out` should leave examples for the server to plan from, which"
            f" `{config.defense}` waits for. Found none. Raise it (`--held-out`), or give a"
            " planner with public examples."
        )
    inputs, targets = data.held_out
    return build_planner(config, (inputs[:PUBLIC], targets[:PUBLIC]))


def build_planner(
    config: TrainingConfig, public: tuple[Tensor, Tensor], refresh_every: int = 10
) -> Planner:
    """A planner for the clients of this configuration, from public inputs and targets."""
    return Planner(
        public,
        config.loss_fn,
        refresh_every,
        batch_size=config.batch_size,
        local=config.local,
        seed=config.seed,
    )


def _count_held_out(config: TrainingConfig, available: int) -> int:
    if config.held_out is None:
        return HELD_OUT if config.limit is not None else min(HELD_OUT, max(1, available // 5))
    if config.limit is None and config.held_out >= available:
        raise ValueError(
            f"Parameter `held_out` should be below the {available} examples of `{config.data}`."
            f" Found `held_out = {config.held_out}`. Lower it (`--held-out`), or set `limit`."
        )
    return config.held_out


def _check_start(start: int, count: int, held_out: int, available: int) -> None:
    if start < count or start >= available:
        raise ValueError(
            f"Parameter `held_out_start` should leave {held_out} examples behind the {count} for"
            f" training, of {available} in all. Found `held_out_start = {start}`. Lower `limit`, or"
            " set `held_out` to 0."
        )
