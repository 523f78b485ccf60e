"""Unpooling: the features before each max-pool, from the last to the first, then the images."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._checks import check_count, check_kind, check_not_negative, check_not_negative_count
from gradveil._random import generator_or_fresh

from .._attack import Attack, Progress, shorter
from .._evidence import TotalVariation, random_inputs, smooth_images
from .._observation import Observation
from .._peeling import message_misfit, random_misfit, solve_head
from .._reconstruction import FINISHED, INTERRUPTED, Reconstruction
from .._search import (
    Head,
    Watch,
    features_from,
    features_of,
    head_of,
    labels_of,
)
from ._chain import Stage, chain_of
from ._equations import Equations
from ._features import EXACT, Cooling, Kronecker, search_inputs, solve_inputs
from ._images import ImageSearch, through
from ._sampling import Sampler

SAMPLES = 128
"""How many random images tell what features are like."""
FEW = 16
"""How many of them tell how large features are."""
HEAD_STEPS = 300
NEAR = 0.1
"""The relative residual at the first pool up to which images count as found."""
SURE = 0.05
"""The share of random inputs' misfit of the whole message below which images are certain."""


def _image_cooling() -> Cooling:
    return Cooling(200, (30.0, 0.1), (1.0, 0.03))


@dataclass(frozen=True)
class Unpool(Attack):
    """Exact features stage by stage from the end of a convolutional model, then the images.

    1. The head's outputs, their gradients and the features that it reads, as in `Peel`.
    2. For each stage (convolution, BatchNorm in eval mode, activation, max-pool) from the last on:
       its outputs and their gradients are known; unknown are the position of the largest entry in
       each cell of the pool, and the inputs. Expectation-maximisation with falling errors finds
       most positions, Gibbs sampling more of them where these are not enough (`Sampler`),
       reweighted least squares the rest (`Equations`). Residuals of 0 prove it. The inputs' own
       gradient follows, and the next stage is reached.
    3. Where a stage has more unknowns than equations, and no pool is below it: images whose
       features fit its equations, the positions being open, with some total variation.

    It needs a gradient without noise and with all entries, a chain of such stages, and kernels with
    more entries for each input channel than the batch has places; elsewhere `solve` gives `None`.

    Args:
        features: How the errors fall in step 2.
        images: How they fall in step 3, over its first-order steps.
        total_variation: The strength of total variation, an energy in nats for each difference of
            one standard deviation.
        sweeps: At most how many times all positions are sampled in step 2, in at most half of the
            time that is left; 0: not at all.
        time_budget: Seconds after which the best so far is returned; `None`: no limit.
        progress: Called with (step, steps, cost) of step 3.

    >>> Unpool(total_variation=0.5).features.steps
    40
    """

    features: Cooling = field(default_factory=Cooling)
    images: Cooling = field(default_factory=_image_cooling)
    total_variation: float = 1.0
    sweeps: int = 20
    time_budget: float | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        for name in ("features", "images"):
            check_kind(getattr(self, name), name, Cooling, "Use `Cooling()`.")
            check_count(getattr(self, name).steps, f"{name}.steps")
        check_not_negative_count(self.sweeps, "sweeps")
        check_not_negative(self.total_variation, "total_variation")
        if self.time_budget is not None:
            check_not_negative(self.time_budget, "time_budget")

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack; where the message does not determine the stages, an error."""
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        labels = labels_of(observation, generator)
        found = self.solve(observation, labels, generator, watch, self.progress)
        if found is None:
            raise ValueError(
                "Parameter `observation` should be of a gradient without noise and with all"
                " entries, of a chain of convolutions, activations and max-pools with a linear head"
                " that is narrower than the inputs. Found a message whose stages are not"
                " determined. Use `InvertingGradients`."
            )
        return found

    def configured(
        self,
        steps: int | None = None,
        time_budget: float | None = None,
        progress: Progress | None = None,
    ) -> "Unpool":
        """The attack with other settings: the steps are those of the images."""
        images = self.images if steps is None else replace(self.images, steps=steps)
        return replace(
            self,
            images=images,
            progress=progress or self.progress,
            time_budget=shorter(self.time_budget, time_budget),
        )

    @property
    def work(self) -> float:
        """The first-order steps of the images."""
        return float(self.images.steps)

    def solve(
        self,
        observation: Observation,
        labels: Tensor,
        generator: torch.Generator,
        watch: Watch,
        progress: Progress | None = None,
        heads: list[Tensor] | None = None,
    ) -> Reconstruction | None:
        """The batch; `None` where the stages are not determined, or their solution not found.

        The outputs of the head's first layer, once they are solved, are put into `heads`.
        """
        head = head_of(observation, generator)
        stages = _determined(head, observation, generator) if head is not None else None
        if head is None or not stages:
            return None
        outputs, status = solve_head(head, labels, HEAD_STEPS, generator, watch, None)
        if outputs is None or status != FINISHED:
            return None
        if heads is not None:
            heads.append(outputs)
        samples = smooth_images(observation, SAMPLES, generator)
        shape = through(stages, samples[:1]).shape[1:]
        start = _Known(*_at_head(head, outputs, labels, shape), len(stages) - 1)
        known = self._peel(stages, observation, start, samples, generator, watch)
        if known is None:
            return None
        inputs, status = self._images(stages, observation, known, samples, watch, progress)
        own = message_misfit(observation, inputs, labels)
        fits = _misfit(stages, observation, known, inputs) < NEAR
        certain = fits and own < SURE * random_misfit(observation, labels, generator)
        result = Reconstruction(inputs, labels, own, [(self.images.steps, own)], status, certain)
        return result if fits or status == INTERRUPTED else None

    def _peel(
        self,
        stages: Sequence[Stage],
        observation: Observation,
        known: "_Known",
        samples: Tensor,
        generator: torch.Generator,
        watch: Watch,
    ) -> "_Known | None":
        """What is known of the outputs of the lowest stage that the equations reach."""
        while known.level >= 0:
            level = known.level
            pooled = stages[level].pool > 1
            features = through(stages[:level], samples if pooled else samples[:1])
            equations = known.equations(stages[level], observation, features)
            if not equations.is_overdetermined:
                return known
            if pooled:
                prior = Kronecker.fit(features.double())
                shares = search_inputs(equations, prior, self.features, watch)
                sampler = Sampler(equations, prior, generator)
                inputs, worst = sampler.solve(shares, self.sweeps, watch.part(0.5))
            else:
                inputs, worst = solve_inputs(equations, equations.even())
            if worst > EXACT or watch.is_over():
                return None
            known = _Known(inputs, equations.pulled_back(equations.positions(inputs)), level - 1)
        return known

    def _images(
        self,
        stages: Sequence[Stage],
        observation: Observation,
        known: "_Known",
        samples: Tensor,
        watch: Watch,
        progress: Progress | None,
    ) -> tuple[Tensor, str]:
        """The images from the lowest known outputs."""
        if known.level < 0:
            return known.outputs.to(samples), FINISHED
        lower = stages[: known.level]
        features = through(lower, samples[:FEW])
        equations = known.to(samples).equations(stages[known.level], observation, features)
        energy = TotalVariation(self.total_variation / float(samples.std()))
        search = ImageSearch(observation, lower, equations, self.images, energy)
        start = _middle(observation, samples).expand(len(known.outputs), *samples.shape[1:])
        deviation = features.var(0).mean().sqrt()
        minimum = search(start, deviation, watch, progress)
        return minimum.inputs[0], minimum.status


class _Known(NamedTuple):
    """A stage's outputs and the loss's gradients with respect to them."""

    outputs: Tensor
    slopes: Tensor
    level: int = -1
    """The number of the stage; -1: the outputs are the images."""

    def to(self, like: Tensor) -> "_Known":
        """In the precision of a tensor."""
        return _Known(self.outputs.to(like), self.slopes.to(like), self.level)

    def equations(self, stage: Stage, observation: Observation, features: Tensor) -> Equations:
        """Of this stage, whose inputs have the shape of these features."""
        gradient = observation.sent[f"{stage.name}.weight" if stage.name else "weight"]
        size = (int(features.shape[2]), int(features.shape[3]))
        return Equations(stage, self.outputs, self.slopes, gradient, size)


def _middle(observation: Observation, like: Tensor) -> Tensor:
    """The middle of the range, or 0."""
    if observation.low is None or observation.high is None:
        return like.new_zeros(())
    return ((observation.low + observation.high) / 2).to(like)


def _determined(
    head: Head, observation: Observation, generator: torch.Generator
) -> list[Stage] | None:
    """The model's stages, if the equations reach down to where no pool is left below."""
    probe = random_inputs(observation, 2, generator)
    with torch.no_grad():
        features = features_of(head.name, observation)(probe)
        stages = chain_of(observation, features, probe)
    if stages is None or features.shape[1] >= probe[0].numel():
        return None
    sent = observation.sent
    if any((f"{s.name}.weight" if s.name else "weight") not in sent for s in stages):
        return None
    reached = len(stages)
    while reached > 0:
        maps = through(stages[: reached - 1], probe)
        blank = through(stages[:reached], probe)[:1].expand(observation.batch_size, -1, -1, -1)
        equations = _Known(blank, blank).equations(stages[reached - 1], observation, maps)
        if not equations.is_overdetermined:
            break
        reached -= 1
    below = stages[: max(0, reached - 1)]
    return stages if reached < len(stages) and all(s.pool == 1 for s in below) else None


def _at_head(
    head: Head, outputs: Tensor, labels: Tensor, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """The features that the head reads and their gradients, as maps."""
    features = features_from(head, outputs, labels)
    slopes = head.gradients(outputs, labels)[1] @ head.layer.weight.detach()
    return features.view(-1, *shape), slopes.view(-1, *shape)


def _misfit(
    stages: Sequence[Stage], observation: Observation, known: _Known, inputs: Tensor
) -> float:
    """The relative residual of the kernel's gradient at the lowest known stage."""
    if known.level < 0:
        return 0.0
    with torch.no_grad():
        features = through(stages[: known.level], inputs)
        equations = known.to(inputs).equations(stages[known.level], observation, features)
        fitted = equations.delta(equations.positions(features)) @ equations.patches(features).T
    return float((fitted - equations.gradient).norm() / equations.gradient.norm())
