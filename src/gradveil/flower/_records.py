"""Conversion of replies to Flower's records and back: defended values and example counts."""

from collections.abc import Mapping

import torch
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from torch import Tensor

from gradveil._checks import WrongValue, check_count, check_finite
from gradveil._tensors import Tensors
from gradveil.federated import PackedShape, Reply
from gradveil.shapes import Shape

ARRAYS, METRICS, EXAMPLES = "arrays", "metrics", "num-examples"
SIMULATION = "simulation"
"""A metric of private replies whose noise has a seed; no others have it."""
FAILED = 2
"""Flower's code for a ClientApp that raised an exception."""
SHAPE = "gradveil.shape"
"""The record of the plan's shape in a train message, beside the model's."""


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
    known = {n: t.float() if t.dtype is torch.bfloat16 else t for n, t in tensors.items()}
    return ArrayRecord({name: Array(tensor) for name, tensor in known.items()})


def tensors_of(record: ArrayRecord) -> Tensors:
    """The tensors of a record, on the CPU."""
    try:
        return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}
    except Exception as error:  # bytes from elsewhere: numpy's parser raises what it likes
        raise WrongValue("An array", "be readable by numpy", str(error)) from error
