"""Defenses that do the same to all messages of the same shapes, and rounding by a shape."""

from dataclasses import KW_ONLY, dataclass

import torch

from gradveil._checks import check_at_most, check_count, check_not_negative, check_positive
from gradveil._tensors import Tensors
from gradveil.mechanisms import (
    AnyMechanism,
    LaplaceMechanism,
    Mechanism,
    QuantisationMechanism,
    RoundingMechanism,
    SignMechanism,
    constant_like,
)
from gradveil.messages import MappedMessage, Message
from gradveil.sensitivity import Estimator, Moments
from gradveil.shapes import Shape, Source

from ._base import Defense, check_source
from ._noise import OptimalNoise


class FixedDefense(Defense):
    """Its mechanism ignores the message's values; by default it sends everything."""

    reads = "nothing"

    def mechanism(self, shape: Shape, moments: Moments) -> AnyMechanism:
        """No noise, nothing pruned."""
        like = moments.like
        return Mechanism(std=constant_like(0.0, like), keep=constant_like(1.0, like))


@dataclass(frozen=True)
class NoDefense(FixedDefense, family="none"):
    """Sends the message itself. No guarantee of any kind.

    >>> NoDefense()(lambda inputs: {"w": inputs.sum(0)}, torch.ones(2, 3))
    {'w': tensor([2., 2., 2.])}
    """


@dataclass(frozen=True)
class Rounding(FixedDefense, amount="step"):
    """y_i = step · round(g_i / step). Deterministic, so it has no bound and no guarantee.

    >>> Rounding(step=0.5)(lambda inputs: {"w": inputs.sum(0)}, torch.tensor([[1.2, -0.6]]))
    {'w': tensor([ 1.0000, -0.5000])}
    """

    step: float

    def __post_init__(self) -> None:
        check_positive(self.step, "step")

    def mechanism(self, shape: Shape, moments: Moments) -> RoundingMechanism:
        """The same step everywhere."""
        return RoundingMechanism(constant_like(self.step, moments.like))


@dataclass(frozen=True)
class OptimalRounding(Defense, family="rounding", amount="step", twin=Rounding):
    """y_i = step_i · round(g_i / step_i) with step_i² ∝ √(E‖∇_x g_i‖² / E g_i²).

    A grid of step a errs like noise of variance a²/12, so the steps follow the standard deviations
    of the optimal noise, with √(mean_i step_i²) = step. That is an analogy and not a theorem:
    rounding is deterministic, and has no bound and no guarantee.

    >>> from gradveil import Moments
    >>> moments = Moments({"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, 2)
    >>> OptimalRounding(step=1.0).plan(moments).apply({"w": torch.tensor([3.3, -9.1])})
    {'w': tensor([ 3.7947, -8.8544])}
    """

    step: float
    _: KW_ONLY
    granularity: str = "parameter"
    estimator: Estimator | str = "auto"
    source: Source | str = "model"

    def __post_init__(self) -> None:
        check_positive(self.step, "step")
        check_source(self)
        self._noise()

    def shape(self, moments: Moments) -> Shape:
        """The optimal noise's."""
        return self._noise().shape(moments)

    def mechanism(self, shape: Shape, moments: Moments) -> RoundingMechanism:
        """The optimal noise's standard deviations as steps."""
        return RoundingMechanism(self._noise().mechanism(shape, moments).std)

    def _noise(self) -> OptimalNoise:
        return OptimalNoise(self.step, granularity=self.granularity)


@dataclass(frozen=True)
class LaplaceNoise(FixedDefense, label="Laplace noise", amount="scale"):
    """y = g + noise of the density e^{-|n|/b} / 2b, with b = scale / √2 (Zhu et al. 2019).

    At equal variance, so at equal utility, it reveals twice the Fisher information of Gaussian
    noise. Guarantee: the bound with that information, Σ_i (2/scale²) ∇g_i ∇g_iᵀ; no (ε, δ), since
    nothing is clipped. `attacks.Identify` uses its density. `attacks.Adaptive` takes it for
    Gaussian noise of the same variance: its search needs squares.

    >>> from gradveil import Moments
    >>> LaplaceNoise(scale=0.5).plan(Moments({"w": torch.ones(2)}, None, 2)).std["w"]
    tensor([0.5000, 0.5000])
    """

    scale: float

    def __post_init__(self) -> None:
        check_not_negative(self.scale, "scale")
        check_at_most(self.scale, "scale")

    def mechanism(self, shape: Shape, moments: Moments) -> LaplaceMechanism:
        """The same standard deviation everywhere."""
        return LaplaceMechanism(constant_like(self.scale, moments.like))


@dataclass(frozen=True)
class SignCompression(FixedDefense, amount="step"):
    """y_i = step · sign(g_i), one bit for each parameter (signSGD, Bernstein et al. 2018).

    Guarantee: none. It is deterministic, and signs tell directions well. They do not change with
    the size of a tensor. So an attacker who knows the defense looks at g / mean|g| of each tensor
    (`prepared`), each entry of which lies on the side of 0 that was sent: a gradient of almost 0
    would fit any signs otherwise.

    >>> SignCompression()(lambda inputs: {"w": inputs.sum(0)}, torch.tensor([[3.0, -0.1]]))
    {'w': tensor([ 1., -1.])}
    """

    step: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self.step, "step")

    def prepared(self, message: Message) -> Message:
        """step · g / mean|g| of each tensor, which has the same signs."""
        return MappedMessage(message, after=self._normalised)

    def mechanism(self, shape: Shape, moments: Moments) -> SignMechanism:
        """The same for all messages."""
        return SignMechanism(self.step)

    def _normalised(self, values: Tensors) -> Tensors:
        means = {n: v.abs().mean().clamp(min=torch.finfo(v.dtype).tiny) for n, v in values.items()}
        return {name: self.step * (value / means[name]) for name, value in values.items()}


@dataclass(frozen=True)
class QSGD(FixedDefense):
    """y_i = ‖g‖₂ sign(g_i) ξ_i / levels, E[y_i] = g_i (Alistarh et al. 2017).

    ‖g‖₂ is the norm of the tensor, as long as that many `levels` of the grid, and ξ_i one of the
    two whole numbers beside levels · |g_i| / ‖g‖₂, the nearer the likelier.

    Guarantee: none. The norms are sent as they are, and what the draw hides of one entry, thousands
    of others tell. `attacks.Identify` uses the probability of each level; `attacks.Adaptive` takes
    the draw for Gaussian noise of one level for each tensor, read off the message.

    >>> message = lambda inputs: {"w": inputs.sum(0)}
    >>> QSGD(levels=2)(message, torch.tensor([[3.0, -4.0]]), torch.Generator().manual_seed(0))
    {'w': tensor([ 2.5000, -2.5000])}
    """

    levels: int

    def __post_init__(self) -> None:
        check_count(self.levels, "levels")

    def mechanism(self, shape: Shape, moments: Moments) -> QuantisationMechanism:
        """The same for all messages."""
        return QuantisationMechanism(self.levels)
