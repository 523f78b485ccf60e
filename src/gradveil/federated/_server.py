"""The server: a weighted mean of what clients send, a torch optimizer, and what it has seen."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradveil._checks import (
    WrongValue,
    check_choice,
    check_count,
    check_finite,
    check_kind,
    check_structure,
)
from gradveil._drawing import new_figure, save_figure
from gradveil._tensors import Tensors
from gradveil.messages import check_model, trainable_parameters
from gradveil.privacy import PrivacyAccount

from ._client import Reply


@dataclass(frozen=True)
class Skip:
    """A client that was asked in a round and does not count in it, and why."""

    client: int
    reason: str


class Server:
    """A model that moves by what clients send.

    FedSGD (`kind="gradient"`): the mean gradient goes to `.grad` and the optimizer takes a step.
    FedAvg (`kind="update"`): minus the mean weight change goes to `.grad`; the default optimizer,
    SGD with rate 1, then adds exactly the mean change.

    Buffers (BatchNorm's running statistics) are no part of a reply and stay as they are. Frozen
    parameters stay, too.

    The optimizer holds all parameters that are trained and no others.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        kind: str = "gradient",
    ) -> None:
        check_choice(kind, "kind", ("gradient", "update"))
        check_model(model)
        if optimizer is None and kind == "gradient":
            advice = "Use for example torch.optim.Adam(model.parameters(), lr=1e-3)."
            raise WrongValue("optimizer", "be given for FedSGD", "None", advice)
        if optimizer is None:
            optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
        check_kind(optimizer, "optimizer", torch.optim.Optimizer, "Use torch.optim's.")
        _check_optimizer(optimizer, model)
        self.model, self.kind, self.optimizer = model, kind, optimizer

    @property
    def parameters(self) -> Tensors:
        """What replies should look like: the trainable parameters, by name."""
        return trainable_parameters(self.model)

    def step(self, replies: Iterable[tuple[int, Reply]]) -> tuple[dict[int, Reply], list[Skip]]:
        """Move the model by Σ_k n_k y_k / Σ_k n_k over the good replies y_k with n_k examples.

        With a loss that is a mean over examples and no defense, this is the gradient of all the
        clients' batches together. A reply with other names or shapes than the model's, a NaN, an
        infinity, or no examples does not count, nor does a client's second one. Clients are added
        in the order of their identifiers, whoever answered first. Without a good reply all stays as
        it is; weights that are not finite after the step are an error.

        Returns:
            The replies that count, by client, and the others with the reason.
        """
        check_kind(replies, "replies", Iterable, "Give (identifier, Reply) of each client.")
        expected = self.parameters
        counted: dict[int, Reply] = {}
        refused: list[Skip] = []
        for identifier, reply in replies:
            check_kind(reply, "replies", Reply, "Give (identifier, Reply) of each client.")
            try:
                check_structure(reply.values, expected, "reply.values", "the server's parameters")
                check_finite(reply.values, "reply.values")
                check_count(reply.examples, "reply.examples")
                if identifier in counted:
                    raise ValueError(f"Found two replies of client {identifier}: one counts.")
            except ValueError as error:
                refused.append(Skip(identifier, str(error)))
            else:
                counted[identifier] = reply
        if counted:
            mean, sign = _mean(counted, expected), 1.0 if self.kind == "gradient" else -1.0
            for name, parameter in self.model.named_parameters():
                parameter.grad = sign * mean[name] if name in mean else None
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            check_finite(self.parameters, "the server's parameters after the step")
        return counted, refused


def _mean(replies: Mapping[int, Reply], expected: Tensors) -> Tensors:
    total = sum(reply.examples for reply in replies.values())
    mean = {name: torch.zeros_like(value) for name, value in expected.items()}
    for _, reply in sorted(replies.items(), key=lambda received: received[0]):
        for name, value in reply.values.items():
            mean[name].add_(value.to(mean[name]), alpha=reply.examples / total)
    return mean


def _check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Require that the optimizer moves this model, and all of it that is trained."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    foreign = len(held - {id(p) for p in model.parameters()})
    missing = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if foreign or missing:
        expected = "hold the trainable parameters of `model`, all of them and no others"
        left = f"{missing[:5]}{' and more' if len(missing) > 5 else ''}"
        found = f"{foreign} tensors that are not the model's, and that it misses {left}"
        advice = "Make it from `model.parameters()`; freeze others with `requires_grad_(False)`."
        raise WrongValue("optimizer", expected, found, advice)


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
