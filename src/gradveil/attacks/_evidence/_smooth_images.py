"""Random images that look a little like photographs."""

import torch
from torch import Tensor

from gradveil._random import normal_like

from .._observation import Observation
from ._linear_layers import random_inputs


def random_examples(observation: Observation, count: int, generator: torch.Generator) -> Tensor:
    """Smooth images, or normal numbers where the inputs are no images."""
    image = len(observation.input_shape) == 3
    return (smooth_images if image else random_inputs)(observation, count, generator)


def smooth_images(observation: Observation, count: int, generator: torch.Generator) -> Tensor:
    """Random images with the spectrum of photographs, 1/f² in power, mostly grey, in the range.

    They stand for all that an attacker has not seen: no image of any data set goes into them.
    """
    blank = random_inputs(observation, count, generator)
    channels, rows, columns = blank.shape[1:]
    shape = (count, channels + 1, 2 * rows, 2 * columns)
    noise = normal_like(blank.new_empty(shape), generator)
    noise = noise[:, 1:] * 0.4 + noise[:, :1]
    frequency = _frequencies(noise)
    spectrum = torch.fft.fft2(noise) / frequency
    drawn: Tensor = torch.fft.ifft2(spectrum).real[..., :rows, :columns]
    drawn = drawn / drawn.std()
    if observation.low is None or observation.high is None:
        return drawn
    low, high = observation.low.to(drawn), observation.high.to(drawn)
    return ((low + high) / 2 + drawn * (high - low) / 4).clamp(low, high)


def _frequencies(like: Tensor) -> Tensor:
    rows, columns = (torch.fft.fftfreq(n, dtype=like.dtype) for n in like.shape[-2:])
    sizes = (rows[:, None].square() + columns.square()).sqrt()
    least: Tensor = sizes.clamp(min=1 / max(like.shape[-2:])).to(like.device)
    return least
