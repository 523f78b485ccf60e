"""How far a message is from what was sent, under a mechanism that is known or planned again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from gradveil._tensors import Tensors, flatten
from gradveil.defenses import OptimalPruning
from gradveil.mechanisms import (
    AnyMechanism,
    Mechanism,
    QuantisationMechanism,
    RoundingMechanism,
    SignMechanism,
    as_tensors,
    check_mechanism,
)
from gradveil.messages import Message, separates, takes_tokens
from gradveil.sensitivity import Estimator, Moments, PerExample, Sketch, measure_with_values

from ._observation import Observation


class Evidence(NamedTuple):
    """What was sent, as an interval for each entry of the message and a weight.

    An entry with noise is a point with weight 1/std²; a rounded one the cell it was rounded from;
    a pruned one [-τ, τ]; one that tells nothing has weight 0. What was clipped first is compared
    after clipping. All in one row, in the order of the parameters' names in the message.
    """

    low: Tensor
    high: Tensor
    weight: Tensor
    clip: Tensor | None = None
    """The thresholds P of clipping to [-P, P], infinite where there are none."""

    def misfit(self, values: Tensor) -> Tensor:
        """½ Σ_i w_i dist(clip(g_i), [low_i, high_i])²: -log-likelihood up to a constant."""
        return 0.5 * (self.weight * self.residual(values).square()).sum(-1)

    def residual(self, values: Tensor) -> Tensor:
        """clip(g_i) minus the nearest point of its interval."""
        if self.clip is not None:
            values = torch.minimum(torch.maximum(values, -self.clip), self.clip)
        return values - torch.minimum(torch.maximum(values, self.low), self.high)

    def slope(self, values: Tensor) -> Tensor:
        """The derivative of the misfit; 0 beyond the clipping threshold."""
        return self.weight * self.residual(values) * self._moves(values)

    def curvature(self, values: Tensor) -> Tensor:
        """The Gauss-Newton weights: w_i outside of the interval, 0 where it is wide and met."""
        outside = (values < self.low) | (values > self.high) | (self.low == self.high)
        return self.weight * outside * self._moves(values)

    def _moves(self, values: Tensor) -> Tensor | float:
        return 1.0 if self.clip is None else (values.abs() <= self.clip).to(values)


def euclidean_evidence(sent: Tensor) -> Evidence:
    """Every entry sent as it is: the misfit is ‖g - y‖² / ‖y‖²."""
    weight = 2 / sent.square().sum(-1, keepdim=True).clamp(min=torch.finfo(sent.dtype).tiny)
    return Evidence(sent, sent, weight.expand(sent.shape))


SHORT = 2**20
"""Entries of a message up to which one row is faster than its tensors one by one."""


def cosine_distance(values: Tensor | Sequence[Tensor], sent: Tensor) -> Tensor:
    """1 - ⟨g, y⟩ / (‖g‖ ‖y‖), blind to the scale (Geiping et al., 2020); 1 where one is 0.

    The message in one row, or tensor by tensor: rows of millions of entries are slow to make.
    """
    parts = [values] if isinstance(values, Tensor) else list(values)
    if len(parts) > 1 and len(sent) < SHORT:
        parts = [torch.cat([part.reshape(-1) for part in parts])]
    sums: Tensor = _Products.apply(sent, *parts)
    own, product = sums.unbind()
    norms = (own * sent.dot(sent)).clamp(min=torch.finfo(own.dtype).tiny).sqrt()
    return 1 - product / norms


class _Products(Function):
    """(⟨g, g⟩, ⟨g, y⟩), with a derivative in g of one pass: 2 a g + b y."""

    generate_vmap_rule = True

    @staticmethod
    def forward(sent: Tensor, *values: Tensor) -> Tensor:
        pairs = list(zip(values, sent.split([v.numel() for v in values]), strict=True))
        own = torch.stack([g.reshape(-1).dot(g.reshape(-1)) for g, _ in pairs]).sum()
        product = torch.stack([g.reshape(-1).dot(y) for g, y in pairs]).sum()
        return torch.stack([own, product])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        sent, *values = ctx.saved_tensors
        own, product = gradient.unbind()
        found = [
            torch.addcmul(g * (2 * own), y.view_as(g), product)
            for g, y in zip(values, sent.split([v.numel() for v in values]), strict=True)
        ]
        return None, *found  # what was sent is no variable


@dataclass(frozen=True)
class Channel:
    """Where the values can be: clip(g_i) is in [low_i, high_i], seen through noise; in one row."""

    sent: Tensor
    low: Tensor
    high: Tensor
    std: Tensor
    """Of the noise; 0 where an entry was pruned: what it says does not depend on noise."""
    silent: Tensor
    """Where an entry tells nothing: pruned for reasons that do not depend on its value."""
    clip: Tensor
    """The thresholds P of clamping to [-P, P] before the noise; infinite where there are none."""

    @property
    def signal(self) -> Tensor:
        """‖y‖² less what the noise has of it; at least a hundredth."""
        power = self.sent.square().sum()
        return (power - self.std.square().sum()).clamp(min=1e-2 * power)

    def evidence(self, opening: float, looseness: float, inputs: int) -> Evidence:
        """The evidence with intervals opened by a share of their width.

        At opening 0 every entry counts as sent as it is, which is what an unaware attack assumes
        and has few local minima; at 1 the intervals are those of the mechanism. An entry without
        noise gets the variance looseness · ‖y‖² / (2 `inputs`), so that a relative misfit of
        `looseness` costs as much as one unit of energy for each entry of the inputs.
        """
        variance = self.std.square() + looseness * self.signal / (2 * inputs)
        weight = variance.clamp(min=torch.finfo(variance.dtype).tiny).reciprocal()

        def towards(end: Tensor) -> Tensor:
            """Part of the way; an infinite end is reached at once."""
            return torch.where(end.isinf(), end, self.sent + opening * (end - self.sent))

        weight = torch.where(self.silent, (1 - opening) * weight, weight)
        return Evidence(towards(self.low), towards(self.high), weight, self.clip)

    def unexplained(self, evidence: Evidence, values: Tensor) -> float:
        """The share of the signal's power by which values miss the evidence, beyond the noise."""
        noise = self.std.square()
        misses = evidence.residual(values).square() * (evidence.weight > 0)
        expected = noise.sum() + 3 * (2 * noise.square().sum()).sqrt()
        return float(((misses.sum() - expected) / self.signal).clamp(min=0))


