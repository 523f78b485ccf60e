"""A client of Flower's: its train function, its mod, and the records that it reads and writes."""

import io
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from torch import Tensor, nn

from gradveil._checks import WrongType, WrongValue, check_count, check_finite, check_structure
from gradveil._tensors import Tensors
from gradveil.data import Dataset
from gradveil.defenses import Defense, PrivateNoise
from gradveil.federated import (
    Client,
    Limits,
    LocalSteps,
    ModelGuard,
    PackedShape,
    Reply,
    load_received,
)
from gradveil.messages import LossFunction, trainable_parameters
from gradveil.sensitivity import Moments
from gradveil.shapes import Shape

TrainFunction = Callable[[Message, Context], Message]
Data = Dataset | tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]]

ARRAYS, METRICS, EXAMPLES = "arrays", "metrics", "num-examples"
SIMULATION = "simulation"
"""A metric of private replies whose noise has a seed; no others have it."""
FAILED = 2
"""Flower's code for a ClientApp that raised an exception."""
SHAPE = "gradveil.shape"
"""The record of the plan's shape in a train message, beside the model's."""
COUNTS = ("num-examples", "num_examples")
"""The number of examples, as a ClientApp tells it and as a NumPyClient does."""
STATUS, STATED = "fitres.status", "fitres.metrics"
"""What a NumPyClient's answer holds besides."""

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
    state, buffer = client.state_dict(), io.BytesIO()
    torch.save(state["defense"], buffer)
    buffer.seek(0)
    if foreign := torch.serialization.get_unsafe_globals_in_checkpoint(buffer):
        plain = "tensors, numbers, text and `None`, in dicts, lists and tuples"
        raise WrongType("A defense's `state_dict`", f"hold {plain}", ", ".join(foreign))
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


def _kind(client: Client) -> str:
    kind = type(client.defense)
    return f"{kind.__module__}:{kind.__qualname__}"


class DefendReply:
    """A mod for FedAvg clients: w + S(w' - w) in the place of the weights w' that they return.

    w are the weights that the server sent, S is the defense. For a ClientApp, or a NumPyClient in
    one, whose code stays as it is::

        app = ClientApp()

        @app.train(mods=[DefendReply(PrivateNoise(noise_multiplier=1.0, clip=0.5, unit="client"))])
        def train(message, context): ...

    A mod sees weights, not examples, models or losses. So it takes noise that needs nothing else:
    `GradientNoise(scale)`, `LaplaceNoise(scale)`, a defense of one's own that reads nothing and
    adds noise to all it sends, or `PrivateNoise(..., unit="client")`, which clips the whole.

    Of the reply's metrics the number of examples is sent on, and nothing else: losses and
    accuracies tell of the data. With `PrivateNoise` that number is 1 for every client: how many
    examples a client has is private, too. Messages other than for training are passed on as they
    are, and so are their replies. If the client fails, the server is not told why.

    Args:
        defense: The noise.
        unchanged: Names of arrays that are no parameters, such as BatchNorm's statistics: the
            server gets back what it sent. Integers always are.
    """

    def __init__(self, defense: Defense, unchanged: Collection[str] = ()) -> None:
        noise = isinstance(defense, Defense) and _is_fixed_noise(defense)
        private = isinstance(defense, PrivateNoise) and defense.unit == "client"
        if not noise and not private:
            known = "GradientNoise(scale), LaplaceNoise(scale), or PrivateNoise(..., unit='client')"
            advice = "Use `gradveil.flower.train_function`, which also sees the examples."
            expected = f"be noise that needs nothing but an update: {known}"
            raise WrongType("defense", expected, repr(defense), advice)
        self.defense, self.unchanged = defense, frozenset(unchanged)

    def __call__(self, message: Message, context: Context, call_next: TrainFunction) -> Message:
        """The client's reply, defended."""
        if message.metadata.message_type.partition(".")[0] != "train":
            return call_next(message, context)
        try:
            received = model_arrays(message)
            return self._defended(message, received, call_next(message, context))
        except Exception:
            _log.exception("gradveil: this client could not answer; the server is not told why")
            return failure(message)

    def _defended(self, message: Message, received: Tensors, reply: Message) -> Message:
        if reply.has_error():
            raise ValueError(f"The client failed with code {reply.error.code}.")
        ((name, arrays),) = reply.content.array_records.items()
        returned = tensors_of(arrays)
        check_structure(returned, received, "the reply", "the message")
        rest = _rest(reply.content, tell=not isinstance(self.defense, PrivateNoise))
        content = {name: record_of(self._weights(received, returned)), **rest}
        return Message(content=RecordDict(content), reply_to=message)

    def _weights(self, received: Tensors, returned: Tensors) -> Tensors:
        moved = {
            name: value - received[name]
            for name, value in returned.items()
            if value.is_floating_point() and name not in self.unchanged
        }
        check_finite(moved, "the update")
        sent = self.defense(lambda _: moved, torch.zeros(1, 1))
        return {n: w + sent[n].to(w) if n in sent else w for n, w in received.items()}


