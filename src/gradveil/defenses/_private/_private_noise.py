"""Differentially private noise: examples clipped in the norm of the noise that they get."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradveil._checks import (
    check_at_most,
    check_choice,
    check_count,
    check_finite,
    check_flag,
    check_inputs,
    check_kind,
    check_positive,
    check_tensor,
)
from gradveil._typing import Tensors
from gradveil.mechanisms import Mechanism, constant_like
from gradveil.messages import (
    ClippedMessage,
    ClippedUpdate,
    LossFunction,
    Message,
    Metric,
    gradient_of,
    takes_tokens,
    values_of,
)
from gradveil.plans import Shape
from gradveil.sensitivity import Moments

from .._base import Defense
from .._micro_batches import Accumulation, Observer
from ._clipped_moments import ClippedMoments, ClippedObserver

LEAST_CLIP, LARGEST_FACTOR = 1e-10, 1e8
"""Beyond these, squares of gradients that have to be clipped may vanish in float32."""


@dataclass(frozen=True)
class PrivateNoise(Defense):
    """y = (1/B) (Σ_b g_b min(1, C / ‖Σ^{-1/2} g_b‖) + z C Σ^{1/2} ε), ε ~ N(0, I).

    g_b is the gradient of the loss of example b alone, Σ = diag(r) / mean(r) for a public shape r.
    Σ = I is DP-SGD of Abadi et al. 2016. In the coordinates Σ^{-1/2} g it is the isotropic Gaussian
    mechanism for every Σ, so an accountant sees only z, the sampling rate and the steps.

    Formal guarantees: the sum has sensitivity C in the norm of Σ if an example is added or removed,
    2C if one is replaced by another. One message is so a Gaussian mechanism of noise multiplier z
    for adding or removing (z/2 for replacing). This needs a shape and a B that do not depend on
    private data, and noise that nobody can predict: a run with a known seed protects nobody. The
    continuous Gaussian is drawn in floating point; what is said of rounding in `ClippedMessage`
    concerns the clipping alone.

    Models and losses that mix examples are refused, with the reason: BatchNorm in training mode, a
    loss that is no mean or sum over examples. With `unit="client"` the whole message is clipped,
    whatever it is made of, and the guarantee is one for clients: for the updates of FedAvg. B is
    then 1.

    Args:
        noise_multiplier: z, the noise over the clip.
        clip: C, the largest norm ‖Σ^{-1/2} g_b‖. As the mean of Σ_ii is 1, it means about the same
            for every shape.
        shape: r, from public data or from the model alone; `None`: Σ = I.
        batch_size: B, the expected number of examples: public and fixed, also where the number at
            hand varies (Poisson sampling), or is 0. If `None`, the number at hand: it shows in the
            size of the noise, which is right where batches have a public size, and one example is
            replaced by another.
        unit: "example" or "client": what is clipped, and what the guarantee is for.
        secure: Whether noise that is drawn without a generator comes from a `SecureGenerator`,
            which needs ``gradveil[privacy]``. A generator that is given is used as it is: a seed
            makes noise that can be computed again.

    >>> noise = PrivateNoise(noise_multiplier=1.0, clip=0.5, batch_size=64)
    >>> noise.plan(Moments({"w": torch.zeros(2)}, None, 1)).std["w"]
    tensor([0.0078, 0.0078])
    """

    label = "private noise"
    amount_name = "noise_multiplier"

    noise_multiplier: float
    clip: float
    shape: Shape | None = None
    batch_size: int | None = None
    unit: str = "example"
    secure: bool = True

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "clip"):
            check_positive(getattr(self, name), name)
            check_at_most(getattr(self, name), name)
        if self.clip < LEAST_CLIP:
            raise ValueError(
                f"Parameter `clip` should be at least {LEAST_CLIP:g}: smaller norms are lost in"
                " floating point, and examples are not clipped. Found"
                f" `clip = {self.clip}`. Rescale the loss."
            )
        if self.shape is not None:
            check_kind(self.shape, "shape", Shape, "Use for example `Shape.isotropic(parameters)`.")
            _check_range(self.shape)
        check_choice(self.unit, "unit", ("example", "client"))
        check_flag(self.secure, "secure")
        if self.batch_size is not None:
            check_count(self.batch_size, "batch_size")
        if self.unit == "client" and self.batch_size not in (None, 1):
            raise ValueError(
                "Parameter `batch_size` should be left out for unit='client': an update is clipped"
                f" and sent as one. Found `batch_size = {self.batch_size}`."
            )

    @property
    def formal_privacy(self) -> str:  # type: ignore[override]
        """Which formal privacy it has, in words."""
        return (
            f"(ε, δ) for each {self.unit}: norms clipped to {self.clip:g}, noise multiplier"
            f" {self.noise_multiplier:g}; an accountant tells ε"
        )

    @property
    def clamp(self) -> None:
        """No entry is clamped: norms are clipped."""
        return None

    @property
    def needs_sensitivities(self) -> bool:
        """Never."""
        return False

    @property
    def reads_moments(self) -> bool:
        """Never: only names, shapes and the number of examples."""
        return False

    @property
    def plan_is_private(self) -> bool:
        """Not unless a subclass observes or responds in a way of its own."""
        return self.steps_unlike(PrivateNoise)

    def prepared(self, message: Message) -> Message:
        """The message with its examples clipped, or clipped as a whole."""
        factors = None if self.shape is None else self.shape.factors
        if self.unit == "client":
            return ClippedUpdate(message, self.clip, factors)
        return ClippedMessage(message, self.clip, factors, self.batch_size)  # type: ignore[arg-type]

    def plan(self, moments: Moments) -> Mechanism:
        """√Σ_ii z C / B; of the moments only the shapes and the number of examples are read."""
        amount = self.noise_multiplier * self.clip / self._divisor(moments)
        like = moments.squared_values
        if self.shape is None:
            return Mechanism(std=constant_like(amount, like))
        self.shape.check(like)
        metric = Metric(self.shape.factors, like)
        std = {name: amount * _above_0(metric.deviations(name), name) for name in like}
        return Mechanism(std=std)

    def check_batch(self, inputs: Tensor) -> None:
        """Allow an empty batch, where its size says nothing: noise alone is sent then."""
        check_tensor(inputs, "inputs")
        if inputs.dim() == 0 or len(inputs) or self.unit == "client" or self.batch_size is None:
            check_inputs(inputs, tokens=gradient_of(inputs).takes_tokens)

    def observe(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> tuple[Tensors, Moments]:
        """The clipped values, and their moments."""
        self.check_batch(inputs)
        if gradient_of(inputs).takes_tokens != takes_tokens(message):
            check_inputs(inputs, tokens=takes_tokens(message))
        values = values_of(self.prepared(message), inputs)
        check_finite(values, "message(inputs)")
        return values, self.moments_of(values, inputs)

    def moments_of(self, values: Tensors, inputs: Tensor) -> Moments:
        """Shapes, and the number of examples."""
        size = max(1, inputs.numel())
        squares = Moments.of_values(values, size).squared_values
        return ClippedMoments(squares, None, size, examples=len(inputs))

    def accumulate(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        generator: torch.Generator | None = None,
        *,
        reduction: str | None = None,
    ) -> Accumulation:
        """As for every defense; B is that of the whole step, so it has to be given."""
        if self.unit == "client" or self.batch_size is None:
            raise ValueError(
                "A private defense to accumulate should have unit='example' and a `batch_size`,"
                " that of all micro-batches together. Found"
                f" `unit = {self.unit!r}, batch_size = {self.batch_size}`."
            )
        return Accumulation(self, model, loss_fn, generator, reduction=reduction)

    def observer(self) -> Observer:
        """What adds up the clipped micro-batches of one step."""
        return ClippedObserver(self)

    def check_plans(self, purpose: str) -> None:
        """Refuse to be taken apart: noise without this clipping would protect nothing."""
        raise TypeError(
            f"A defense {purpose} should plan from the message that it gets. Found"
            f" {type(self).__name__}, which clips it first and needs no sensitivities. Use it by"
            " itself."
        )

    def _divisor(self, moments: Any) -> int:
        if self.unit == "client":
            return 1
        size = self.batch_size or getattr(moments, "examples", 0)
        if not size:
            raise ValueError(
                "Parameter `batch_size` should be given where noise is planned without a batch."
                " Found None. Use the expected number of examples."
            )
        return int(size)


def _check_range(shape: Shape) -> None:
    """Require factors whose squares and quotients float32 can hold."""
    for name, factors in shape.factors.items():
        for factor in (f for f in factors if f.numel()):
            low, high = float(factor.min()), float(factor.max())
            if low < 1 / LARGEST_FACTOR or high > LARGEST_FACTOR:
                raise ValueError(
                    "The factors of a shape for private noise should be in"
                    f" [{1 / LARGEST_FACTOR:g}, {LARGEST_FACTOR:g}]: beyond, norms are lost in"
                    " floating point, and examples are not clipped. Found"
                    f" {low:g} to {high:g} for `{name}`. Rescale the shape;"
                    " only the proportions of its levels count."
                )


def _above_0(deviations: Tensor | None, name: str) -> Tensor:
    """Require noise everywhere: levels of too wide a range vanish in floating point."""
    assert deviations is not None
    if not bool((deviations > 0).all() & deviations.isfinite().all()):
        raise ValueError(
            f"The levels of a shape should be above 0 beside their mean. Found some of `{name}`"
            " that vanish in floating point. Limit the shape's range."
        )
    return deviations
