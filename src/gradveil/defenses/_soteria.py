"""Soteria: features of the representation cut out of one layer's gradient."""

from collections.abc import Callable
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import jvp

from gradveil._checks import check_count, check_kind, check_ratio
from gradveil._typing import Tensors
from gradveil.mechanisms import Mechanism, constant_like
from gradveil.messages import MappedMessage, Message
from gradveil.sensitivity import Moments, draw_probes
from gradveil.shapes import Given, Needs, Shape

from ._base import About, Defense
from ._levels import keep_lowest

SMALL_FEATURE = 0.1
"""Added to |r_i|, as in the authors' code: features of almost 0 are no reason to keep a column."""


@dataclass(frozen=True)
class Soteria(Defense):
    """Zeroes the columns of a linear layer's gradient that belong to some features r (Sun 2021).

    r = f(x) is the input of the layer. The authors (Sun et al. 2021) change the fewest features
    such that the input that belongs to them moves furthest: those with the largest |r_i| / ‖∇_x
    r_i‖. Kept are the features with the largest Σ_b ‖∇_x r_bi‖ / (|r_bi| + 0.1). The norms are
    estimated with random directions, ‖∇_x r_i‖² = E_v (∂_v r_i)².

    Guarantee: none; the authors' concerns an attacker who inverts the changed features. Everything
    outside of these columns is sent bare, and which they are shows (`seen_in`): an attacker who
    knows the defense leaves them out of the message (as Balunović et al. 2022 did to break it).

    Args:
        ratio: The share of features that is cut.
        layer: The name of the layer in the model; its first linear one if `None`.
        probes: How many random directions.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import GradientMessage
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 8, 2])
    >>> message = GradientMessage(model, cross_entropy, torch.tensor([0, 1]))
    >>> sent = Soteria(ratio=0.5)(message, torch.eye(3)[:2])
    >>> sorted(sent)
    ['layers.1.bias', 'layers.1.weight', 'layers.3.bias', 'layers.3.weight']
    """

    label = "Soteria"
    source = "private"

    ratio: float
    _: KW_ONLY
    layer: str | None = None
    probes: int = 16
    _kept: ClassVar[tuple[str, Tensor] | None] = None
    """Of one that was seen in a message: the layer's weight, and which columns were sent."""

    def __post_init__(self) -> None:
        check_ratio(self.ratio, "ratio")
        check_count(self.probes, "probes")
        if self.layer is not None:
            check_kind(self.layer, "layer", str, "Use a name as in `model.named_modules()`.")

    @cached_property
    def about(self) -> About:
        return replace(
            super().about, label="Soteria", family="Soteria", amount="ratio", varies=False
        )

    @cached_property
    def needs(self) -> Needs:
        return Needs(sensitivities=False)

    def seen_in(self, sent: Tensors) -> "Soteria":
        """The same with its columns known: they are 0 in all rows."""
        for name, value in sent.items():
            own = self.layer is None or name == f"{self.layer}.weight"
            if own and value.dim() == 2 and not bool((kept := (value != 0).any(0)).all()):
                seen = copy(self)
                object.__setattr__(seen, "_kept", (name, kept))
                return seen
        return self

    def prepared(self, message: Message) -> Message:
        """Without the columns, where these are known."""
        if self._kept is None:
            return message
        name, kept = self._kept
        return MappedMessage(message, after=lambda values: {**values, name: values[name] * kept})

    def given(
        self, moments: Moments, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> Given:
        """Shaped by how much each feature moves with the inputs: levels of the layer's columns."""
        name, layer = self._layer(message)
        weight = f"{name}.weight" if name else "weight"
        if weight not in moments.like:
            raise ValueError(
                "Parameter `layer` should be a layer that is trained, so that its gradient is sent."
                f" Found that `{weight}` is not in the message. Name another one."
            )
        scores = _scores(_features(message, layer), inputs, self.probes, generator)
        return Given(Shape({weight: (scores,)}, silent=True), moments)

    def shape(self, moments: Moments) -> Shape:
        """Unknown: the features tell."""
        raise TypeError(
            "Parameter `moments` should not be all that Soteria gets: it looks at features of the"
            " model. Found no message. Call the defense on one."
        )

    def mechanism(self, shape: Shape, moments: Moments) -> Mechanism:
        """Nothing but the columns of the features with the lowest levels is cut."""
        ((name, (scores,)),) = shape.factors.items()
        like = moments.like
        kept = keep_lowest(-scores, len(scores) - round(self.ratio * len(scores)))
        keep = constant_like(1.0, like)
        keep[name] = kept.to(keep[name]).expand(like[name].shape)
        return Mechanism(std=constant_like(0.0, like), keep=keep)

    def _layer(self, message: Any) -> tuple[str, nn.Linear]:
        model = getattr(getattr(message, "loss", None), "model", None)
        if not isinstance(model, nn.Module):
            raise TypeError(
                "Parameter `message` should have a loss with a model, whose features are looked at."
                f" Found {type(message).__name__}. Use GradientMessage or LocalUpdateMessage."
            )
        linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
        name = next(iter(linear), "") if self.layer is None else self.layer
        if name not in linear:
            raise ValueError(
                "Parameter `layer` should name a linear layer of the model. Found"
                f" `layer = {self.layer!r}` and the linear layers {sorted(linear)}. Name one of"
                " them; a model without any needs another defense."
            )
        return name, linear[name]


def _features(message: Any, layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """From the inputs to those of the layer, all of its calls stacked."""

    def features(inputs: Tensor) -> Tensor:
        seen: list[Tensor] = []
        handle = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            message.loss.outputs(message.loss.parameters, inputs)
        finally:
            handle.remove()
        return torch.cat([r.flatten(0, -2) for r in seen])

    return features


def _scores(
    features: Callable[[Tensor], Tensor], inputs: Tensor, probes: int, generator: torch.Generator
) -> Tensor:
    """Σ_b ‖∇_x r_bi‖ / (|r_bi| + 0.1) of each feature i."""
    with torch.no_grad():
        values = features(inputs)
        directions = draw_probes(inputs, probes, generator)
        squares = sum(jvp(features, (inputs,), (v,))[1].square() for v in directions)
    slopes = (torch.as_tensor(squares) / probes).sqrt()
    return (slopes / (values.abs() + SMALL_FEATURE)).sum(0)
