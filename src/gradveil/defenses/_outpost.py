"""Noise by layer that follows the spread of the weights, and comes less often as time goes by."""

from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import check_at_most, check_not_negative, check_ratio
from gradveil._random import bernoulli, generator_or_fresh
from gradveil._tensors import flatten, unflatten
from gradveil._typing import Tensors
from gradveil.mechanisms import Mechanism
from gradveil.messages import Message, movable
from gradveil.sensitivity import Moments
from gradveil.shapes import Given, Needs, Shape, check_state

from ._base import About, Defended, Defense
from ._fixed import NoDefense
from ._levels import keep_lowest


class Outpost(Defense):
    """Noise of std scale · min(Var θ_l, 1) in layer l, on the largest entries (Wang et al. 2023).

    After F. Wang, E. Hugh and B. Li, "More than Enough is Too Much: Adaptive Defenses against
    Gradient Leakage in Production Federated Learning", INFOCOM 2023. A layer whose weights are
    spread out counts as one at risk. In each tensor a `ratio` of the smallest entries is pruned,
    and the share `noisy` of the largest entries of the whole message gets the noise. At step
    t = 0, 1, … all this is done with the probability 1 / (1 + decay · t); otherwise the message is
    sent bare.

    Guarantee: none. Entries without noise are sent bare, from some step on nearly all messages are,
    and weights as they are usually set up are so little spread out that there is hardly any noise.
    Which entries have noise is chosen by the private batch.

    Args:
        scale: The noise where the weights have the variance 1.
        noisy: The share of entries with noise.
        ratio: The share of each tensor's entries that is pruned.
        decay: β, how fast messages without a defense become frequent.

    >>> Outpost(scale=0.8)
    Outpost(scale=0.8, noisy=0.4, ratio=0.8, decay=0.125)
    """

    source = "private"

    def __init__(
        self, scale: float = 0.8, noisy: float = 0.4, ratio: float = 0.8, decay: float = 0.125
    ) -> None:
        for name, value in (("scale", scale), ("decay", decay)):
            check_not_negative(value, name)
            check_at_most(value, name)
        check_ratio(noisy, "noisy")
        check_ratio(ratio, "ratio")
        self.scale, self.noisy, self.ratio, self.decay = scale, noisy, ratio, decay
        self.reset()

    @cached_property
    def about(self) -> About:
        return replace(super().about, amount="scale")

    @cached_property
    def needs(self) -> Needs:
        return Needs(sensitivities=False)

    def given(
        self, moments: Moments, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> Given:
        """Shaped by the spread of each layer's weights."""
        parameters: Tensors = getattr(movable(message), "parameters", {})
        risks = {name: (_spread(p).clamp(max=1.0),) for name, p in parameters.items()}
        return Given(Shape(risks, silent=True), moments)

    def shape(self, moments: Moments) -> Shape:
        """Unknown: the weights tell."""
        raise TypeError(
            "Parameter `moments` should not be all that Outpost gets: its noise follows the spread"
            " of the weights. Found no message. Call the defense on one."
        )

    def mechanism(self, shape: Shape, moments: Moments) -> Mechanism:
        """Noise on the largest entries of all, the smallest of each tensor pruned."""
        squares = dict(moments.squared_values)
        row, risks = flatten(squares), shape.levels(squares)
        noisy = unflatten(keep_lowest(-row, round(self.noisy * len(row))), squares)
        return Mechanism(
            std={name: self.scale * risks[name] * where for name, where in noisy.items()},
            keep={name: self._largest(square) for name, square in squares.items()},
        )

    def respond(
        self, message: Message, inputs: Tensor, generator: torch.Generator | None = None
    ) -> Defended:
        """One step; as time goes by more often without any defense."""
        generator = generator_or_fresh(generator)
        chance = torch.tensor(1 / (1 + self.decay * self._step), dtype=torch.float64)
        self._step += 1
        if bool(bernoulli(chance, generator)):
            return super().respond(message, inputs, generator)
        return NoDefense().respond(message, inputs, generator)

    def reset(self) -> None:
        """Start from step 0, as for a new model."""
        self._step = 0

    def state_dict(self) -> dict[str, Any]:
        """How many steps there were; nothing before the first."""
        return {"step": self._step} if self._step else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        check_state(state, {"step"})
        self._step = int(state.get("step", 0))

    def __repr__(self) -> str:
        return (
            f"Outpost(scale={self.scale}, noisy={self.noisy}, ratio={self.ratio},"
            f" decay={self.decay})"
        )

    def _largest(self, square: Tensor) -> Tensor:
        kept = square.numel() - round(self.ratio * square.numel())
        return keep_lowest(-square.flatten(), kept).view(square.shape)


def _spread(weights: Tensor) -> Tensor:
    """The variance of a tensor's weights; 0 for a single one."""
    return weights.var() if weights.numel() > 1 else weights.new_zeros(())