def read(mechanism: Any, sent: Tensors, realised: bool = True) -> Channel:
    """What was sent, as a statement on each entry of the values; pruned entries are silent.

    Args:
        mechanism: That was applied, or one like it. Laplace's noise, and that of a mechanism of
            one's own, is taken for normal noise of its variance around the values.
        realised: Whether this very mechanism was applied. One that was planned from an estimate
            has another mask, and small levels that are wrong by large factors: those below the
            root mean square are lifted to it, so that only noisier entries count less.
    """
    row = flatten(sent)
    nothing = torch.zeros_like(row)
    channel = Channel(row, row, row, nothing, nothing.bool(), torch.full_like(row, torch.inf))
    if isinstance(mechanism, RoundingMechanism):
        half = flatten(as_tensors(mechanism.step, sent)) / 2
        return replace(channel, low=row - half, high=row + half)
    if isinstance(mechanism, SignMechanism):
        low, high = torch.where(row < 0, -torch.inf, nothing), torch.where(row > 0, torch.inf, 0.0)
        return replace(channel, low=low, high=high)
    if isinstance(mechanism, QuantisationMechanism):
        levels = {name: _deviation(y, mechanism.levels) for name, y in sent.items()}
        return replace(channel, std=flatten(levels))
    if isinstance(mechanism, Mechanism):
        std = flatten(as_tensors(mechanism.std, sent))
    else:
        check_mechanism(mechanism)
        std = flatten(mechanism.variance(sent)).sqrt()
    if not realised and bool((std > 0).any()):
        std = std.clamp(min=float(std[std > 0].square().mean().sqrt()))
    if not isinstance(mechanism, Mechanism):
        return replace(channel, std=std)
    pruned = channel.silent
    if mechanism.keep is not None:
        keep = flatten(as_tensors(mechanism.keep, sent))
        if realised:
            pruned = (keep == 0) | ((keep < 1) & (row == 0))
        elif bool((keep < 1).any()):
            pruned = row == 0
    if mechanism.clip is not None:
        channel = replace(channel, clip=flatten(as_tensors(mechanism.clip, sent)))
    return replace(channel, std=torch.where(pruned, 0.0, std), silent=pruned)


