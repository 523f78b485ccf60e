"""A federation: who trains together, and how."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradveil._checks import (
    WrongValue,
    check_at_most,
    check_choice,
    check_count,
    check_kind,
    check_positive,
    check_seed,
)
from gradveil._random import named_stream
from gradveil.messages import LocalSteps
from gradveil.privacy import check_sample_rate

OPTIMIZERS: dict[str, Any] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


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

    def optimizer_of(self, model: nn.Module) -> torch.optim.Optimizer:
        """The server's optimizer of a model's trainable parameters."""
        trained = [p for p in model.parameters() if p.requires_grad]
        made: torch.optim.Optimizer = OPTIMIZERS[str(self.optimizer)](trained, lr=self.lr)
        return made


def sample_clients(identifiers: Sequence[int], fraction: float, seed: int, round: int) -> list[int]:
    """`count_asked` of them, drawn anew in every round, in order.

    They come from the stream (seed, "sampling", round).

    >>> sample_clients([0, 1, 2, 3], 1.0, seed=0, round=1)
    [0, 1, 2, 3]
    """
    check_kind(identifiers, "identifiers", (list, tuple, range), "Give the clients' numbers.")
    if not identifiers:
        raise WrongValue("identifiers", "hold at least one", "none")
    check_seed(seed)
    count = count_asked(len(identifiers), fraction)
    drawn = torch.randperm(len(identifiers), generator=named_stream(seed, "sampling", round))
    return sorted(identifiers[i] for i in drawn[:count].tolist())


def count_asked(clients: int, fraction: float) -> int:
    """⌊fraction · clients + 1/2⌋, at least 1."""
    check_sample_rate(fraction, "fraction")
    return max(1, int(fraction * clients + 0.5))
