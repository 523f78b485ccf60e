"""Which layer of a model to read, and the image that its noise levels show."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._random import seed_from

from .._evidence import Call, TotalVariation, linear_calls, random_inputs
from .._observation import Observation
from .._search import Descent, Watch, features_of, minimise
from ._columns import Columns, read_columns
from ._features import COLD_FROM, FeatureCost
from ._pixels import read_pixels

LEAST_ROWS = 8
"""A column of fewer entries tells too little."""

EXAMPLES = 4
"""Random inputs at which the model is watched."""


@dataclass(frozen=True)
class Readable:
    """A linear layer whose input may be read off its noise levels."""

    call: Call
    is_first: bool
    """Whether its input is the image itself."""
    positive: float
    """The share of its inputs that is positive at random images, between 1/4 and 3/4."""


def readable_layer(observation: Observation, generator: torch.Generator) -> Readable | None:
    """The layer that reads the image, else the largest one that meets each example once."""
    images = random_inputs(observation, EXAMPLES, generator)
    found = []
    for call in linear_calls(observation, images)[0]:
        sent = observation.sent.get(call.weight)
        once = call.inputs.dim() == 2 and len(call.inputs) == EXAMPLES
        if sent is not None and once and len(sent) >= LEAST_ROWS:
            is_first = bool(call.inputs.shape == images.flatten(1).shape) and torch.equal(
                call.inputs, images.flatten(1)
            )
            share = float((call.inputs > 0).double().mean())
            found.append(Readable(call, is_first, min(0.75, max(0.25, share))))
    size = {id(one): one.call.layer.weight.numel() for one in found}
    return max(found, key=lambda one: (one.is_first, size[id(one)]), default=None)


def read_image(
    observation: Observation, layer: Readable, steps: int, generator: torch.Generator, watch: Watch
) -> Tensor | None:
    """The image (a batch of one) that the noise levels of a layer show; `None` if they cannot.

    Pixels themselves are read in closed form; that needs their range. A later layer's input is
    inverted: `steps` annealed steps, and a third as many with a stronger prior.
    """
    columns = read_columns(observation.sent[layer.call.weight])
    shape = (1, *observation.input_shape)
    if not layer.is_first:
        return _invert(observation, layer, columns, steps, generator, watch)
    if observation.low is None or observation.high is None:
        return None
    low, high = (
        bound.to(columns.mean).expand(observation.input_shape).flatten()
        for bound in (observation.low, observation.high)
    )
    return read_pixels(columns, low, high).view(shape)


def _invert(
    observation: Observation,
    layer: Readable,
    columns: Columns,
    steps: int,
    generator: torch.Generator,
    watch: Watch,
) -> Tensor:
    features, low, high = (
        features_of(layer.call.name, observation),
        observation.low,
        observation.high,
    )
    image = columns.mean.new_zeros(1, *observation.input_shape)
    if low is not None:
        image = image + 0.97 * low.to(image) + (0.0 if high is None else 0.03 * high.to(image))
    seed = seed_from(generator)
    for share, rate, strength, hot in ((1.0, 0.3, 3.0, True), (1 / 3, 0.1, 6.0, False)):
        energy = TotalVariation(strength)
        options = {} if hot else {"hot": 1.0}
        cost = FeatureCost(features, columns, energy, layer.positive, seed, **options)
        count = max(1, math.ceil(share * steps))
        settled = COLD_FROM if hot else 0.0
        descent = Descent(count, rate, "adam", "cosine", time_budget=watch.left(), settled=settled)
        image = minimise(cost, image[None], descent, low=low, high=high).inputs[0]
    return image
