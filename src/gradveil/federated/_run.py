"""Federated training over many rounds, which can be stopped and resumed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from gradveil._batches import check_pair
from gradveil._checks import check_callable, check_count, check_kind, check_seed, check_tensor
from gradveil.messages import LossFunction
from gradveil.privacy import PrivacyAccount

from ._client import Client
from ._evaluate import evaluate
from ._planning import Planner
from ._private import budget_spent
from ._round import play_round
from ._sampling import count_asked, sample_clients
from ._server import Server
from ._storage import (
    RoundMetrics,
    TrainingHistory,
    describe,
    digest,
    has_checkpoint,
    load_checkpoint,
    note_releases,
    noted_releases,
    run_fingerprint,
    save_checkpoint,
)

OnRound = Callable[[RoundMetrics], None]


class FederatedRun:
    """Clients and a server in one process, round after round.

    Args:
        server: With the model and its optimizer.
        clients: Each with an identifier of its own.
        loss_fn: A mean over examples.
        fraction: The share of clients that is asked in a round (`sample_clients`).
        seed: Of the sampling of clients.
        held_out: Inputs and targets for evaluation.
        evaluate_every: Rounds between evaluations; `run` evaluates its last round as well.
        account: Counts each round as one step for every client, asked or not, before anything is
            released; `run` ends before a round that its budget does not allow. `None` for a run
            without (ε, δ). The clients have to clip and to add the noise that it states.
        planner: Makes the shape that clients with `FromServer` plan with; none if `None`.

    >>> import torch
    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import GradientNoise
    >>> from gradveil.federated import Client, Server
    >>> from gradveil.models import build_model
    >>> generator = torch.Generator().manual_seed(0)
    >>> data = torch.rand(8, 3, generator=generator), torch.tensor([0, 1] * 4)
    >>> clients = [Client(n, *data, GradientNoise(0.1), batch_size=4, seed=0) for n in range(2)]
    >>> model = build_model("mlp", sizes=[3, 2])
    >>> server = Server(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> FederatedRun(server, clients, cross_entropy).step().examples
    8
    """

    def __init__(
        self,
        server: Server,
        clients: Sequence[Client],
        loss_fn: LossFunction,
        *,
        fraction: float = 1.0,
        seed: int = 0,
        held_out: tuple[Tensor, Tensor] | None = None,
        evaluate_every: int = 8,
        account: PrivacyAccount | None = None,
        planner: Planner | None = None,
    ) -> None:
        check_count(evaluate_every, "evaluate_every")
        check_seed(seed)
        check_kind(server, "server", Server, "Make one of a model and an optimizer.")
        check_callable(loss_fn, "loss_fn", "Use for example cross_entropy.")
        if account is not None:
            check_kind(account, "account", PrivacyAccount, "Make one of noise, rate and δ.")
        if held_out is not None:
            for part in check_pair(held_out, "held_out"):
                check_tensor(part, "held_out")
        if planner is not None:
            check_kind(planner, "planner", Planner, "Give it public examples and the loss.")
        self.planner = planner
        self.server, self.loss_fn, self.held_out = server, loss_fn, held_out
        self.clients = _by_identifier(clients)
        self.fraction, self.seed, self.evaluate_every = fraction, seed, evaluate_every
        self.account = account
        self.rounds: list[RoundMetrics] = []
        self._wanted = 0
        kept = [] if held_out is None else [digest(part) for part in held_out]
        options = {
            "fraction": count_asked(len(clients), fraction),
            "seed": seed,
            "evaluate every": evaluate_every,
            "held out": kept,
            "loss": describe(loss_fn),
            **({} if account is None else {"account": account.describe()}),
            **({} if planner is None else {"planner": describe(planner)}),
        }
        self.fingerprint = run_fingerprint(server, clients, options)

    def step(self, *, last: bool = False) -> RoundMetrics:
        """One more round; the last one is evaluated in any case.

        Raises:
            BudgetError: If the account's budget does not allow it. Nothing is released then.
        """
        number = len(self.rounds) + 1
        if self.account is not None:
            self.account.step()  # counts even if the round fails: something may have been sent
        asked = sample_clients(sorted(self.clients), self.fraction, self.seed, number)
        clients = [self.clients[i] for i in asked]
        size = self._send_shape(number, clients)
        metrics = play_round(number, self.server, clients, self.loss_fn)
        metrics = replace(metrics, shape_bytes=size)
        if self.held_out is not None and (last or number % self.evaluate_every == 0):
            loss, accuracy = evaluate(self.server.model, self.loss_fn, *self.held_out)
            metrics = replace(metrics, held_out_loss=loss, accuracy=accuracy)
        if self.account is not None:
            metrics = replace(metrics, epsilon=self.account.epsilon())
        self.rounds.append(metrics)
        return metrics

    def _send_shape(self, number: int, clients: Sequence[Client]) -> int | None:
        """Give this round's shape to its clients; returns the bytes that each of them gets."""
        if self.planner is None:
            return None
        packed = self.planner.plan(number, self.server.model)
        shape = packed.shape()
        for client in clients:
            client.use(shape)
        return packed.size

    def run(
        self,
        rounds: int,
        *,
        folder: Path | None = None,
        checkpoint_every: int = 8,
        on_round: OnRound = lambda _: None,
    ) -> TrainingHistory:
        """Rounds until there are `rounds` in all or the budget is spent, with checkpoints."""
        check_count(rounds, "rounds")
        check_count(checkpoint_every, "checkpoint_every")
        self._wanted = rounds
        if folder is not None and self.account is not None and not has_checkpoint(folder):
            save_checkpoint(folder, self.state_dict(), self.fingerprint)  # to count from, if killed
        while len(self.rounds) < rounds and not self._is_spent(1):
            last = len(self.rounds) + 1 == rounds or self._is_spent(2)
            if folder is not None and self.account is not None:
                note_releases(folder, self.account.steps + 1)
            metrics = self.step(last=last)
            if folder is not None and (last or metrics.round % checkpoint_every == 0):
                save_checkpoint(folder, self.state_dict(), self.fingerprint)
            on_round(metrics)
        return self.history

    @property
    def history(self) -> TrainingHistory:
        """What happened so far."""
        if self.account is None:
            return TrainingHistory(tuple(self.rounds))
        short = len(self.rounds) < self._wanted and self._is_spent(1)
        stopped = budget_spent(self.account, len(self.rounds)) if short else None
        secure = all(client.secure for client in self.clients.values())
        privacy = {**self.account.describe(), "secure": secure}
        return TrainingHistory(tuple(self.rounds), privacy=privacy, stopped=stopped)

    def _is_spent(self, rounds: int) -> bool:
        """Whether so many more rounds would spend more than the budget."""
        return self.account is not None and self.account.would_exceed(rounds)

    def resume(self, folder: Path) -> str | None:
        """Continue from the folder's checkpoint; returns why the newest was refused, if it was.

        Rounds after the checkpoint are played again. Where their noise is secure they are then
        released a second time, with other noise: the account counts them twice.
        """
        loaded = load_checkpoint(folder, self.fingerprint)
        self.load_state_dict(loaded.state)
        again = any(client.secure for client in self.clients.values())
        if self.account is not None and again:
            lost = noted_releases(folder) - self.account.steps
            if lost > 0:
                self.account.step(lost)
        return loaded.refused

    def state_dict(self) -> dict[str, Any]:
        """All that changes from round to round: tensors, numbers and text."""
        account = {} if self.account is None else {"account": self.account.state_dict()}
        return {
            **account,
            "history": self.history.to_json(),
            "model": self.server.model.state_dict(),
            "optimizer": self.server.optimizer.state_dict(),
            "clients": {i: client.state_dict() for i, client in self.clients.items()},
            **({} if self.planner is None else {"planner": self.planner.state_dict()}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        self.server.model.load_state_dict(state["model"])
        self.server.optimizer.load_state_dict(state["optimizer"])
        if self.planner is not None:
            self.planner.load_state_dict(state["planner"])
        for identifier, client in self.clients.items():
            client.load_state_dict(state["clients"][identifier])
        if self.account is not None:
            self.account.load_state_dict(state["account"])
        self.rounds = list(TrainingHistory.from_json(state["history"]).rounds)


def _by_identifier(clients: Sequence[Client]) -> dict[int, Client]:
    check_kind(clients, "clients", (list, tuple), "Give a list of clients.")
    for client in clients:
        check_kind(client, "clients", Client, "Give a list of clients.")
    by_identifier = {client.identifier: client for client in clients}
    if len(by_identifier) < len(clients) or not clients:
        raise ValueError(
            "Parameter `clients` should hold at least one client, each with an identifier of its"
            f" own. Found {[client.identifier for client in clients]}. Number them from 0."
        )
    return by_identifier
