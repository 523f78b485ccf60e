"""Messages, contexts and a grid in this process, with every context passed on as bytes."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.proto.message_pb2 import Context as ContextProto
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_res_message
from flwr.serverapp import Grid
from torch import Tensor, nn

from gradveil.models import build_model

App = Callable[[Message, Context], Message]


def model(seed: int = 0) -> nn.Module:
    return build_model("mlp", seed=seed, sizes=[6, 8, 3])


def examples(count: int = 10, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=generator)
    return inputs, torch.randint(3, (count,), generator=generator)


def context(node: int = 7, run: dict[str, Any] | None = None, **settings: Any) -> Context:
    return Context(1, node, {"partition-id": 0, **settings}, RecordDict(), run or {})


def through_bytes(given: Context) -> Context:
    """The context as the next process finds it."""
    return context_from_proto(ContextProto.FromString(context_to_proto(given).SerializeToString()))


def train_message(weights: nn.Module, node: int = 7, **config: Any) -> Message:
    content = RecordDict(
        {"arrays": ArrayRecord(weights.state_dict()), "config": ConfigRecord(config)}
    )
    return Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node)


def reply(
    values: dict[str, Tensor], examples: Any = 4, node: int = 7, **more: RecordDict
) -> Message:
    """What a client may send, right or wrong."""
    arrays = ArrayRecord({name: Array(value.numpy()) for name, value in values.items()})
    content = RecordDict(
        {"arrays": arrays, "metrics": MetricRecord({"num-examples": examples}), **more}
    )
    return Message(content=content, reply_to=train_message(model(), node))


def values_of(message: Message) -> dict[str, Tensor]:
    return dict(message.content.array_records["arrays"].to_torch_state_dict())


class LocalGrid(Grid):
    """Nodes in this process; each message finds its context as it came out of bytes."""

    def __init__(self, app: App, nodes: dict[int, Context]) -> None:
        self.app, self.contexts = app, nodes
        self.silent: set[int] = set()
        self.gone: set[int] = set()

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        answers = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = message.object_id
            if node in self.gone:  # what the SuperLink answers in its place
                answers.append(
                    create_message_error_unavailable_res_message(message.metadata, "node_unavail")
                )
            elif node not in self.silent:
                found = through_bytes(self.contexts[node])
                answers.append(self.app(message, found))
                self.contexts[node] = found
        return answers[::-1]

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError
