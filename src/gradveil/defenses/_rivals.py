"""Other people's defenses, to compare with: they look at the batch, or change its inputs."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import jvp
from torch.nn.functional import avg_pool2d

from gradveil._checks import (
    WrongType,
    WrongValue,
    check_at_most,
    check_count,
    check_kind,
    check_not_negative,
    check_ratio,
    check_seed,
    check_structure,
)
from gradveil._random import bernoulli, generator_or_fresh
from gradveil._tensors import Tensors, flatten, unflatten
from gradveil.mechanisms import Mechanism, constant_like
from gradveil.messages import MappedMessage, Message, movable
from gradveil.sensitivity import Moments, draw_probes
from gradveil.shapes import Given, Shape, check_state

from ._base import Defended, Defense, checked_values
from ._fixed import FixedDefense, NoDefense
from ._pruning import GradientPruning, keep_lowest


class _ByValues(Defense):
    """Looks at the values of the private batch, and at no sensitivities."""

    source = "private"
    reads = "values"


class _Remembering(_ByValues):
    """Keeps something from one step to the next, under one name; nothing before the first."""

    remembers: ClassVar[str]
    _memory: Any = None

    def reset(self) -> None:
        self._memory = None

    def state_dict(self) -> dict[str, Any]:
        return {} if self._memory is None else {self.remembers: self._memory}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_state(state, {self.remembers})
        self._memory = state.get(self.remembers)


@dataclass(eq=False)
class ErrorFeedback(_Remembering, amount="ratio", varies=False):  # what was sent shows
    """y_t = top_k(g_t + e_t), e_{t+1} = g_t + e_t - y_t, e_1 = 0 (Stich et al. 2018).

    `ratio` is the share of entries that is held back, as in `GradientPruning`. All that is sent and
    held back adds up to all gradients: Σ_t y_t + e = Σ_t g_t.

    Guarantee: none. Entries are sent bare, which they are shows, and what is not sent now is sent
    later. An attacker who knows it knows the algorithm and not e_t. At the first step e is 0, and
    that is what it assumes; later the message is of several batches, and it is wrong by the rest.

    >>> ErrorFeedback(ratio=0.9)
    ErrorFeedback(ratio=0.9)
    """

    remembers: ClassVar[str] = "held_back"

    ratio: float

    def __post_init__(self) -> None:
        self._pruning = GradientPruning(self.ratio)

    def pruned_limits(self, sent: Tensor, pruned: Tensor, sensitivity: Tensor | None) -> Tensor:
        """The least entry that was sent is the threshold."""
        return self._pruning.pruned_limits(sent, pruned, sensitivity)

    def mechanism(self, shape: Shape, moments: Moments) -> Mechanism:
        """The largest entries."""
        return self._pruning.mechanism(shape, moments)

    def observe(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> tuple[Tensors, Moments]:
        """The message with what was held back so far."""
        values = checked_values(message, inputs)
        if self._memory is not None:
            check_structure(values, self._memory, "message(inputs)", "what was held back")
            values = {name: v + self._memory[name].to(v) for name, v in values.items()}
        return values, Moments.of_values(values, inputs.numel())

    def respond(
        self, message: Message, inputs: Tensor, generator: torch.Generator | None = None
    ) -> Defended:
        """One step; what is not sent stays here."""
        step = super().respond(message, inputs, generator)
        self._memory = {n: (v - step.sent[n]).detach() for n, v in step.values.items()}
        return step


@dataclass(eq=False)
class Outpost(_Remembering, amount="scale"):
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

    >>> Outpost(scale=0.8)
    Outpost(scale=0.8, noisy=0.4, ratio=0.8, decay=0.125)
    """

    remembers: ClassVar[str] = "step"

    scale: float = 0.8
    noisy: float = 0.4
    ratio: float = 0.8
    decay: float = 0.125

    def __post_init__(self) -> None:
        for name in ("scale", "decay"):
            check_not_negative(getattr(self, name), name)
            check_at_most(getattr(self, name), name)
        for name in ("noisy", "ratio"):
            check_ratio(getattr(self, name), name)

    def given(
        self, moments: Moments, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> Given:
        """Shaped by the spread of each layer's weights."""
        parameters: Tensors = getattr(movable(message), "parameters", {})
        risks = {  # a single weight has none
            name: (p.var().clamp(max=1.0) if p.numel() > 1 else p.new_zeros(()),)
            for name, p in parameters.items()
        }
        return Given(Shape(risks, silent=True), moments)

    def mechanism(self, shape: Shape, moments: Moments) -> Mechanism:
        """Noise on the largest entries of all, the smallest of each tensor pruned."""
        squares = dict(moments.squared_values)
        row, risks = flatten(squares), shape.levels(squares)
        noisy = unflatten(keep_lowest(-row, round(self.noisy * len(row))), squares)
        std = {name: self.scale * risks[name] * where for name, where in noisy.items()}
        keep = {}
        for name, square in squares.items():
            count = square.numel() - round(self.ratio * square.numel())
            keep[name] = keep_lowest(-square.flatten(), count).view(square.shape)
        return Mechanism(std, keep)

    def respond(
        self, message: Message, inputs: Tensor, generator: torch.Generator | None = None
    ) -> Defended:
        """One step; as time goes by more often without any defense."""
        generator = generator_or_fresh(generator)
        before = int(self._memory or 0)
        chance = torch.tensor(1 / (1 + self.decay * before), dtype=torch.float64)
        self._memory = before + 1
        if bool(bernoulli(chance, generator)):
            return super().respond(message, inputs, generator)
        return NoDefense().respond(message, inputs, generator)


@dataclass(frozen=True)
class Soteria(_ByValues, label="Soteria", amount="ratio", varies=False):
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

    >>> Soteria(ratio=0.5)
    Soteria(ratio=0.5, layer=None, probes=16)
    """

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
            expected = "be a layer that is trained, so that its gradient is sent"
            found = f"that `{weight}` is not in the message"
            raise WrongValue("layer", expected, found, "Name another one.")
        features = _features(message, layer)
        with torch.no_grad():
            values = features(inputs)
            directions = draw_probes(inputs, self.probes, generator)
            squares = sum(jvp(features, (inputs,), (v,))[1].square() for v in directions)
        slopes = (torch.as_tensor(squares) / self.probes).sqrt()
        scores = (slopes / (values.abs() + 0.1)).sum(0)
        return Given(Shape({weight: (scores,)}, silent=True), moments)

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
            expected = "have a loss with a model, whose features are looked at"
            advice = "Use GradientMessage or LocalUpdateMessage."
            raise WrongType("message", expected, type(message).__name__, advice)
        linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
        name = next(iter(linear), "") if self.layer is None else self.layer
        if name not in linear:
            found = f"`layer = {self.layer!r}` and the linear layers {sorted(linear)}"
            advice = "Name one of them; a model without any needs another defense."
            raise WrongValue("layer", "name a linear layer of the model", found, advice)
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


@dataclass(frozen=True)
class Pixelization(InputDefense):
    """Every block of size × size pixels becomes its mean; the image keeps its shape (Fan 2018).

    Blocks at the edge may be smaller. Guarantee: none (Fan's own has noise, too). The means of the
    blocks are in the message as everything is without a defense; what is inside of the blocks is
    not in it at all, so that images which differ only there cannot be told apart.

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

    w is the `weight`. Example b is mixed with the next one of the batch, the last with the first.
    Zhang et al. draw pairs and w anew for each batch: few bits, which an attacker can try one after
    the other, so they are fixed here and count as known.

    Guarantee: none. In a batch of n this is a matrix w I + (1 - w) P of the examples, which has an
    inverse unless w = 1/2 and n is even. A batch of one is not changed.

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

    So many `images` of a batch of at least as many are mixed, with signs σ_b of ±1 for each entry,
    w random with Σ_j w_j = 1 and w_j ≤ 0.65, the other examples those that follow in the batch (the
    authors also take public ones).

    Guarantee: none. The authors keep w and σ secret and draw them anew for each batch. Here both
    come from `seed`, which counts as known: the worst case, in which only the mixing is left of it.
    A secret σ would leave |Σ_j w_j x_{b+j}| to an attacker, and Carlini et al. 2021 found the
    examples from many of these. So the attack that knows the defense overstates what one message
    with secret signs gives away, and the unaware attack understates it.

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
    places = range(len(weights))
    mixed: Any = own.of(torch.stack([own.targets.roll(-j, 0) for j in places], 1))
    mixed.loss, loss_fn = copy(mixed.loss), mixed.loss.loss_fn

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        return torch.stack([weights[j] * loss_fn(outputs, targets[:, j]) for j in places]).sum()

    def before(inputs: Tensor) -> Tensor:
        made: Any = sum(weights[j] * inputs.roll(-j, 0) for j in places)
        return made if mask is None else mask(made)

    mixed.loss.loss_fn = loss
    return MappedMessage(mixed, before=before)
