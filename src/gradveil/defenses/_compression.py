"""Other people's noise and compression, to compare with: each with the attack that knows it."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import (
    check_at_most,
    check_count,
    check_not_negative,
    check_positive,
    check_ratio,
    check_structure,
)
from gradveil._typing import Tensors
from gradveil.mechanisms import (
    LaplaceMechanism,
    Mechanism,
    QuantisationMechanism,
    SignMechanism,
    constant_like,
)
from gradveil.messages import MappedMessage, Message
from gradveil.sensitivity import Moments, check_moments
from gradveil.shapes import Needs, Shape, check_state

from ._base import About, Defended, Defense, checked_values
from ._fixed import FixedDefense
from ._pruning import GradientPruning


@dataclass(frozen=True)
class LaplaceNoise(FixedDefense):
    """y = g + noise of the density e^{-|n|/b} / 2b, with b = scale / √2 (Zhu et al. 2019).

    At equal variance, so at equal utility, it reveals twice the Fisher information of Gaussian
    noise. Guarantee: the bound with that information, Σ_i (2/scale²) ∇g_i ∇g_iᵀ; no (ε, δ), since
    nothing is clipped.

    `attacks.Identify` uses its density. `attacks.Adaptive` takes it for Gaussian noise of the same
    variance: its search needs squares.

    Args:
        scale: The standard deviation.

    >>> import torch
    >>> from gradveil import Moments
    >>> moments = Moments(
    ...     {"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, input_size=2
    ... )
    >>> LaplaceNoise(scale=0.5).plan(moments).std["w"]
    tensor([0.5000, 0.5000])
    """

    label = "Laplace noise"

    scale: float

    def __post_init__(self) -> None:
        check_not_negative(self.scale, "scale")
        check_at_most(self.scale, "scale")

    @cached_property
    def about(self) -> About:
        return replace(super().about, amount="scale")

    def mechanism(self, shape: Shape, moments: Moments) -> LaplaceMechanism:
        """The same standard deviation everywhere."""
        check_moments(moments)
        return LaplaceMechanism(constant_like(self.scale, moments.like))


@dataclass(frozen=True)
class SignCompression(FixedDefense):
    """y_i = step · sign(g_i), one bit for each parameter (signSGD, Bernstein et al. 2018).

    Guarantee: none. It is deterministic, and signs tell directions well.

    Signs do not change with the size of a tensor. So an attacker who knows the defense looks at
    g / mean|g| of each tensor (`prepared`), each entry of which lies on the side of 0 that was
    sent: a gradient of almost 0 would fit any signs otherwise.

    Args:
        step: What is sent for a positive entry; public. For SGD it is a part of the learning rate.

    >>> SignCompression()(lambda inputs: {"w": inputs.sum(0)}, torch.tensor([[1.2, -0.6]]))
    {'w': tensor([ 1., -1.])}
    """

    step: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self.step, "step")

    @cached_property
    def about(self) -> About:
        return replace(super().about, amount="step")

    def prepared(self, message: Message) -> Message:
        """step · g / mean|g| of each tensor, which has the same signs."""
        return MappedMessage(message, after=self._normalised)

    def mechanism(self, shape: Shape, moments: Moments) -> SignMechanism:
        """The same for all messages."""
        check_moments(moments)
        return SignMechanism(self.step)

    def _normalised(self, values: Tensors) -> Tensors:
        tiny = {name: torch.finfo(value.dtype).tiny for name, value in values.items()}
        means = {name: v.abs().mean().clamp(min=tiny[name]) for name, v in values.items()}
        return {name: self.step * (value / means[name]) for name, value in values.items()}


@dataclass(frozen=True)
class QSGD(FixedDefense):
    """y_i = ‖g‖₂ sign(g_i) ξ_i / levels, E[y_i] = g_i (Alistarh et al. 2017).

    ‖g‖₂ is the norm of the tensor, and ξ_i one of the two whole numbers beside
    levels · |g_i| / ‖g‖₂, the nearer the likelier.

    Guarantee: none. The norms are sent as they are, and what the draw hides of one entry, thousands
    of others tell. `attacks.Identify` uses the probability of each level; `attacks.Adaptive` takes
    the draw for Gaussian noise of one level for each tensor, read off the message.

    Args:
        levels: s, how many steps of the grid are as long as the norm of a tensor.

    >>> import torch
    >>> message = lambda inputs: {"w": inputs.sum(0)}
    >>> QSGD(levels=2)(message, torch.tensor([[3.0, -4.0]]), torch.Generator().manual_seed(0))
    {'w': tensor([ 2.5000, -2.5000])}
    """

    levels: int

    def __post_init__(self) -> None:
        check_count(self.levels, "levels")

    def mechanism(self, shape: Shape, moments: Moments) -> QuantisationMechanism:
        """The same for all messages."""
        check_moments(moments)
        return QuantisationMechanism(self.levels)


class ErrorFeedback(Defense):
    """y_t = top_k(g_t + e_t), e_{t+1} = g_t + e_t - y_t, e_1 = 0 (Stich et al. 2018).

    All that is sent and held back adds up to all gradients: Σ_t y_t + e = Σ_t g_t.

    Guarantee: none. Entries are sent bare, which they are shows, and what is not sent now is sent
    later. An attacker who knows it knows the algorithm and not e_t. At the first step e is 0, and
    that is what it assumes; later the message is of several batches, and it is wrong by the rest.

    Args:
        ratio: The share of entries that is held back, as in `GradientPruning`.

    >>> ErrorFeedback(ratio=0.9)
    ErrorFeedback(ratio=0.9)
    """

    source = "private"

    def __init__(self, ratio: float) -> None:
        check_ratio(ratio, "ratio")
        self.ratio = ratio
        self._held_back: Tensors = {}
        self._pruning = GradientPruning(ratio)

    @cached_property
    def about(self) -> About:
        return replace(super().about, amount="ratio", varies=False)  # what was sent shows

    @cached_property
    def needs(self) -> Needs:
        return Needs(sensitivities=False)

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
        if self._held_back:
            check_structure(values, self._held_back, "message(inputs)", "what was held back")
            held = {name: self._held_back[name].to(value) for name, value in values.items()}
            values = {name: value + held[name] for name, value in values.items()}
        return values, Moments.of_values(values, inputs.numel())

    def respond(
        self, message: Message, inputs: Tensor, generator: torch.Generator | None = None
    ) -> Defended:
        """One step; what is not sent stays here."""
        step = super().respond(message, inputs, generator)
        self._held_back = {n: (v - step.sent[n]).detach() for n, v in step.values.items()}
        return step

    def reset(self) -> None:
        """Hold nothing back, as for a new model."""
        self._held_back = {}

    def state_dict(self) -> dict[str, Any]:
        """What is held back; nothing before the first step."""
        return {"held_back": dict(self._held_back)} if self._held_back else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        check_state(state, {"held_back"})
        self._held_back = dict(state.get("held_back", {}))

    def __repr__(self) -> str:
        return f"ErrorFeedback(ratio={self.ratio})"
