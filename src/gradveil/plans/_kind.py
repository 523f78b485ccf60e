"""Whether examples are of the kind that a model was trained on."""

from typing import NamedTuple

import torch
from torch import Tensor

from gradveil.messages import GradientMessage, LocalUpdateMessage, Message

TRUSTED, STRANGE = 0.08, 0.16
"""Of `Strangeness.value`: below the first, examples are trusted; above the second, not at all. On
the MNIST CNN after 60 and 300 steps real images have 0.00 to 0.04, noise 0.29 to 0.38, CIFAR images
0.29 to 0.39, random labels 0.48 to 0.55; on a fresh model all are below 0.05."""


class Strangeness(NamedTuple):
    """What is wrong with a model's outputs on some examples, in parts that training removes."""

    scale: float
    """The cosine of the centred outputs and the loss's gradient with respect to them. Above 0 the
    model is surer of itself than it should be: all outputs nearer to their mean would be better."""
    shift: float
    """‖E δ‖² / E‖δ‖² of the gradients δ: above 0 another constant would be better."""

    @property
    def value(self) -> float:
        """Their sum, of the parts above 0."""
        return max(self.scale, 0.0) + max(self.shift, 0.0)


def trust_in(message: Message, inputs: Tensor) -> float:
    """How far examples are of the kind that the model was trained on, from 0 to 1.

    Training brings the outputs to where neither another scale nor another shift of them would
    lower the loss. Examples on which one clearly would are of another kind (or have other labels),
    and their gradients say little about those of the private batch. A fresh model does not tell;
    it trusts all examples. 1 where outputs cannot be seen.
    """
    found = strangeness(message, inputs)
    if found is None:
        return 1.0
    return min(1.0, max(0.0, (STRANGE - found.value) / (STRANGE - TRUSTED)))


def strangeness(message: Message, inputs: Tensor) -> Strangeness | None:
    """What is wrong with the outputs beyond chance; `None` where they cannot be seen."""
    gradient = message
    if isinstance(message, LocalUpdateMessage):
        gradient = message.gradient_at(message.parameters, message.targets)
    if not isinstance(gradient, GradientMessage) or len(inputs) < 2:
        return None
    with torch.no_grad():
        outputs = gradient.loss.outputs(gradient.parameters, inputs)
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != inputs.shape[:1]:
        return None
    signals = gradient.output_gradient(inputs)
    return _parts(outputs.double().flatten(1), signals.double().flatten(1))


def _parts(outputs: Tensor, signals: Tensor) -> Strangeness:
    """Each less one standard error of what it is by chance."""
    count = len(outputs)
    centred = outputs - outputs.mean(0)
    products = (centred * signals).sum(1)
    size = (centred.square().sum() * signals.square().sum()).sqrt() / count
    power = signals.square().sum(1).mean()
    if not bool(size > 0) or not bool(power > 0):
        return Strangeness(0.0, 0.0)
    error = products.std() / count**0.5
    shift = signals.mean(0).square().sum() / power
    return Strangeness(float((products.mean() - error) / size), float(shift) - 2 / count)
