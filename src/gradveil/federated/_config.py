"""The configuration of a training run."""

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
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
from gradveil.messages import LocalSteps, LossFunction
from gradveil.models import default_model
from gradveil.privacy import check_delta

from ._partition import KINDS
from ._sampling import SAMPLINGS, count_asked

if TYPE_CHECKING:
    from ._build import Split

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
