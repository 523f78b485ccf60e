"""From (model, loss, data, defense) to the train function of a Flower client."""

import io
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from torch import Tensor, nn

from gradveil._checks import WrongType, WrongValue
from gradveil.data import Dataset
from gradveil.defenses import Defense, PrivateNoise
from gradveil.federated import (
    Client,
    Limits,
    LocalSteps,
    ModelGuard,
    Reply,
    load_received,
)
from gradveil.messages import LossFunction, trainable_parameters

from ._records import failure, model_arrays, read_shape, reply_to

TrainFunction = Callable[[Message, Context], Message]
Data = Dataset | tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]]

_log = logging.getLogger("gradveil.flower")


def train_function(
    model: nn.Module | Callable[[Context], nn.Module],
    loss_fn: LossFunction,
    data: Data | Callable[[Context], Data],
    defense: Defense | Callable[[Context], Defense],
    *,
    batch_size: int = 16,
    local: LocalSteps | None = None,
    limits: Limits | None = None,
    sampling: str | None = None,
    sample_rate: float | Callable[[Context], float | None] | None = None,
    allow_zero: bool = False,
    guard: ModelGuard | None = None,
) -> TrainFunction:
    """A function for `ClientApp.train()` that answers with a defended message and nothing else.

    Each message takes the client's next mini-batch. Where it is in its data and what its
    defense remembers is kept in `context.state`, so it continues in a new process as in the same.

    The noise comes from a `SecureGenerator`, made afresh for each message: a server that knew its
    seed could take it off. Only the node's own configuration can fix it (``seed=...`` in
    `--node-config`), which is for tests: never the message, nor the run's configuration. Replies
    of `PrivateNoise` then say that they are a simulation, and so does the server's account.

    From the server comes the model's state, which must have the names, shapes and types of the
    client's own model and finite numbers. Its round configuration is not looked at, unless `limits`
    say what it may choose; what is outside of them is refused. Only for the source `FromServer` the
    plan's shape is taken from the message as well, if it fits the model. If the client fails, the
    reason goes to its own log: Flower would send the text, which may tell of the data.

    Args:
        model: The model, or what builds it from the context; its weights are overwritten.
        loss_fn: Maps (outputs, targets) to one number, a mean over examples.
        data: The client's own examples, or what loads them from the context: a pair of tensors, a
            `gradveil.data.Dataset`, or a loader of batches, which is read once from start to end
            and should not shuffle. There may be none (see `Client`), but no loader without batches
            beside a guard.
        defense: The defense, or what makes it from the context. Of the context, only the node's
            configuration is the client's own: what the run's configuration asks for should pass
            through `Limits.defense`.
        limits: What the round configuration in a message may choose; nothing if `None`.
        sample_rate: That of `Client`, or what gives it from the context. An account of the server's
            has to be about this rate at least, and without one about neighbours="zero-out".
        batch_size, local, sampling, allow_zero, guard: Those of `Client`.
    """

    def train(message: Message, context: Context) -> Message:
        try:
            chosen: dict[str, Any] = {
                "defense": _resolve(defense, context),
                "batch_size": batch_size,
                "local": local,
            }
            if limits is not None:
                records = message.content.config_records.values()
                asked = {key: value for record in records for key, value in record.items()}
                chosen = limits.settings(asked, chosen)
            seed = context.node_config.get("seed")  # whoever knows it can take the noise off
            client = Client(
                int(context.node_config.get("partition-id", context.node_id)),
                *_tensors(_resolve(data, context), guarded=guard is not None),
                **chosen,
                seed=None if seed is None else int(seed),
                sampling=sampling,
                sample_rate=_resolve(sample_rate, context),
                allow_zero=allow_zero,
                guard=guard,
                least=1 if limits is None else limits.least_examples,
            )
            reply = _reply(message, context, client, _resolve(model, context), loss_fn)
            seeded = isinstance(client.defense, PrivateNoise) and not client.secure
            return reply_to(message, reply.values, reply.examples, simulation=seeded)
        except Exception:
            _log.exception("gradveil: this client could not answer; the server is not told why")
            return failure(message)

    return train


def _reply(
    message: Message, context: Context, client: Client, model: nn.Module, loss_fn: LossFunction
) -> Reply:
    load_client(client, context.state)
    load_received(model, model_arrays(message))
    if client.defense.about.source == "server":  # others do not look at it
        shape = read_shape(message)
        if shape is not None:  # else the last shape stays
            shape.check(trainable_parameters(model))
            client.use(shape)
    try:
        return client.reply(model, loss_fn)
    finally:
        save_client(client, context.state)


def _resolve(thing: Any, context: Context) -> Any:
    """The thing itself, or what a function makes of the context."""
    is_value = isinstance(thing, (nn.Module, Defense)) or not callable(thing)
    return thing if is_value else thing(context)


def _tensors(data: Data, *, guarded: bool) -> tuple[Tensor, Tensor]:
    """All inputs and targets; batches without examples say nothing of their types."""
    if isinstance(data, Dataset):
        return data.inputs, data.targets
    if isinstance(data, tuple):
        return data
    batches = [batch for batch in data if len(batch)]
    batches = [batch for batch in batches if len(batch[0])] or batches[:1]
    if not batches and guarded:
        found, advice = "a loader without batches", "Use tensors, as `torch.empty(0, 28, 28)`."
        raise WrongValue("data", "tell a guard the shape of an example", found, advice)
    if not batches:
        return torch.empty(0, 1), torch.empty(0, dtype=torch.long)
    inputs, targets = zip(*batches, strict=True)
    return torch.cat(inputs), torch.cat(targets)


_RECORD = "gradveil"
"""In `context.state`, which stays with the node: Flower keeps it and sends none of it."""


def save_client(client: Client, records: RecordDict) -> None:
    """Write the client's place in its data and what its defense remembers."""
    state = client.state_dict()
    _check_plain(state["defense"])
    buffer = io.BytesIO()
    torch.save(state["defense"], buffer)
    kept = {**state, "defense": buffer.getvalue(), "defense.kind": _kind(client)}
    records[_RECORD] = ConfigRecord(kept)


def load_client(client: Client, records: RecordDict) -> None:
    """Continue where the last message to this node ended, if there was one.

    A defense of another class, as a round's configuration may ask for, starts afresh.
    """
    if _RECORD not in records:
        return
    kept = records.config_records[_RECORD]
    remembered, written = client.defense.state_dict(), kept["defense"]
    if kept["defense.kind"] == _kind(client):
        assert isinstance(written, bytes)
        remembered = torch.load(io.BytesIO(written), weights_only=True)
    client.load_state_dict({"root": kept["root"], "step": kept["step"], "defense": remembered})


def _check_plain(value: object) -> None:
    """Require types that `torch.load` knows by itself; not classes derived from them."""
    if type(value) in (dict, OrderedDict):
        value = [*value, *value.values()]  # type: ignore[misc,attr-defined]
    if type(value) in (list, tuple):
        for part in value:  # type: ignore[attr-defined]
            _check_plain(part)
    elif type(value) not in (bool, int, float, str, type(None)) and not isinstance(value, Tensor):
        plain = "tensors, numbers, text and `None`, in dicts, lists and tuples"
        raise WrongType("A defense's `state_dict`", f"hold {plain}", type(value).__name__)


def _kind(client: Client) -> str:
    kind = type(client.defense)
    return f"{kind.__module__}:{kind.__qualname__}"
