"""The server of a simulated run, which asks and notes what the local engine would."""

import time
from collections.abc import Callable, Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from gradveil._imports import AllowImports
from gradveil.federated import (
    Planner,
    RoundMetrics,
    Skip,
    Split,
    TrainingConfig,
    account_of,
    build_server,
    evaluate,
    sample_clients,
)

from ._strategy import DefendedStrategy

PARTITION = "partition-id"
"""Where a simulated node finds its number, and how it tells it."""


class SimulatedServer(DefendedStrategy):
    """Asks the clients that the local engine would ask, and writes the history it would write."""

    def __init__(
        self,
        config: TrainingConfig,
        data: Split,
        on_round: Callable[[RoundMetrics], None],
        *,
        planner: Planner | None = None,
        allow_imports: AllowImports = False,
    ) -> None:
        super().__init__(
            build_server(config, data, allow_imports=allow_imports),
            planner,
            account_of(config, data.targets, allow_imports=allow_imports),
        )
        self.config, self.on_round = config, on_round
        self.held_out = data.held_out
        self.history: list[RoundMetrics] = []
        self._clients: dict[int, int] = {}

    def client_of(self, node: int) -> int:
        """The partition of a node."""
        return self._clients.get(node, node)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message to each client of `sample_clients`."""
        self._clients = self._clients or _clients_by_node(grid, self.config.clients)
        asked = sample_clients(
            range(self.config.clients), self.config.fraction, self.config.seed, server_round
        )
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return self.ask(
            server_round,
            (
                Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node)
                for node, client in self._clients.items()
                if client in asked
            ),
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As always, and one more line of the history."""
        result = super().aggregate_train(server_round, replies)
        summary = self.rounds[-1]
        loss, accuracy = self._evaluated(server_round)
        row = RoundMetrics(
            round=server_round,
            clients=summary.counted,
            skipped=tuple(Skip(client, reason) for client, reason in summary.skipped),
            examples=summary.examples,
            bytes_sent=summary.bytes_sent,
            shape_bytes=self.shape_bytes,
            held_out_loss=loss,
            accuracy=accuracy,
            epsilon=self.epsilon,
        )
        self.history.append(row)
        self.on_round(row)
        return result

    def _evaluated(self, number: int) -> tuple[float | None, float | None]:
        due = number == self.last_round or number % self.config.evaluate_every == 0
        if self.held_out is None or not due:
            return None, None
        return evaluate(self.model, self.config.loss_fn, *self.held_out)


def _clients_by_node(grid: Grid, count: int) -> dict[int, int]:
    """Which node has which partition, as the nodes tell."""
    while len(nodes := list(grid.get_node_ids())) < count:
        time.sleep(0.1)
    questions = [
        Message(content=RecordDict(), message_type=MessageType.QUERY, dst_node_id=node)
        for node in nodes
    ]
    answers = grid.send_and_receive(questions)
    return {message.metadata.src_node_id: _partition(message) for message in answers}


def _partition(message: Message) -> int:
    told = message.content.metric_records["metrics"][PARTITION]
    assert isinstance(told, int)
    return told
