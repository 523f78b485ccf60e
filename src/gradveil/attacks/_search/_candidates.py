"""From observations to what the optimiser works on: rows of labels, sent values and starts."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradveil._random import normal_like
from gradveil._tensors import flatten
from gradveil.messages import GradientMessage

from .._observation import Observation, check_observation


def message_of(observation: Observation) -> Callable[[Tensor, Tensor], Tensor]:
    """(inputs, labels) to the message that they would make, all entries in one row."""
    parts = parts_of(observation)
    return lambda inputs, labels: torch.cat([part.reshape(-1) for part in parts(inputs, labels)])


def parts_of(observation: Observation) -> Callable[[Tensor, Tensor], tuple[Tensor, ...]]:
    """(inputs, labels) to the tensors of the message that they would make, in the order of names.

    Of a plain gradient only the targets change, so its checks are done once.
    """
    first = observation.message(torch.zeros(observation.batch_size))
    fixed = first if type(first) is GradientMessage else None

    def parts(inputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        message = observation.message(labels) if fixed is None else fixed.of(labels)
        return tuple(message(inputs).values())

    return parts


def sent_row(observation: Observation) -> Tensor:
    """What was sent, in the order of the message's names."""
    names = observation.message(torch.zeros(observation.batch_size)).parameters  # type: ignore[attr-defined]
    return flatten({name: observation.sent[name] for name in names})


def noise_start(observation: Observation, count: int, generator: torch.Generator) -> Tensor:
    """`count` candidates drawn from N(0, I), in the dtype and on the device of what was sent."""
    like = next(iter(observation.sent.values()))
    blank = like.new_empty(count, observation.batch_size, *observation.input_shape)
    return normal_like(blank, generator)


def check_alike(observations: Sequence[Observation]) -> None:
    """Require observations that can be attacked in one batched run."""
    if not observations:
        raise ValueError("Parameter `observations` should not be empty. Found no Observation.")
    for observation in observations:
        check_observation(observation)
    first = observations[0]
    for position, other in enumerate(observations):
        same = (
            other.model is first.model
            and other.loss_fn == first.loss_fn
            and other.batch_size == first.batch_size
            and other.input_shape == first.input_shape
            and other.local == first.local
        )
        if not same:
            raise ValueError(
                "Parameter `observations` should be of one model, loss, batch size, input shape and"
                f" local training, to run as one batch. Found that number {position} differs from"
                " the first. Attack them one by one."
            )