def _is_fixed_noise(defense: Defense) -> bool:
    """Whether it adds noise to all that it sends, and looks at nothing to do so."""
    about, zero = defense.about, {"": torch.zeros(1)}
    if about.needs.moments or about.private or about.whole:
        return False
    known = defense.plan(Moments.of_values(zero, 1)).information(zero)
    return bool(known[""].isfinite())


def _rest(content: RecordDict, *, tell: bool) -> dict[str, Any]:
    """The number of examples, or 1, and what a NumPyClient's server cannot do without."""
    rest: dict[str, Any] = {}
    for name, metrics in content.metric_records.items():
        known = (key for key in COUNTS if isinstance(metrics.get(key), int))
        counts = {key: metrics[key] if tell else 1 for key in known}
        if counts:
            rest[name] = MetricRecord(counts)
    configs = content.config_records
    if STATUS in configs:
        if configs[STATUS]["code"] != 0:
            raise ValueError(f"The client failed with code {configs[STATUS]['code']!r}.")
        rest[STATUS] = ConfigRecord({"code": 0, "message": ""})
        rest[STATED] = ConfigRecord()
    return rest


def reply_to(
    message: Message, values: Tensors, examples: int, *, simulation: bool = False
) -> Message:
    """The answer to a train message: one ArrayRecord, one MetricRecord with one number.

    `simulation` adds a second, which tells a server's account that private noise had a seed.

    For clients that call a defense themselves::

        sent = defense(gradveil.GradientMessage(model, loss_fn, targets), inputs)
        return reply_to(message, sent, len(inputs))

    Values that are not finite are an error: nothing is sent.
    """
    check_finite(values, "values")
    check_count(examples, "examples")
    metrics = MetricRecord({EXAMPLES: examples})
    if simulation:
        metrics[SIMULATION] = 1
    content = RecordDict({ARRAYS: record_of(values), METRICS: metrics})
    return Message(content=content, reply_to=message)


def failure(message: Message) -> Message:
    """The answer of a client that failed: that it did, not why."""
    error = Error(FAILED, "The client could not answer. Its own log tells why.")
    return Message(error, reply_to=message)


def model_arrays(message: Message) -> Tensors:
    """The global model's weights and buffers, as the server sent them."""
    records = [r for name, r in message.content.array_records.items() if name != SHAPE]
    if len(records) != 1:
        expected = "hold exactly one ArrayRecord, the model's state_dict"
        raise WrongValue("A train message", expected, f"{len(records)}")
    return tensors_of(records[0])


def shape_record(shape: PackedShape) -> ArrayRecord:
    """A shape as the record `SHAPE` of a train message."""
    layout = torch.tensor(list(shape.layout.encode()), dtype=torch.uint8)
    return record_of({"layout": layout, "means": shape.means, "codes": shape.codes})


def read_shape(message: Message) -> Shape | None:
    """The shape that a server sent, for the client to check; `None` without one."""
    record = message.content.array_records.get(SHAPE)
    if record is None:
        return None
    parts = tensors_of(record)
    if parts.keys() != {"layout", "means", "codes"}:
        expected = "hold ['codes', 'layout', 'means']"
        raise WrongValue("The record of a shape", expected, f"{sorted(parts)[:8]}")
    layout = bytes(parts.pop("layout").flatten().to(torch.uint8).tolist()).decode()
    return PackedShape(layout, **parts).shape


def record_of(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Tensors as Flower keeps them; bfloat16, which it does not know, as float32."""
    return ArrayRecord(
        {n: Array(t.float() if t.dtype is torch.bfloat16 else t) for n, t in tensors.items()}
    )


def tensors_of(record: ArrayRecord) -> Tensors:
    """The tensors of a record, on the CPU."""
    try:
        return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}
    except Exception as error:  # bytes from elsewhere: numpy's parser raises what it likes
        raise WrongValue("An array", "be readable by numpy", str(error)) from error
