"""Differentially private noise: examples clipped in the norm of the noise that they get."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradveil._checks import (
    WrongValue,
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
from gradveil._random import seed_from
from gradveil._secure import SecureGenerator, bits_for_grid
from gradveil._tensors import Tensors
from gradveil.mechanisms import GridMechanism, Mechanism, constant_like
from gradveil.messages import (
    ClippedMessage,
    ClippedUpdate,
    Message,
    Metric,
    gradient_of,
    takes_tokens,
    values_of,
)
from gradveil.sensitivity import Moments
from gradveil.shapes import Shape

from ._base import About, Defended
from ._fixed import FixedDefense


@dataclass(frozen=True)
class PrivateNoise(FixedDefense, amount="noise_multiplier", clamp=None, whole="clips it first"):
    """y = (1/B) (Σ_b g_b min(1, C / ‖Σ^{-1/2} g_b‖) + z C Σ^{1/2} ε), ε ~ N(0, I).

    g_b is the gradient of the loss of example b alone, Σ = diag(r) / mean(r) for a public shape r.
    Σ = I is DP-SGD of Abadi et al. 2016. In the coordinates Σ^{-1/2} g it is the isotropic Gaussian
    mechanism for every Σ, so an accountant sees only z, the sampling rate and the steps.

    Formal guarantees: the sum has sensitivity C in the norm of Σ if an example is added or removed,
    2C if one is replaced by another. One message is so a Gaussian mechanism of noise multiplier z
    for adding or removing (z/2 for replacing). This needs a shape and a B that do not depend on
    private data, and noise that nobody can predict: a run with a known seed protects nobody. What
    the model draws itself (dropout) has to be as secret, and comes from the same generator: with
    known masks one example more would change what all that follow add.

    Floating point: by default the noise is a discrete Gaussian on a grid of steps √Σ_ii z C / (B
    2^bits), 2²⁰ or more to the standard deviation, and the sum is rounded to that grid first
    (`GridMechanism`), C being smaller by what rounding adds (`ClippedMessage`). The account of the
    continuous Gaussian holds with a few millionths more (`gradveil.privacy.epsilon_on_grid`). Each
    client's message is private by itself: that a sum of discrete Gaussians is none does not matter.
    With ``grid=False`` the noise is continuous and added in floating point: drawn four times as
    fast, but its last bits tell a little of what it was added to, and no account covers that.

    Each example's gradient is computed from that example alone (`ClippedMessage`), so the guarantee
    does not rest on what a model does with a batch. Those that mix examples are refused all the
    same where it shows, since they would train as something else: BatchNorm in training mode, a
    loss that is no mean or sum over examples. With `unit="client"` the whole message is clipped,
    whatever it is made of, and the guarantee is one for clients: for the updates of FedAvg. B is
    then 1.

    Args:
        clip: C, the largest norm ‖Σ^{-1/2} g_b‖. As the mean of Σ_ii is 1, it means about the same
            for every shape.
        metric: r, the shape of Σ, from public data or from the model alone; `None`: Σ = I. Entries
            with r = 0 are in no norm, and 0 is sent in their place.
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

    adds_up: ClassVar[bool] = True  # sums over B

    noise_multiplier: float
    clip: float
    metric: Shape | None = None
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
        if self.clip < 1e-10:  # squares may vanish in float32
            lost = "smaller norms are lost in floating point, and examples are not clipped"
            expected, found = f"be at least 1e-10: {lost}", str(self.clip)
            raise WrongValue("clip", expected, found, "Rescale the loss.", assigned=True)
        if self.grid and self.noise_multiplier < 1e-4:  # 400,000 examples fit into 2⁵² steps
            expected = "be at least 0.0001 on a grid: beyond, sums have no room in it"
            found = f"`noise_multiplier = {self.noise_multiplier}`, which protects nobody"
            raise WrongValue("noise_multiplier", expected, found, "Use grid=False.")
        if self.metric is not None:
            advice = "Use for example `Shape.isotropic(parameters)`."
            check_kind(self.metric, "metric", Shape, advice)
            _check_range(self.metric)
        check_choice(self.unit, "unit", ("example", "client"))
        if self.batch_size is not None:
            check_count(self.batch_size, "batch_size")
        if self.unit == "client" and self.batch_size not in (None, 1):
            expected = "be left out for unit='client': an update is clipped and sent as one"
            raise WrongValue("batch_size", expected, str(self.batch_size), assigned=True)

    @cached_property
    def about(self) -> About:
        formal = (
            f"(ε, δ) for each {self.unit}: norms clipped to {self.clip:g}, noise multiplier"
            f" {self.noise_multiplier:g}; an accountant tells ε"
            + ("" if self.grid else "; in exact arithmetic: its noise is continuous")
        )
        return replace(super().about, formal_privacy=formal)

    def prepared(self, message: Message) -> Message:
        """The message with its examples clipped, or clipped as a whole."""
        factors = None if self.metric is None else self.metric.factors
        grid = self.noise_multiplier if self.grid else None
        if self.unit == "client":
            return ClippedUpdate(message, self.clip, factors, grid)
        return ClippedMessage(message, self.clip, factors, self.batch_size, grid)  # type: ignore[arg-type]

    def mechanism(self, shape: Shape, moments: Moments) -> Mechanism:
        """√Σ_ii z C / B; of the moments only the names and sizes are read."""
        if self.unit == "example" and self.batch_size is None:
            expected = "be given where noise is made without a batch"
            raise WrongValue("batch_size", expected, "None", "Use the expected number of examples.")
        amount = self.noise_multiplier * self.clip / (self.batch_size or 1)
        like, keep = moments.like, None
        std = constant_like(amount, like)
        if self.metric is not None:
            self.metric.check(like)
            metric = Metric(self.metric.factors, like)
            sent = metric.kept(constant_like(1.0, like))
            std = {n: amount * _above_0(metric.deviations(n), sent[n], n) for n in like}
            keep = None if all(bool(one.all()) for one in sent.values()) else sent
        if not self.grid or not moments.size:
            return Mechanism(std, keep)
        return GridMechanism(std, keep, bits=bits_for_grid(self.noise_multiplier, moments.size))

    def check_batch(self, inputs: Tensor) -> None:
        """Allow an empty batch, where its size says nothing: noise alone is sent then."""
        check_tensor(inputs, "inputs")
        if inputs.dim() == 0 or len(inputs) or self.unit == "client" or self.batch_size is None:
            check_inputs(inputs, tokens=gradient_of(inputs).takes_tokens)

    def observe(
        self,
        message: Message,
        inputs: Tensor,
        generator: torch.Generator,
        *,
        kept: dict[Any, Any] | None = None,
    ) -> tuple[Tensors, Moments]:
        """The clipped values, and their moments. On a grid sums are in float64, plans are not.

        What the model draws at random is as secret as the noise: from the same generator, whatever
        seed the message has. Micro-batches of one step share what is `kept`.
        """
        self.check_batch(inputs)
        if gradient_of(inputs).takes_tokens != takes_tokens(message):
            check_inputs(inputs, tokens=takes_tokens(message))
        prepared = self.prepared(message)
        if isinstance(prepared, ClippedMessage):
            prepared.kept = kept
            if not isinstance(generator, SecureGenerator):
                prepared.seed = seed_from(generator)
        values = values_of(prepared, inputs)
        check_finite(values, "message(inputs)")
        seen = values
        if self.unit == "example":
            like: Tensors = message.parameters  # type: ignore[attr-defined]
            seen = {name: v.to(like[name].dtype) for name, v in values.items()}
        return values, Moments.of_values(seen, max(1, inputs.numel()))

    def respond(
        self, message: Message, inputs: Tensor, generator: torch.Generator | None = None
    ) -> Defended:
        """One defended step. Sums are in float64 on a grid; its values are in the usual dtype."""
        own = self
        if self.unit == "example" and self.batch_size is None and len(inputs):
            own = replace(self, batch_size=len(inputs))
        values, mechanism, sent = super(PrivateNoise, own).respond(message, inputs, generator)
        return Defended({n: v.to(sent[n].dtype) for n, v in values.items()}, mechanism, sent)

    def check_accumulates(self) -> None:
        """B is that of the whole step, so it has to be given."""
        if self.unit == "client" or self.batch_size is None:
            raise ValueError(
                "A private defense to accumulate should have unit='example' and a `batch_size`,"
                " that of all micro-batches together. Found"
                f" `unit = {self.unit!r}, batch_size = {self.batch_size}`."
            )


