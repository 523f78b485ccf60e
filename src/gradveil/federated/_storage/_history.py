"""The results of a training run, round by round."""

import csv
import dataclasses
import io
import json
from dataclasses import dataclass
from typing import Any

TIMES = ("seconds_gradient", "seconds_defense")
"""What differs from one run to the next even with the same seed."""


@dataclass(frozen=True)
class Skip:
    """A client that was asked in a round and does not count in it, and why."""

    client: int
    reason: str


@dataclass(frozen=True)
class RoundMetrics:
    """One round. `None` stands for what the engine cannot see, or did not look at this time."""

    round: int
    """From 1."""
    clients: tuple[int, ...]
    """Those whose replies count."""
    skipped: tuple[Skip, ...]
    examples: int
    bytes_sent: int
    """By all clients; zeros of a pruned reply count as not sent (see `Reply.size`)."""
    loss: float | None = None
    """Of the clients' batches before the step, in the mean over examples."""
    utility_first: float | None = None
    """U1, in the mean over clients."""
    utility_second: float | None = None
    """U2, likewise."""
    held_out_loss: float | None = None
    """After the step."""
    accuracy: float | None = None
    """On the held-out data, after the step."""
    epsilon: float | None = None
    """ε of all rounds so far, at the δ of `TrainingHistory.privacy`; `None` without an account."""
    seconds_gradient: float | None = None
    """Of plain gradients of the same batches, the sum over clients."""
    seconds_defense: float | None = None
    """What the defense added to them."""
    shape_bytes: int | None = None
    """Of the plan's shape that the server sent to each client; `None` without a planner."""


@dataclass(frozen=True)
class TrainingHistory:
    """All rounds of a run."""

    rounds: tuple[RoundMetrics, ...]
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The `TrainingConfig` as plain values; empty for a run that was put together by hand."""
    engine: str = "local"
    privacy: dict[str, Any] | None = None
    """What the privacy account is about (`PrivacyAccount.describe`); `None` without one."""
    stopped: str | None = None
    """Why the run ended before its last round, if it did."""

    @property
    def skipped(self) -> int:
        """How often a client was skipped, over all rounds."""
        return sum(len(row.skipped) for row in self.rounds)

    @property
    def accuracy(self) -> float | None:
        """The last that was measured."""
        return next((r.accuracy for r in reversed(self.rounds) if r.accuracy is not None), None)

    def smoothed_loss(self, window: int = 8) -> list[float]:
        """The mean of the last `window` rounds' losses, at each round."""
        losses = [row.loss for row in self.rounds if row.loss is not None]
        tails = (losses[max(0, i + 1 - window) : i + 1] for i in range(len(losses)))
        return [sum(tail) / len(tail) for tail in tails]

    def to_json(self) -> str:
        """The history as JSON text, floats exact."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "TrainingHistory":
        """The history that `to_json` wrote."""
        plain = json.loads(text)
        return cls(**{**plain, "rounds": tuple(_restored(row) for row in plain["rounds"])})

    def to_csv(self, *, times: bool = True) -> str:
        """One line for each round; without times, the same bytes for the same seed."""
        names = [f.name for f in dataclasses.fields(RoundMetrics) if times or f.name not in TIMES]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_cell(getattr(row, name)) for name in names] for row in self.rounds)
        return text.getvalue()


def _restored(row: dict[str, Any]) -> RoundMetrics:
    skipped = tuple(Skip(**skip) for skip in row["skipped"])
    return RoundMetrics(**{**row, "clients": tuple(row["clients"]), "skipped": skipped})


def _cell(value: object) -> object:
    if isinstance(value, tuple):
        return " ".join(f"{v.client}" if isinstance(v, Skip) else str(v) for v in value)
    return "" if value is None else value
