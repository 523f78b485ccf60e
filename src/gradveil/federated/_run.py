"""Federated training over many rounds, which can be stopped and resumed."""

import functools
import hashlib
import io
import json
import pickle
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradveil._checks import (
    NonFiniteError,
    WrongValue,
    check_callable,
    check_count,
    check_kind,
    check_pair,
    check_seed,
    check_tensor,
)
from gradveil._files import write_atomically
from gradveil._fingerprint import digest, state_of
from gradveil.defenses import PrivateNoise
from gradveil.messages import LossFunction, check_match, gradient_of
from gradveil.privacy import PrivacyAccount

from ._client import Client, Costs, NoReplyError, Reply
from ._config import count_asked, sample_clients
from ._planner import Planner
from ._server import RoundMetrics, Server, Skip, TrainingHistory

CHECKPOINT, RELEASES = "checkpoint", "spent.json"
OnRound = Callable[[RoundMetrics], None]


class Evaluation(NamedTuple):
    """Means over the examples."""

    loss: float
    accuracy: float | None
    """`None` where outputs are no scores of classes."""


@torch.no_grad()
def evaluate(
    model: nn.Module, loss_fn: LossFunction, inputs: Tensor, targets: Tensor
) -> Evaluation:
    """The model in eval mode, whatever its mode; `loss_fn` is a mean over examples.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil.models import build_model
    >>> model, targets = build_model("mlp", sizes=[3, 2]), torch.tensor([0, 0, 1, 1])
    >>> evaluate(model, cross_entropy, torch.zeros(4, 3), targets).accuracy
    0.5
    """
    check_kind(model, "model", nn.Module)
    check_callable(loss_fn, "loss_fn", "Use for example cross_entropy.")
    check_tensor(inputs, "inputs")
    check_tensor(targets, "targets")
    check_match(inputs, targets, tokens=gradient_of(inputs).takes_tokens)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    loss, right, scored = 0.0, 0, True
    for chunk, labels in zip(inputs.split(256), targets.split(256), strict=True):
        outputs = model(chunk)
        loss += float(loss_fn(outputs, labels)) * len(chunk)
        scored = scored and outputs.dim() == 2 and labels.dim() == 1
        scored = scored and not labels.is_floating_point()
        right += int((outputs.argmax(1) == labels).sum()) if scored else 0
    for module, mode in modes.items():
        module.training = mode
    return Evaluation(loss / len(inputs), right / len(inputs) if scored else None)


