"""Defenses that change the inputs, and send the message of these."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from gradveil._checks import WrongType, WrongValue, check_count, check_ratio, check_seed
from gradveil._typing import Tensors
from gradveil.mechanisms import Mechanism
from gradveil.messages import LossFunction, MappedMessage, Message, movable
from gradveil.sensitivity import Moments
from gradveil.shapes import Shape

from ._base import checked_values
from ._fixed import FixedDefense, NoDefense


class InputDefense(FixedDefense, whole="changes the inputs first"):
    """Sends the message of other inputs than the private ones, bare.

    Guarantee: none. What goes into the message can be found from it as without a defense; what it
    hides is what the change of the inputs loses, and only that.

    Nothing about the change is secret, so that an attacker who knows the defense attacks the whole
    of change and message: `prepared`, which a class of this kind writes. Utilities are those of the
    changed message; what the change costs shows in training.
    """

    def observe(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> tuple[Tensors, Moments]:
        """The values of the changed inputs."""
        self.check_batch(inputs)
        values = checked_values(self.prepared(message), inputs)
        return values, Moments.of_values(values, inputs.numel())

    def mechanism(self, shape: Shape, moments: Moments) -> Mechanism:
        """Everything is sent as it is."""
        return NoDefense().mechanism(shape, moments)


@dataclass(frozen=True)
class Pixelization(InputDefense):
    """Every block of size × size pixels becomes its mean; the image keeps its shape (Fan 2018).

    Guarantee: none (Fan's own has noise, too). The means of the blocks are in the message as
    everything is without a defense; what is inside of the blocks is not in it at all, so that
    images which differ only there cannot be told apart.

    Args:
        size: The side of a block in pixels; those at the edge may be smaller.

    >>> import torch
    >>> Pixelization(2).pixelated(torch.tensor([[[[1.0, 3.0, 5.0]]]]))
    tensor([[[[2., 2., 5.]]]])
    """

    size: int = 2

    def __post_init__(self) -> None:
        check_count(self.size, "size")

    def prepared(self, message: Message) -> Message:
        """The message of the pixelated images."""
        return MappedMessage(message, before=self.pixelated)

    def check_batch(self, inputs: Tensor) -> None:
        """Require images."""
        super().check_batch(inputs)
        if inputs.dim() != 4:
            expected = "be images of shape (examples, channels, height, width) to be pixelated"
            found = f"`inputs.shape = {tuple(inputs.shape)}`"
            raise WrongValue("inputs", expected, found, "Use another defense.")

    def pixelated(self, images: Tensor) -> Tensor:
        """The images with each block at its mean."""
        height, width = images.shape[-2:]
        sides = min(self.size, height), min(self.size, width)
        means = avg_pool2d(images, sides, stride=self.size, ceil_mode=True)
        blocks = means.repeat_interleave(self.size, -2).repeat_interleave(self.size, -1)
        return blocks[..., :height, :width]


@dataclass(frozen=True)
class MixUp(InputDefense, label="MixUp"):
    """x̃_b = w x_b + (1 - w) x_{b+1}, L̃ = w L(x̃, y_b) + (1 - w) L(x̃, y_{b+1}) (Zhang et al. 2018).

    Example b is mixed with the next one of the batch, the last with the first. Zhang et al. draw
    pairs and w anew for each batch: few bits, which an attacker can try one after the other, so
    they are fixed here and count as known.

    Guarantee: none. In a batch of n this is a matrix w I + (1 - w) P of the examples, which has an
    inverse unless w = 1/2 and n is even. A batch of one is not changed.

    Args:
        weight: w, the share of the example itself.

    >>> MixUp(weight=0.7)
    MixUp(weight=0.7)
    """

    weight: float = 0.7

    def __post_init__(self) -> None:
        check_ratio(self.weight, "weight")

    def prepared(self, message: Message) -> Message:
        """The message of the mixed examples."""
        return _mixed_message(message, (self.weight, 1 - self.weight))


@dataclass(frozen=True)
class InstaHide(InputDefense, label="InstaHide"):
    """x̃_b = σ_b ⊙ Σ_j w_j x_{b+j}, loss mixed with the same w (Huang et al. 2020).

    Signs σ_b of ±1 for each entry, w random with Σ_j w_j = 1 and w_j ≤ 0.65, the other examples
    those that follow in the batch (the authors also take public ones).

    Guarantee: none. The authors keep w and σ secret and draw them anew for each batch. Here both
    come from `seed`, which counts as known: the worst case, in which only the mixing is left of it.
    A secret σ would leave |Σ_j w_j x_{b+j}| to an attacker, and Carlini et al. 2021 found the
    examples from many of these. So the attack that knows the defense overstates what one message
    with secret signs gives away, and the unaware attack understates it.

    Args:
        images: How many examples are mixed, in a batch of at least as many.
        seed: Of weights and signs.

    >>> sum(InstaHide(images=3, seed=1).weights())
    1.0
    """

    images: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        check_count(self.images, "images")
        check_seed(self.seed)

    def prepared(self, message: Message) -> Message:
        """The message of the mixed examples with their signs."""
        return _mixed_message(message, self.weights(), self._masked)

    def weights(self) -> list[float]:
        """w, drawn until none of several is too large."""
        stream = self._stream(0)
        while True:
            parts = stream.random(self.images)
            weights: list[float] = (parts / parts.sum()).tolist()
            if self.images == 1 or max(weights) <= 0.65:  # as the authors have it
                return weights

    def _masked(self, inputs: Tensor) -> Tensor:
        signs = 2.0 * self._stream(1).integers(0, 2, tuple(inputs.shape)) - 1
        return torch.from_numpy(signs).to(inputs) * inputs

    def _stream(self, place: int) -> np.random.Generator:
        """NumPy's, since attacks call this inside of `vmap`, where torch draws nothing."""
        return np.random.default_rng([self.seed, place])


def _mixed_message(
    message: Message, weights: Sequence[float], mask: Callable[[Tensor], Tensor] | None = None
) -> MappedMessage:
    """The message of Σ_j w_j x_{b+j} with the loss Σ_j w_j L(·, y_{b+j}), b + j around the batch.

    The mask is what is done to mixed inputs before the model gets them.
    """
    own = movable(message)
    if not isinstance(own.targets, Tensor) or own.targets.dim() == 0 or not hasattr(own, "loss"):
        wanted = "have a loss, and a tensor with one target for each example, to be mixed"
        found = f"{type(message).__name__} with targets of type {type(own.targets).__name__}"
        raise WrongType("message", wanted, found, "Use GradientMessage or LocalUpdateMessage.")
    mixed: Any = own.of(_neighbours(own.targets, len(weights), 1))
    mixed.loss = copy(mixed.loss)
    mixed.loss.loss_fn = _mean_loss(mixed.loss.loss_fn, weights)

    def before(inputs: Tensor) -> Tensor:
        rows = _neighbours(inputs, len(weights), 0)
        made = sum(w * row for w, row in zip(weights, rows, strict=True))
        assert isinstance(made, Tensor)
        return made if mask is None else mask(made)

    return MappedMessage(mixed, before=before)


def _neighbours(rows: Tensor, count: int, axis: int) -> Tensor:
    """The examples themselves, the next ones, and so on, stacked along an axis."""
    return torch.stack([rows.roll(-j, 0) for j in range(count)], axis)


def _mean_loss(loss_fn: LossFunction, weights: Sequence[float]) -> LossFunction:
    def loss(outputs: Any, targets: Tensor) -> Tensor:
        parts = [w * loss_fn(outputs, targets[:, j]) for j, w in enumerate(weights)]
        return torch.stack(parts).sum()

    return loss