def _deviation(sent: Tensor, levels: int) -> Tensor:
    """Of quantisation's noise, one level for each tensor.

    The coarsest grid that holds all entries has the step a, and ‖g‖ = levels · a. As
    E‖y‖² = ‖g‖² + Σ_i Var[y_i], the mean variance is (‖y‖² - ‖g‖²) / n. In a small tensor all
    entries may lie on a coarser grid, and then its noise is taken for too small. That the noise
    has another shape, and that the norm is known exactly, is not used.
    """
    y = sent.double()
    sizes = y.abs()[y != 0]
    if not sizes.numel():
        return torch.zeros_like(sent)
    steps = ((n, sizes * n / sizes.min()) for n in range(1, levels + 1))
    whole = (n for n, own in steps if bool(((own - own.round()).abs() <= 1e-3 * n).all()))
    parts = next(whole, 1)  # whole numbers, up to rounding
    norm = levels * sizes.min() / parts
    variance = (y.square().sum() - norm**2).clamp(min=0) / y.numel()
    return variance.sqrt().to(sent.dtype).expand(sent.shape)


def open_channel(
    observation: Observation, sent: Tensors, mechanism: AnyMechanism, sensitivities: Tensors | None
) -> Channel:
    """The channel of a mechanism that the attacker knows or has planned itself.

    A pruned entry has |g_i| ≤ τ_i, where the defense prunes for reasons that show it.
    `sensitivities` are E‖∇g_i‖² at the attacker's estimate, where the defense prunes by them.
    """
    channel = read(mechanism, sent, realised=observation.mechanism is not None)
    defense, pruned = observation.defense, channel.silent
    if defense is None or not defense.about.private:  # a public mask tells nothing of g
        return channel
    if not bool(pruned.any()) or bool(pruned.all()):
        return channel
    slopes = None if sensitivities is None else flatten(sensitivities).sqrt()
    limit = defense.pruned_limits(channel.sent, pruned, slopes)
    limited = pruned & ~limit.isinf()
    return replace(
        channel,
        low=torch.where(limited, -limit, channel.low),
        high=torch.where(limited, limit, channel.high),
        silent=pruned & ~limited,
    )


def estimator_for(message: Message, inputs: Tensor) -> Estimator:
    """Of sensitivities at an estimate, along eight directions: that is enough to plan by."""
    alone = separates(message, inputs) and not takes_tokens(message)
    return PerExample(8) if alone else Sketch(8)


def plan_channel(
    observation: Observation, labels: Tensor, estimate: Tensor, generator: torch.Generator
) -> Channel:
    """The channel of the known mechanism, or of the defense's plan at the estimate."""
    message, defense = observation.message(labels), observation.defense
    values = message(estimate)
    sent = {name: observation.sent[name] for name in values}
    mechanism, sensitivities = observation.mechanism, None
    if mechanism is None or _prunes_by_sensitivity(observation):
        assert defense is not None
        moments = Moments.of_values(values, estimate.numel())
        if defense.about.needs.sensitivities:
            estimator = estimator_for(message, estimate)
            moments = measure_with_values(message, estimate, estimator, generator=generator)[1]
            sensitivities = moments.squared_sensitivities
        if mechanism is None:
            given = defense.given(moments, message, estimate, generator)
            mechanism = defense.mechanism(given.shape, given.moments)
    return open_channel(observation, sent, mechanism, sensitivities)


LOOSENESS = 3e-3
"""The relative misfit that costs, in the end, as much as one unit of a prior's energy for each
entry of the inputs; for entries without noise."""


def final_evidence(
    observation: Observation, labels: Tensor, estimate: Tensor, generator: torch.Generator
) -> Evidence:
    """What the message says in the end, under the known mechanism or the plan at the estimate."""
    channel = plan_channel(observation, labels, estimate, generator)
    return channel.evidence(1.0, LOOSENESS, estimate.numel())


def depends_on_inputs(observation: Observation) -> bool:
    """Whether the attacker's plan changes with its estimate."""
    defense = observation.defense
    planned = observation.mechanism is None or _prunes_by_sensitivity(observation)
    return planned and (defense is None or defense.about.varies)


def _prunes_by_sensitivity(observation: Observation) -> bool:
    defense = observation.defense
    return isinstance(defense, OptimalPruning) and defense.about.private
