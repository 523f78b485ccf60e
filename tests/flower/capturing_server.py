"""The example's ServerApp, which also writes down all that each client sent.

A test copies this file into a copy of the app, next to the modules it imports.
"""

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from digits import server_app
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.common.serde import recorddict_to_proto

from gradveil.flower import FedSGD


class Capturing(FedSGD):
    """FedSGD, and a file `<round>-<node>.pickle` for each reply."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        FOLDER.mkdir(exist_ok=True)
        for message in replies:
            path = FOLDER / f"{server_round}-{message.metadata.src_node_id}.pickle"
            path.write_bytes(pickle.dumps(captured(message)))
        return super().aggregate_train(server_round, replies)


def captured(message: Message) -> dict[str, Any]:
    """A reply in plain values: its records' kinds and keys, its arrays, its bytes."""
    if message.has_error():
        return {"error": message.error.reason}
    content = message.content
    return {
        "kinds": {key: type(record).__name__ for key, record in content.items()},
        "metrics": {key: dict(record) for key, record in content.metric_records.items()},
        "arrays": {
            key: {name: array.numpy() for name, array in record.items()}
            for key, record in content.array_records.items()
        },
        "bytes": recorddict_to_proto(content).SerializeToString(),
        "metadata": str(message.metadata),
    }


FOLDER = Path("captured")
server_app.FedSGD = Capturing  # type: ignore[misc]
app = server_app.app
