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
from gradveil._secure import bits_for_grid
from gradveil._typing import Tensors
from gradveil.mechanisms import GridMechanism, Mechanism, constant_like
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

from .._defended import Defended
from .._micro_batches import Accumulation, Observer
from .._planning import FixedDefense
from ._clipped_moments import ClippedMoments, ClippedObserver
from ._range import above_0, check_range

LEAST_CLIP = 1e-10
"""Below it, squares of gradients that have to be clipped may vanish in float32."""

LEAST_ON_GRID = 1e-4
"""The least noise multiplier: 400,000 examples then fit into 2⁵² steps."""


@dataclass(frozen=True)
class PrivateNoise(FixedDefense):
    """y = (1/B) (Σ_b g_b min(1, C / ‖Σ^{-1/2} g_b‖) + z C Σ^{1/2} ε), ε ~ N(0, I).

    g_b is the gradient of the loss of example b alone, Σ = diag(r) / mean(r) for a public shape r.
    Σ = I is DP-SGD of Abadi et al. 2016. In the coordinates Σ^{-1/2} g it is the isotropic Gaussian
    mechanism for every Σ, so an accountant sees only z, the sampling rate and the steps.

    Formal guarantees: the sum has sensitivity C in the norm of Σ if an example is added or removed,
    2C if one is replaced by another. One message is so a Gaussian mechanism of noise multiplier z
    for adding or removing (z/2 for replacing). This needs a shape and a B that do not depend on
    private data, and noise that nobody can predict: a run with a known seed protects nobody.

    Floating point: by default the noise is a discrete Gaussian on a grid of steps √Σ_ii z C / (B
    2^bits), 2²⁰ or more to the standard deviation, and the sum is rounded to that grid first
    (`GridMechanism`). What can be sent then does not depend on the batch, and C is smaller by what
    rounding adds (0.06 % for 120,000 parameters and z = 1; `ClippedMessage`). The account of the
    continuous Gaussian holds with a few millionths more (`gradveil.privacy.epsilon_on_grid`). Each
    client's message is private by itself: that a sum of discrete Gaussians is none does not matter.
    With ``grid=False`` the noise is continuous and added in floating point: drawn four times as
    fast, but its last bits tell a little of what it was added to, and no account covers that.

    Models and losses that mix examples are refused, with the reason: BatchNorm in training mode, a
    loss that is no mean or sum over examples. With `unit="client"` the whole message is clipped,
    whatever it is made of, and the guarantee is one for clients: for the updates of FedAvg. B is
    then 1.

    Args:
        noise_multiplier: z, the noise over the clip.
        clip: C, the largest norm ‖Σ^{-1/2} g_b‖. As the mean of Σ_ii is 1, it means about the same
            for every shape.
        shape: r, from public data or from the model alone; `None`: Σ = I. Entries with r = 0 are
            in no norm, and 0 is sent in their place.
        batch_size: B, the expected number of examples: public and fixed, also where the number at
            hand varies (Poisson sampling), or is 0. If `None`, the number at hand: it shows in the
            size of the noise, which is right where batches have a public size, and one example is
            replaced by another.
        unit: "example" or "client": what is clipped, and what the guarantee is for.
        secure: Whether noise that is drawn without a generator comes from a `SecureGenerator`,
            which needs ``gradveil[privacy]``. A generator that is given is used as it is: a seed
            makes noise that can be computed again.
        grid: Whether the noise is discrete, on a grid.

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
    grid: bool = True

    def __post_init__(self) -> None:
        check_flag(self.secure, "secure")
        check_flag(self.grid, "grid")
        for name in ("noise_multiplier", "clip"):
            check_positive(getattr(self, name), name)
            check_at_most(getattr(self, name), name)
        if self.clip < LEAST_CLIP:
            raise ValueError(
                f"Parameter `clip` should be at least {LEAST_CLIP:g}: smaller norms are lost in"
                " floating point, and examples are not clipped. Found"
                f" `clip = {self.clip}`. Rescale the loss."
            )
        if self.grid and self.noise_multiplier < LEAST_ON_GRID:
            raise ValueError(
                f"Parameter `noise_multiplier` should be at least {LEAST_ON_GRID:g} on a grid:"
                " beyond, sums have no room in it. Found"
                f" `noise_multiplier = {self.noise_multiplier}`, which protects nobody. Use"
                " grid=False."
            )
        if self.shape is not None:
            check_kind(self.shape, "shape", Shape, "Use for example `Shape.isotropic(parameters)`.")
            check_range(self.shape)
        check_choice(self.unit, "unit", ("example", "client"))
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
            + ("" if self.grid else "; in exact arithmetic: its noise is continuous")
        )

    @property
    def clamp(self) -> None:
        """No entry is clamped: norms are clipped."""
        return None

    @property
    def plan_is_private(self) -> bool:
        """Not unless a subclass observes or responds in a way of its own."""
        return self.steps_unlike(PrivateNoise)

    def prepared(self, message: Message) -> Message:
        """The message with its examples clipped, or clipped as a whole."""
        factors = None if self.shape is None else self.shape.factors
        grid = self.noise_multiplier if self.grid else None
        if self.unit == "client":
            return ClippedUpdate(message, self.clip, factors, grid)
        return ClippedMessage(message, self.clip, factors, self.batch_size, grid)  # type: ignore[arg-type]

    def plan(self, moments: Moments) -> Mechanism:
        """√Σ_ii z C / B; of the moments only the shapes and the number of examples are read."""
        amount = self.noise_multiplier * self.clip / self._divisor(moments)
        like = moments.squared_values
        if self.shape is None:
            return self._mechanism(constant_like(amount, like))
        self.shape.check(like)
        metric = Metric(self.shape.factors, like)
        ones = metric.kept(constant_like(1.0, like))
        std = {n: amount * above_0(metric.deviations(n), ones[n], n) for n in like}
        all_kept = all(bool(one.all()) for one in ones.values())
        return self._mechanism(std, None if all_kept else ones)

    def check_batch(self, inputs: Tensor) -> None:
        """Allow an empty batch, where its size says nothing: noise alone is sent then."""
        check_tensor(inputs, "inputs")
        if inputs.dim() == 0 or len(inputs) or self.unit == "client" or self.batch_size is None:
            check_inputs(inputs, tokens=gradient_of(inputs).takes_tokens)

    def observe(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> tuple[Tensors, Moments]:
        """The clipped values, and their moments. On a grid sums are in float64, plans are not."""
        self.check_batch(inputs)
        if gradient_of(inputs).takes_tokens != takes_tokens(message):
            check_inputs(inputs, tokens=takes_tokens(message))
        values = values_of(self.prepared(message), inputs)
        check_finite(values, "message(inputs)")
        if self.unit == "client":
            return values, self.moments_of(values, inputs)
        like: Tensors = message.parameters  # type: ignore[attr-defined]
        return values, self.moments_of({n: v.to(like[n].dtype) for n, v in values.items()}, inputs)

    def respond(
        self, message: Message, inputs: Tensor, generator: torch.Generator | None = None
    ) -> Defended:
        """One defended step. Sums are in float64 on a grid; its values are in the usual dtype."""
        values, mechanism, sent = super().respond(message, inputs, generator)
        return Defended({n: v.to(sent[n].dtype) for n, v in values.items()}, mechanism, sent)

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

    def _mechanism(self, std: Tensors, keep: Tensors | None = None) -> Mechanism:
        entries = sum(level.numel() for level in std.values())
        if not self.grid or not entries:
            return Mechanism(std, keep)
        return GridMechanism(std, keep, bits=bits_for_grid(self.noise_multiplier, entries))

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
