"""What happened in a run: its rounds as values, JSON, CSV and curves."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from gradveil._drawing import new_figure, save_figure
from gradveil.privacy import PrivacyAccount

from ._server import Skip


@dataclass(frozen=True)
class RoundMetrics:
    """One round. `None` stands for what was not looked at this time, or cannot be seen."""

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
    shape_bytes: int | None = None
    """Of the plan's shape that the server sent to each client; `None` without a planner."""


@dataclass(frozen=True)
class TrainingHistory:
    """All rounds of a run."""

    rounds: tuple[RoundMetrics, ...]
    config: dict[str, Any] = field(default_factory=dict)
    """The `TrainingConfig` as plain values; empty for a run that was put together by hand."""
    privacy: dict[str, Any] | None = None
    """What the privacy account is about (`PrivacyAccount.describe`), and whether the run is a
    "simulation", whose noise came from a seed: no ε of it protects anybody. `None` without one."""
    stopped: str | None = None
    """Why the run ended before its last round, if it did."""

    @classmethod
    def of(
        cls,
        rounds: Sequence[RoundMetrics],
        account: PrivacyAccount | None,
        *,
        simulation: bool,
        short: bool,
        config: dict[str, Any] | None = None,
    ) -> "TrainingHistory":
        """These rounds with what their account says; `short`: whether its budget ended the run."""
        if account is None:
            return cls(tuple(rounds), config or {})
        stopped = None
        if short:
            stopped = (
                f"{'In this simulation, after' if simulation else 'After'} {len(rounds)} rounds ε"
                f" is {account.epsilon():.4g} at δ = {account.delta:g} ({account.hides}); one more"
                f" round would make it {account.epsilon(1):.4g}, above the budget of"
                f" {account.budget:g}."
            )
        privacy = {**account.describe(), "simulation": simulation}
        return cls(tuple(rounds), config or {}, privacy, stopped)

    @property
    def simulation(self) -> bool:
        """Whether ε is what a run with secret noise would have, as the noise of this had a seed."""
        return bool((self.privacy or {}).get("simulation"))

    @property
    def skipped(self) -> int:
        """How often a client was skipped, over all rounds."""
        return sum(len(row.skipped) for row in self.rounds)

    @property
    def accuracy(self) -> float | None:
        """The last that was measured."""
        return next((r.accuracy for r in reversed(self.rounds) if r.accuracy is not None), None)

    def to_json(self) -> str:
        """The history as JSON text, floats exact."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "TrainingHistory":
        """The history that `to_json` wrote."""
        plain = json.loads(text)
        for row in plain["rounds"]:
            row["clients"] = tuple(row["clients"])
            row["skipped"] = tuple(Skip(**skip) for skip in row["skipped"])
        return cls(**{**plain, "rounds": tuple(RoundMetrics(**row) for row in plain["rounds"])})

    def to_csv(self) -> str:
        """One line for each round: the same bytes for the same seed.

        ε of a simulation is in the column "epsilon_simulated".
        """
        names = [column.name for column in fields(RoundMetrics)]
        said = {"epsilon": "epsilon_simulated"} if self.simulation else {}
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([said.get(name, name) for name in names])
        writer.writerows([_cell(getattr(row, name)) for name in names] for row in self.rounds)
        return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, tuple):
        return " ".join(str(v.client if isinstance(v, Skip) else v) for v in value)
    return value


def draw_curves(history: TrainingHistory, path: Path) -> None:
    """The clients' loss, and the accuracy on what was held out."""
    figure = new_figure(9.5, 3.6)
    names = {"loss": "clients' loss", "accuracy": "accuracy on held-out data"}
    for axis, (name, label) in zip(figure.subplots(1, 2), names.items(), strict=True):
        known = [row for row in history.rounds if getattr(row, name) is not None]
        axis.plot([row.round for row in known], [getattr(row, name) for row in known])
        axis.set_xlabel("round")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    save_figure(figure, path)


SEEDED = (
    "A simulation, which protects nobody: the noise came from a seed, and whoever knows it can take"
    " it off. Leave the seed out where data is private."
)


def privacy_statement(history: TrainingHistory) -> str | None:
    """ε(δ) of a run with all that it means: unit, neighbours, sampling; `None` without an account.

    A run whose noise had a seed says that first: see `SEEDED`.
    """
    told = history.privacy
    if told is None:
        return None
    spent = history.rounds[-1].epsilon if history.rounds else 0.0
    unit = told["unit"]
    lines = [SEEDED, "Without one it would be:"] if history.simulation else []
    lines += [
        f"ε = {spent:.4g} at δ = {told['delta']:g} after {len(history.rounds)} rounds, for each"
        f" {unit} ({told['hides']}), noise multiplier {told['noise_multiplier']:.4g}.",
        f"Sampling: {told['sampling']}.",
    ]
    if unit == "client":
        lines.append(
            "Each client's message is clipped as a whole and noised by the client; that it takes"
            " part is not hidden."
        )
    elif told["neighbours"] == "zero-out" and told["sample_rate"] < 1:
        lines.append("Where clients have other rates, the largest is accounted for.")
    if unit == "client" or told["sample_rate"] == 1:
        lines.append("Nothing is gained from clients or examples that were not drawn.")
    if not told.get("grid", True):
        lines.append(
            "The noise is continuous: what the last bits of floating-point sums tell is not"
            " covered."
        )
    lines.append(
        "Covered is what clients send. The losses, U1 and U2 of their batches are not: do not"
        " publish them."
    )
    return " ".join(lines)
