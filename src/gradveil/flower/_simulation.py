"""A training run on Flower's simulation: the same numbers as the local engine."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
from pathlib import Path

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from gradveil._imports import AllowImports
from gradveil.federated import (
    Client,
    Planner,
    RoundMetrics,
    Skip,
    Split,
    TrainingConfig,
    TrainingHistory,
    account_of,
    build_clients,
    build_server,
    check_unused,
    evaluate,
    hold_folder,
    initial_model,
    load_split,
    sample_clients,
    save_history,
    save_weights,
    settled,
    usual_planner,
)

from ._strategy import DefendedStrategy
from ._train import answer

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
        self.simulation = not config.secure
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


def run_simulation_of(
    config: TrainingConfig,
    data: Split | None = None,
    *,
    out: Path | str | None = None,
    on_round: Callable[[RoundMetrics], None] = lambda _: None,
    planner: Planner | None = None,
    allow_imports: AllowImports = False,
) -> TrainingHistory:
    """Train as `gradveil.federated.train` does, with every client in Flower's simulation.

    Clients are numbered by their partition; batches, noise and sampling come from the same streams
    of `config.seed`, so the weights are the local engine's, unless noise is secure. What only a
    client sees (its loss, utilities, times) is `None` in the result: replies hold nothing of it. A
    round without a usable reply leaves the model as it is, and the run goes on.

    Args:
        config: What to train.
        data: What `load_split(config)` gave; loaded if `None`. Clients load their own.
        out: Folder for `history.json`, `rounds.csv` and `model.pt`.
        on_round: Called after every round.
        planner: As for `gradveil.federated.train`.
        allow_imports: Whether model and defense may be import paths, whose code is then run: True
            for a configuration of the local user's own, or the paths that are allowed.
    """
    data = load_split(config) if data is None else data
    config = settled(config.fitted_to(data), data.targets, allow_imports=allow_imports)
    folder = None if out is None else Path(out)
    with hold_folder(folder):
        if folder is not None:
            check_unused(folder)
        if planner is None:
            planner = usual_planner(config, data, allow_imports=allow_imports)
        model, history = _simulate(config, data, on_round, planner, allow_imports)
        if folder is not None:
            save_weights(model, folder / "model.pt")
            save_history(history, folder)
    return history


def _simulate(
    config: TrainingConfig,
    data: Split,
    on_round: Callable[[RoundMetrics], None],
    planner: Planner | None,
    allow_imports: AllowImports,
) -> tuple[nn.Module, TrainingHistory]:
    from flwr.simulation import run_simulation

    strategy = SimulatedServer(config, data, on_round, planner=planner, allow_imports=allow_imports)
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.start(grid=grid, num_rounds=config.rounds)

    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")  # no telemetry, no advice on how to silence a warning
    with _quiet():
        run_simulation(
            server_app=server,
            client_app=client_app_of(config, allow_imports=allow_imports),
            num_supernodes=config.clients,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )
    history = TrainingHistory(
        tuple(strategy.history),
        config.to_dict(),
        "flower",
        strategy.privacy,
        strategy.stopped,
    )
    return strategy.model, history


def client_app_of(config: TrainingConfig, *, allow_imports: AllowImports = False) -> ClientApp:
    """The clients of a run: each builds its own part of the data from the configuration."""
    app = ClientApp()
    allowed = allow_imports if isinstance(allow_imports, bool) else frozenset(allow_imports)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        identifier = int(context.node_config[PARTITION])
        return answer(message, context, lambda: _made(config, identifier, allowed), config.loss_fn)

    @app.query()
    def identify(message: Message, context: Context) -> Message:
        told = MetricRecord({PARTITION: int(context.node_config[PARTITION])})
        return Message(content=RecordDict({"metrics": told}), reply_to=message)

    return app


def _made(
    config: TrainingConfig, identifier: int, allowed: bool | frozenset[str]
) -> tuple[Client, nn.Module]:
    """The client before its first reply, and a model to load weights into."""
    clients, model = _in_this_process(config, allowed)
    return deepcopy(clients[identifier]), model


@lru_cache(maxsize=1)
def _in_this_process(
    config: TrainingConfig, allowed: bool | frozenset[str]
) -> tuple[list[Client], nn.Module]:
    data = load_split(config)
    clients = build_clients(config, data, allow_imports=allowed)
    return clients, initial_model(config, data, allow_imports=allowed)


@contextmanager
def _quiet() -> Iterator[None]:
    """Errors only from Flower, whose tale of each round the history tells better."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
