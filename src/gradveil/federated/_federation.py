"""A federation: who trains together, and how."""

from dataclasses import dataclass

from gradveil._checks import (
    check_at_most,
    check_choice,
    check_count,
    check_kind,
    check_positive,
)
from gradveil.messages import LocalSteps

from ._config import OPTIMIZERS
from ._sampling import count_asked

AGGREGATIONS = ("plain", "secure")


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
        check_choice(self.aggregation, "aggregation", AGGREGATIONS)
        object.__setattr__(self, "optimizer", optimizer)  # the class is frozen for everyone else
        object.__setattr__(self, "lr", lr)

    @property
    def sends(self) -> str:
        """What clients send: "gradient" or "update"."""
        return "gradient" if self.local is None else "update"
