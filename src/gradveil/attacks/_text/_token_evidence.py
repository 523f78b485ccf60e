"""Which tokens a batch used, by the gradient of the table in which they are looked up."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from gradveil._typing import Tensors
from gradveil.messages import TokenGradient, find_lookups

from .._labels import recover_labels
from .._observation import Observation

SPREAD = 1.4826
"""From the median absolute deviation to the standard deviation of a normal distribution."""


def token_message(observation: Observation, ids: Tensor) -> TokenGradient:
    """The message of these ids, without a defense."""
    targets = targets_of(observation, ids)
    message = observation.plain_message(targets)
    assert isinstance(message, TokenGradient)
    return message


def targets_of(observation: Observation, ids: Tensor) -> Tensor:
    """The targets: the ids themselves for a language model, else the labels that are granted."""
    if observation.targets_are_inputs:
        return ids
    if observation.labels is None:
        raise ValueError(
            "Parameter `observation` should tell the targets where they are not the tokens, and not"
            " one label for each sequence. Found none. Use ThreatModel(labels='known')."
        )
    return observation.labels


def with_labels(observation: Observation, generator: torch.Generator) -> Observation:
    """The same with the labels of classified sequences, read off the last layer if not granted."""
    if observation.targets_are_inputs or observation.task != "classification":
        return observation
    return replace(observation, labels=recover_labels(observation, generator))


def blank_ids(observation: Observation) -> Tensor:
    """A batch of the token 0."""
    device = next(iter(observation.sent.values())).device
    size = (observation.batch_size, *observation.input_shape)
    return torch.zeros(size, dtype=torch.int64, device=device)


def table_of(observation: Observation) -> tuple[str | None, int]:
    """The name of the table, `None` where it is not trained, and its number of rows."""
    blank = blank_ids(observation)
    message = token_message(observation, blank)
    parameters = message.parameters
    found = find_lookups(message.loss.at(parameters), blank)
    if len(found) != 1 or len(found[0].places) != blank.numel():
        raise ValueError(
            "Parameter `observation.model` should look up all tokens in one table. Found"
            f" {len(found)} lookups. Attack a model of text."
        )
    names = [name for name, p in parameters.items() if p is found[0].table]
    return (names[0] if names else None), len(found[0].table)


def noise_of(observation: Observation) -> Tensors | None:
    """The standard deviations that are known, if any."""
    std = getattr(observation.mechanism, "std", None)
    return {n: torch.as_tensor(s) for n, s in std.items()} if isinstance(std, Mapping) else None


def row_scores(gradient: Tensor, std: Tensor | None) -> Tensor:
    """How far each row of the table's gradient is from one of an unused token, in deviations.

    The median row is taken off first: it is 0, unless the table is also the last layer, which
    reaches every row. With known noise, the mean of (y_vj / σ_vj)² over a row of D entries then has
    the mean 1 and the standard deviation √(2/D) if the token was not used. Otherwise the median
    over rows and the median absolute deviation stand for these: most tokens are not used.
    """
    rows = gradient.double()
    rows = rows - rows.median(0).values
    if std is not None and bool((std > 0).all()):
        mean = (rows / std.double()).square().mean(1)
        scale: float = (rows.shape[1] / 2) ** 0.5
        return (mean - 1) * scale
    mean = rows.square().mean(1)
    middle = mean.median()
    deviation = SPREAD * (mean - middle).abs().median()
    least = 1e-12 * mean.max().clamp(min=1e-300)
    return (mean - middle) / torch.maximum(deviation, least)


def likely_tokens(scores: Tensor, count: int) -> Tensor:
    """At most `count` tokens that stand out of all, the clearest first; at least one.

    Of V normal numbers the largest is about √(2 log V); a row counts if it is beyond that by 1.
    """
    limit = (2 * torch.log(torch.tensor(float(len(scores))))) ** 0.5 + 1
    order = scores.argsort(descending=True)
    standing_out = int((scores > limit).sum())
    return order[: max(1, min(count, standing_out))]
