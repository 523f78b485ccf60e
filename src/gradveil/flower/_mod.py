"""A mod that defends the weights that an existing Flower client returns."""

import logging
from collections.abc import Callable, Collection
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from gradveil._checks import WrongType, check_finite, check_structure
from gradveil._tensors import Tensors
from gradveil.defenses import Defense, GradientNoise, LaplaceNoise, PrivateNoise

from ._records import failure, model_arrays, record_of, tensors_of

Next = Callable[[Message, Context], Message]
COUNTS = ("num-examples", "num_examples")
"""The number of examples, as a ClientApp tells it and as a NumPyClient does."""
STATUS, METRICS = "fitres.status", "fitres.metrics"
"""What a NumPyClient's answer holds besides."""

_log = logging.getLogger("gradveil.flower")


class DefendReply:
    """A mod for FedAvg clients: w + S(w' - w) in the place of the weights w' that they return.

    w are the weights that the server sent, S is the defense. For a ClientApp, or a NumPyClient in
    one, whose code stays as it is::

        app = ClientApp()

        @app.train(mods=[DefendReply(PrivateNoise(noise_multiplier=1.0, clip=0.5, unit="client"))])
        def train(message, context): ...

    A mod sees weights, not examples, models or losses. So it takes noise that needs nothing else:
    `GradientNoise(scale)`, `LaplaceNoise(scale)` and `PrivateNoise(..., unit="client")`, which
    clips the whole update.

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
        noise = (
            isinstance(defense, GradientNoise | LaplaceNoise) and not defense.about.needs.moments
        )
        private = isinstance(defense, PrivateNoise) and defense.unit == "client"
        if not noise and not private:
            known = "GradientNoise(scale), LaplaceNoise(scale), or PrivateNoise(..., unit='client')"
            advice = "Use `gradveil.flower.train_function`, which also sees the examples."
            expected = f"be noise that needs nothing but an update: {known}"
            raise WrongType("defense", expected, repr(defense), advice)
        self.defense, self.unchanged = defense, frozenset(unchanged)

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
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
        rest[METRICS] = ConfigRecord()
    return rest
