"""Servers for defended clients: gradients (FedSGD) or weight changes (FedAvg), averaged."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from torch import nn

from gradveil._checks import WrongValue, check_kind
from gradveil._tensors import Tensors
from gradveil.federated import (
    Planner,
    Reply,
    RoundMetrics,
    Server,
    Skip,
    TrainingHistory,
    round_metrics,
)
from gradveil.privacy import PrivacyAccount

from ._client import EXAMPLES, SHAPE, SIMULATION, record_of, shape_record, tensors_of

_log = logging.getLogger("gradveil.flower")


class FedSGD(FedAvg):
    """The paper's server: a torch optimizer steps on the mean of the clients' gradients.

    g = Σ_k n_k g_k / Σ_k n_k over clients with n_k examples goes to `.grad`. One round is one
    mini-batch. Clients reply by `train_function(...)` or `reply_to`, with names and shapes of the
    trainable parameters. A reply that is malformed, not finite, or did not come is skipped and
    counted (`history`, and the round's train metrics); the run goes on with the rest.

    BatchNorm's running statistics never come back from clients: they would tell of the private
    data. So use BatchNorm in eval mode, with statistics of public data or its initial ones.

    Args:
        model, optimizer: The global model, moved in place, and what moves it.
        options: Of Flower's `FedAvg`: `fraction_train`, `min_train_nodes` (1), and
            `min_available_nodes` (2), which is waited for before the first round only.
        planner: Plans the shape of the noise for clients whose source is `FromServer`, once a
            round for all of them, and sends it with the model; other clients ignore it.
        account: Counts each round as one step for every client, before it is asked for; `start`
            ends before its budget is exceeded, and the train metrics hold ε so far ("epsilon"),
            and whether noise came from a seed ("simulation", 0 or 1): ε protects nobody as soon as
            one node has told so. The clients have to clip, to sample and to add noise as it states
            (`train_function` with `PrivateNoise`), each with its rate at most; without a
            `sample_rate` give neighbours="zero-out".
    """

    kind = "gradient"

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        planner: Planner | None = None,
        account: PrivacyAccount | None = None,
        **options: Any,
    ) -> None:
        if account is not None:
            check_kind(account, "account", PrivacyAccount, "Make one of noise, rate and δ.")
        super().__init__(**{"min_train_nodes": 1, **options})
        if "fraction_evaluate" not in options:  # given as 0, Flower would warn about it
            self.fraction_evaluate, self.min_evaluate_nodes = 0.0, 0
        self.server = Server(model, optimizer, self.kind)
        self.planner, self.account = planner, account
        self.simulation, self._short = False, False
        self._shape_bytes: int | None = None
        self.rounds: list[RoundMetrics] = []
        self._questions: list[Metadata] = []

    @property
    def model(self) -> nn.Module:
        """The global model, as it is now."""
        return self.server.model

    @property
    def history(self) -> TrainingHistory:
        """The rounds so far: who counts, and who was skipped and why; what the account says."""
        return TrainingHistory.of(
            self.rounds, self.account, simulation=self.simulation, short=self._short
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        *others: Any,
        **options: Any,
    ) -> Result:
        """As `FedAvg.start`; from the model's own weights if no others are given.

        It ends before the round that the account's budget does not allow: see `history.stopped`.
        """
        if initial_arrays is not None:
            self.model.load_state_dict(tensors_of(initial_arrays))
        allowed = num_rounds if self.account is None else self.account.allowed(num_rounds)
        initial = record_of(self.model.state_dict())
        result = super().start(grid, initial, allowed, *others, **options)
        self._short = allowed < num_rounds
        if self._short:
            _log.warning("%s", self.history.stopped)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As `FedAvg`, of all nodes that it waits for; those gone after the first round are not.

        With a planner each message has the plan's shape, computed once for all. An account counts
        the round before it is sent: nothing is, where the budget does not allow it.
        """
        sample_nodes(grid, self.min_available_nodes, 0)  # Flower counts them before it waits
        sent = list(super().configure_train(server_round, arrays, config, grid))
        self.min_available_nodes = self.min_train_nodes
        if self.account is not None:
            self.account.step()
        if self.planner is not None:
            shape = self.planner.plan(server_round, self.model)
            self._shape_bytes, record = shape.size, shape_record(shape)
            for message in sent:
                message.content[SHAPE] = record
        self._questions = [message.metadata for message in sent]
        return sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Move the model by the mean of the good replies; count the others and go on.

        A round without a good reply leaves the model and its optimizer as they are.
        """
        received, skipped = self._read(replies)
        heard = {*(node for node, _ in received), *(skip.client for skip in skipped)}
        asked = [question.dst_node_id for question in self._questions]
        silent = [Skip(node, "No answer in time.") for node in asked if node not in heard]
        counted, refused = self.server.step(received)
        skipped += refused + silent
        for skip in skipped:
            _log.warning(
                "round %d: node %d does not count: %s", server_round, skip.client, skip.reason
            )
        epsilon = None if self.account is None else self.account.epsilon()
        row = round_metrics(server_round, counted, skipped)
        row = replace(row, epsilon=epsilon, shape_bytes=self._shape_bytes)
        self.rounds.append(row)
        metrics: dict[str, int | float] = {
            "num-examples": row.examples,
            "replies": len(counted),
            "skipped": len(skipped),
        }
        if epsilon is not None:
            metrics |= {"epsilon": epsilon, "simulation": int(self.simulation)}
        arrays = record_of(self.model.state_dict()) if counted else None
        return arrays, MetricRecord(metrics)  # type: ignore[arg-type]

    def _read(self, replies: Iterable[Message]) -> tuple[list[tuple[int, Reply]], list[Skip]]:
        """Replies by node, and the reason for what is none."""
        received: list[tuple[int, Reply]] = []
        failed: list[Skip] = []
        expected = self.server.parameters
        asked = {q.message_id: q.dst_node_id for q in self._questions if q.message_id}
        for message in replies:
            answer = message.metadata  # an error that the SuperLink answers has another source
            node = asked.get(answer.reply_to_message_id, answer.src_node_id)
            try:
                received.append((node, read_reply(message, expected)))
                told = message.content.metric_records.values()
                self.simulation |= any(SIMULATION in metrics for metrics in told)
            except ValueError as error:
                failed.append(Skip(node, str(error)))
        return received, failed


class FedAvgUpdates(FedSGD):
    """Federated averaging of defended weight changes: Θ ← Θ + Σ_k n_k Δ_k / Σ_k n_k.

    Flower's own `FedAvg` averages weights; defended clients (`train_function(..., local=...)`) send
    the change of the weights, because that is what the defense is made for. Replies are treated
    as by `FedSGD`, and so are BatchNorm's statistics.

    Args:
        model, planner, options: As for `FedSGD`; the planner with the clients' local steps.
        optimizer: Steps on minus the mean change; SGD with rate 1, plain averaging, if `None`.
        account: As for `FedSGD`, with unit="client", a rate of 1 and neighbours="zero-out", as
            everybody sees which clients answer.
    """

    kind = "update"


def read_reply(message: Message, expected: Tensors) -> Reply:
    """What a client sent, in the types of `expected`; names and shapes are for others to check.

    Of its metrics only the number of examples is looked at.
    """
    if message.has_error():
        raise ValueError(f"The client failed with code {message.error.code}.")
    arrays, metrics = message.content.array_records, message.content.metric_records
    if len(arrays) != 1 or len(metrics) != 1:
        found, advice = f"{len(arrays)} and {len(metrics)}", "Use `gradveil.flower.reply_to`."
        raise WrongValue("A reply", "hold one ArrayRecord and one MetricRecord", found, advice)
    examples = next(iter(metrics.values())).get(EXAMPLES)
    if not isinstance(examples, int):
        raise WrongValue("A reply", f"tell `{EXAMPLES}` as an integer", repr(examples))
    values = tensors_of(next(iter(arrays.values())))
    for name, value in values.items():
        if not value.is_floating_point():
            raise WrongValue("A reply", "hold floating-point numbers", str(value.dtype))
        if name in expected:  # what overflows in the server's type is seen in its check
            values[name] = value.to(expected[name])
    return Reply(values, examples)