def _check_range(shape: Shape) -> None:
    """Require factors whose squares and quotients float32 can hold."""
    for name, factors in shape.factors.items():
        known = [f[f > 0] for f in factors if bool((f > 0).any())]
        ends = [(float(f.min()), float(f.max())) for f in known]
        whole = prod(low for low, _ in ends), prod(high for _, high in ends)
        for (low, high), most in [*((one, 1e8) for one in ends), (whole, 1e16)]:
            if low < 1 / most or high > most:  # squares of gradients may vanish in float32
                raise ValueError(
                    "The factors of a shape for private noise should be in [1e-08, 1e+08], and"
                    " their product in [1e-16, 1e+16]: beyond,"
                    " norms are lost in floating point, and examples are not clipped. Found"
                    f" {low:g} to {high:g} for `{name}`. Rescale the shape; only the proportions of"
                    " its levels count."
                )


def _above_0(deviations: Tensor | None, kept: Tensor, name: str) -> Tensor:
    """Require noise on all that is sent: levels of too wide a range vanish in floating point."""
    assert deviations is not None
    if not bool(((deviations > 0) | (kept == 0)).all() & deviations.isfinite().all()):
        raise ValueError(
            f"The levels of a shape should be above 0 beside their mean. Found some of `{name}`"
            " that vanish in floating point. Limit the shape's range."
        )
    return deviations