class FederatedRun:
    """Clients and a server in one process, round after round.

    Args:
        clients: Each with an identifier of its own.
        loss_fn: A mean over examples.
        fraction, seed: The share of clients that is asked in a round (`sample_clients`).
        held_out: Inputs and targets for evaluation.
        evaluate_every: Rounds between evaluations; `run` evaluates its last round as well.
        account: Counts each round as one step for every client, asked or not, before anything is
            released; `run` ends before a round that its budget does not allow. The clients have to
            clip and to add the noise that it states, and to sample at its rate at most; one of
            "add-remove" is refused where a client's rate is made from its number of examples.
        planner: Makes the shape that clients with `FromServer` plan with.
        config: What the history says that the run was made from.
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
        config: Mapping[str, Any] | None = None,
    ) -> None:
        check_count(evaluate_every, "evaluate_every")
        check_seed(seed)
        check_kind(server, "server", Server, "Make one of a model and an optimizer.")
        check_callable(loss_fn, "loss_fn", "Use for example cross_entropy.")
        self.clients = _by_identifier(clients)
        if account is not None:
            check_kind(account, "account", PrivacyAccount, "Make one of noise, rate and δ.")
            for client in clients:
                _check_account(account, client)
        for part in () if held_out is None else check_pair(held_out, "held_out"):
            check_tensor(part, "held_out")
        if planner is not None:
            check_kind(planner, "planner", Planner, "Give it public examples and the loss.")
        self.server, self.loss_fn, self.held_out = server, loss_fn, held_out
        self.fraction, self.seed, self.evaluate_every = fraction, seed, evaluate_every
        self.account, self.planner, self.config = account, planner, dict(config or {})
        self.rounds: list[RoundMetrics] = []
        self._wanted = 0
        optional = {"account": account, "planner": planner}
        self._parts: dict[str, Any] = {"model": server.model, "optimizer": server.optimizer}
        self._parts |= {name: part for name, part in optional.items() if part is not None}
        options = {
            "fraction": count_asked(len(clients), fraction),
            "seed": seed,
            "evaluate every": evaluate_every,
            "held out": held_out,
            "loss": loss_fn,
            "account": None if account is None else account.describe(),
            "planner": planner,
        }
        self.fingerprint = run_fingerprint(server, clients, options)

    def step(self, *, last: bool = False) -> RoundMetrics:
        """One more round; the last one is evaluated in any case.

        A client is skipped, with the reason in the result, if it has no data, if its loss or
        gradient is not finite or says nothing, or if the server refuses its reply.

        Raises:
            BudgetError: If the account's budget does not allow it. Nothing is released then.
            NoReplyError: If no reply is left. The model stays as it was.
        """
        number = len(self.rounds) + 1
        if self.account is not None:
            self.account.step()  # counts even if the round fails: something may have been sent
        asked = sample_clients(sorted(self.clients), self.fraction, self.seed, number)
        clients = [self.clients[i] for i in asked]
        size = self._send_shape(number, clients)
        metrics = replace(self._play(number, clients), shape_bytes=size)
        if self.held_out is not None and (last or number % self.evaluate_every == 0):
            loss, accuracy = evaluate(self.server.model, self.loss_fn, *self.held_out)
            metrics = replace(metrics, held_out_loss=loss, accuracy=accuracy)
        if self.account is not None:
            metrics = replace(metrics, epsilon=self.account.epsilon())
        self.rounds.append(metrics)
        return metrics

    def _play(self, number: int, clients: Sequence[Client]) -> RoundMetrics:
        """Ask these clients, average what they send, take the server's step."""
        replies: list[tuple[int, Reply]] = []
        costs: dict[int, Costs] = {}
        skipped: list[Skip] = []
        for client in clients:
            try:
                reply, cost = client.reply_with_costs(self.server.model, self.loss_fn)
            except (NoReplyError, NonFiniteError) as error:
                skipped.append(Skip(client.identifier, str(error)))
            else:
                replies.append((client.identifier, reply))
                costs[client.identifier] = cost
        counted, refused = self.server.step(replies)
        skipped += refused
        if not counted:
            found = f"{len(skipped)} clients asked and all of them skipped"
            expected, first = "have at least one usable reply", f"The first: {skipped[0].reason}"
            raise NoReplyError(f"Round {number}", expected, found, first)
        return round_metrics(number, counted, skipped, [costs[i] for i in counted])

    def _send_shape(self, number: int, clients: Sequence[Client]) -> int | None:
        """Give this round's shape to its clients; the bytes that each of them gets."""
        if self.planner is None:
            return None
        packed = self.planner.plan(number, self.server.model)
        for client in clients:
            client.use(packed.shape)
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
        if folder is not None and self.account is not None:
            self._count_from(folder)
        while len(self.rounds) < rounds and not self._is_spent(1):
            last = len(self.rounds) + 1 == rounds or self._is_spent(2)
            if folder is not None and self.account is not None:
                note_releases(folder, max(noted_releases(folder), self.account.steps) + 1)
            metrics = self.step(last=last)
            if folder is not None and (last or metrics.round % checkpoint_every == 0):
                save_checkpoint(folder, self.state_dict(), self.fingerprint)
            on_round(metrics)
        return self.history

    @property
    def history(self) -> TrainingHistory:
        """What happened so far."""
        return TrainingHistory.of(
            self.rounds,
            self.account,
            simulation=not all(client.secure for client in self.clients.values()),
            short=len(self.rounds) < self._wanted and self._is_spent(1),
            config=self.config,
        )

    def _is_spent(self, rounds: int) -> bool:
        """Whether so many more rounds would spend more than the budget."""
        return self.account is not None and self.account.would_exceed(rounds)

    def resume(self, folder: Path) -> None:
        """Continue from the folder's checkpoint.

        Rounds after the checkpoint are played again. Where their noise is secure they are then
        released a second time, with other noise: the account counts them twice.
        """
        self.load_state_dict(load_checkpoint(folder, self.fingerprint))
        self._count_noted(folder)

    def _count_from(self, folder: Path) -> None:
        """Have a checkpoint to count from, if killed; what this run released before counts, too."""
        if (folder / CHECKPOINT).exists():
            load_checkpoint(folder, self.fingerprint)  # refuses that of another run
            self._count_noted(folder)
        else:
            save_checkpoint(folder, self.state_dict(), self.fingerprint)

    def _count_noted(self, folder: Path) -> None:
        if self.account is not None and any(client.secure for client in self.clients.values()):
            lost = noted_releases(folder) - self.account.steps
            if lost > 0:
                self.account.step(lost)

    def state_dict(self) -> dict[str, Any]:
        """All that changes from round to round: tensors, numbers and text."""
        return {
            "history": self.history.to_json(),
            "clients": {i: client.state_dict() for i, client in self.clients.items()},
            **{name: part.state_dict() for name, part in self._parts.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        for identifier, client in self.clients.items():
            client.load_state_dict(state["clients"][identifier])
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        self.rounds = list(TrainingHistory.from_json(state["history"]).rounds)


def _by_identifier(clients: Sequence[Client]) -> dict[int, Client]:
    check_kind(clients, "clients", (list, tuple), "Give a list of clients.")
    for client in clients:
        check_kind(client, "clients", Client, "Give a list of clients.")
    by_identifier = {client.identifier: client for client in clients}
    if len(by_identifier) < len(clients) or not clients:
        expected = "hold at least one client, each with an identifier of its own"
        found = f"{[client.identifier for client in clients]}"
        raise WrongValue("clients", expected, found, "Number them from 0.")
    return by_identifier


def _check_account(account: PrivacyAccount, client: Client) -> None:
    """Refuse an account that says more than what the client does gives."""
    defense, batches = client.defense, client.batches
    own = f"Client {client.identifier} of an account with ε for each {account.unit}"
    if not isinstance(defense, PrivateNoise) or defense.unit != account.unit:
        raise WrongValue(own, f"clip and noise each {account.unit}", type(defense).__name__)
    least, most, relation = account.noise_multiplier, account.sample_rate, account.neighbours
    z, rate, needed = defense.noise_multiplier, 1.0, relation
    if account.unit == "example":
        rate, needed = (batches.rate or 1.0) if batches.count else 0.0, batches.neighbours
    order = ("add-remove", "zero-out", "replace-one")  # each is covered by itself and those after
    covers = order.index(relation) >= order.index(needed)
    why = f"'{needed}', as one example less changes how all others are drawn"
    for expected, found, holds in (
        (f"have noise_multiplier >= {least:g}", z, z >= least * (1 - 1e-12)),
        ("have its noise on a grid", "grid=False", defense.grid or not account.grid),
        (f"sample at a rate of {most:g} at most", rate, rate <= most * (1 + 1e-12)),
        (f"have one about neighbours={why}", relation, covers),
    ):
        if not holds:
            advice = "Make the account of what clients do; a public `sample_rate` fixes their rate."
            raise WrongValue(own, expected, f"{found}", advice)


def round_metrics(
    number: int, replies: Mapping[int, Reply], skipped: Sequence[Skip], costs: Sequence[Costs] = ()
) -> RoundMetrics:
    """What a server sees of a round, and what the replies were worth where that is known."""
    sizes = [reply.examples for reply in replies.values()]
    return RoundMetrics(
        round=number,
        clients=tuple(sorted(replies)),
        skipped=tuple(skipped),
        examples=sum(sizes),
        bytes_sent=sum(reply.size for reply in replies.values()),
        loss=_mean([cost.loss for cost in costs], sizes),
        utility_first=_mean([cost.utility_first for cost in costs]),
        utility_second=_mean([cost.utility_second for cost in costs]),
    )


def _mean(values: Sequence[float | None], weights: Sequence[int] | None = None) -> float | None:
    """Over those that are known; batches without examples have no loss."""
    pairs = zip(values, weights or [1] * len(values), strict=False)
    known = [(value * weight, weight) for value, weight in pairs if value is not None]
    total = sum(weight for _, weight in known)
    return sum(part for part, _ in known) / total if total else None


def note_releases(folder: Path, count: int) -> None:
    """Write down that so many releases were begun; call it before the last of them is made."""
    write_atomically(folder / RELEASES, json.dumps({"releases": count}))


def noted_releases(folder: Path) -> int:
    """How many were begun, those after the last checkpoint included; 0 if none was noted."""
    path = folder / RELEASES
    return int(json.loads(path.read_text())["releases"]) if path.exists() else 0


def save_checkpoint(folder: Path, state: dict[str, Any], fingerprint: str) -> None:
    """Write the state in the place of the last one, behind a checksum."""
    buffer = io.BytesIO()
    torch.save({"fingerprint": fingerprint, "state": state}, buffer)
    body = buffer.getvalue()
    write_atomically(folder / CHECKPOINT, hashlib.sha256(body).digest() + body)


def load_checkpoint(folder: Path, fingerprint: str) -> dict[str, Any]:
    """The folder's state, if it is whole and belongs to the run with this fingerprint."""
    path, file = folder / CHECKPOINT, f"File `{folder / CHECKPOINT}`"
    if not path.exists():
        raise WrongValue(f"Folder `{folder}`", "hold a checkpoint", "none")
    content = path.read_bytes()
    if hashlib.sha256(content[32:]).digest() != content[:32]:
        found = "that it is truncated or damaged, or of another kind"
        advice = "Start again in another folder."
        raise WrongValue(file, "be a whole checkpoint of gradveil", found, advice)
    try:
        loaded = torch.load(io.BytesIO(content[32:]), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = "something else, which was not run"
        raise WrongValue(file, "hold tensors, numbers and text", found) from error
    if loaded["fingerprint"] != fingerprint:
        expected = "come from a run with this data, model, defense and settings"
        advice = "Use the settings it was made with, or another folder."
        raise WrongValue(file, expected, "the fingerprint of another", advice)
    state: dict[str, Any] = loaded["state"]
    return state


def run_fingerprint(server: Server, clients: Sequence[Client], options: dict[str, Any]) -> str:
    """SHA-256 of initial weights, optimizer, data, defenses and options."""
    groups = [
        {key: repr(value) for key, value in group.items() if key != "params"}
        for group in server.optimizer.param_groups
    ]
    content = {
        "model": _module(server.model),
        "kind": server.kind,
        "optimizer": [type(server.optimizer).__name__, groups],
        "clients": [describe(client) for client in clients],
        "options": describe(options),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def describe(thing: object) -> Any:
    """What an object is and its public attributes, all the way down, as plain values."""
    if isinstance(thing, Tensor):
        return digest(thing)
    if isinstance(thing, (bool, int, float, str, type(None))):
        return thing
    if isinstance(thing, (list, tuple)):
        return [describe(part) for part in thing]
    if isinstance(thing, dict):
        return {str(key): describe(part) for key, part in thing.items()}
    if isinstance(thing, (functools.partial, types.FunctionType, types.MethodType)):
        return state_of(thing)  # what it holds is what it does
    kind = thing if callable(thing) and hasattr(thing, "__qualname__") else type(thing)
    public = {k: describe(v) for k, v in getattr(thing, "__dict__", {}).items() if k[0] != "_"}
    inside = _module(thing) if isinstance(thing, nn.Module) else []
    return [f"{kind.__module__}.{kind.__qualname__}", public, *inside]


def _module(module: nn.Module) -> list[Any]:
    """What a module is made of, what of it is trained, in which mode, and its numbers."""
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    numbers = {name: digest(value) for name, value in module.state_dict().items()}
    return [repr(module), trained, [each.training for each in module.modules()], numbers]
