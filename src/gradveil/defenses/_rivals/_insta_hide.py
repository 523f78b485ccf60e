"""Several examples mixed into one, and signs of its pixels flipped."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradveil._checks import check_count, check_seed
from gradveil.messages import Message

from ._input_defense import InputDefense
from ._mixing import mixed_message

LARGEST = 0.65
"""The largest weight of one example, as the authors have it."""


@dataclass(frozen=True)
class InstaHide(InputDefense):
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

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import GradientMessage
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 2])
    >>> message = GradientMessage(model, cross_entropy, torch.tensor([0, 1]))
    >>> sorted(InstaHide(images=2)(message, torch.ones(2, 3)))
    ['layers.1.bias', 'layers.1.weight']
    """

    label = "InstaHide"

    images: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        check_count(self.images, "images")
        check_seed(self.seed)

    def prepared(self, message: Message) -> Message:
        """The message of the mixed examples with their signs."""
        return mixed_message(message, self.weights(), self._masked)

    def weights(self) -> list[float]:
        """w, drawn until none of several is too large."""
        stream = self._stream(0)
        while True:
            parts = stream.random(self.images)
            weights: list[float] = (parts / parts.sum()).tolist()
            if self.images == 1 or max(weights) <= LARGEST:
                return weights

    def _masked(self, inputs: Tensor) -> Tensor:
        signs = 2.0 * self._stream(1).integers(0, 2, tuple(inputs.shape)) - 1
        return torch.from_numpy(signs).to(inputs) * inputs

    def _stream(self, place: int) -> np.random.Generator:
        """NumPy's, since attacks call this inside of `vmap`, where torch draws nothing."""
        return np.random.default_rng([self.seed, place])
