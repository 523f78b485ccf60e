"""Unpooling: the features before each max-pool, from the last to the first, then the images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._checks import WrongValue

from ._attack import FINISHED, INTERRUPTED, Reconstruction
from ._descent import Cost, Descent
from ._head import SOLVED, LocalSearch
from ._model_layers import Stage, chain_of, features_of, random_inputs, smooth_images, through
from ._priors import TotalVariation
from ._targets import LabelledSearch, Run
from ._unpool_equations import (
    EXACT,
    Equations,
    Kronecker,
    Sampler,
    cooled,
    is_overdetermined,
    search_inputs,
    solve_inputs,
)

STEPS = 40
"""Of expectation-maximisation in the search for features."""
NEAR = 0.1
"""The relative residual at the first pool up to which images count as found."""
SWEEPS = 20
"""At most how many times all positions are sampled, in at most half of the time that is left."""
SURE = 0.05
"""The share of random inputs' misfit of the whole message below which images are certain."""


def image_cost(
    lower: Sequence[Stage], equations: Equations, deviation: Tensor, energy: TotalVariation
) -> Cost:
    """The expected misfit of a stage's equations for images x, a = lower stages of x.

    The positions' probabilities are estimated again at every step (`Equations.estimate`), the
    allowed errors fall on the way, and total variation keeps what is not determined smooth.
    """
    unit, latest = equations.units(deviation), list[Tensor]()

    def cost(inputs: Tensor, progress: float) -> Tensor:
        factors = cooled(progress, 30.0)
        noise, blur = unit[0] * factors[0], unit[1] * factors[1]
        features = through(lower, inputs)
        with torch.no_grad():
            if not latest:
                latest.append(torch.softmax(-equations.gaps(features) / unit[1], -1))
            latest[0] = shares = equations.estimate(features, latest[0], noise, blur)
        # the expected -log-likelihood of the gradient and of the outputs
        patches, gaps = equations.patches(features), equations.gaps(features) / blur
        residual = equations.gradient - equations.delta(shares) @ patches.T
        of_cells = patches.T[equations.cells]
        products = of_cells @ of_cells.transpose(1, 2)
        spread = (equations.covariance(shares) * products).sum()
        values = 0.5 * shares * gaps.square() - (1 - shares) * torch.special.log_ndtr(gaps)
        values = (values * equations.seen[:, :, None]).sum()
        total: Tensor = 0.5 * (residual.square().sum() + spread) / noise**2 + values
        return total + energy(inputs)

    return cost


@dataclass(frozen=True)
class Unpool(LabelledSearch):
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
        steps: Of step 3, first-order.
        total_variation: The strength of total variation, an energy in nats for each difference of
            one standard deviation.

    >>> Unpool(total_variation=0.5).steps
    200
    """

    steps: int = 200
    total_variation: float = 1.0

    def search(self, run: Run) -> Reconstruction:
        """The batch; where the message does not determine the stages, an error."""
        found = self.solve(run)
        if found is None:
            raise WrongValue(
                "observation",
                "be of a gradient without noise and with all entries, of a chain of convolutions,"
                " activations and max-pools with a linear head that is narrower than the inputs",
                "a message whose stages are not determined",
                "Use `InvertingGradients`.",
            )
        return found

    def solve(self, run: Run) -> Reconstruction | None:
        """The batch; `None` where the stages are not determined, or their solution not found."""
        try:
            return self._solve(run)
        except KeyboardInterrupt:
            return run.blank(INTERRUPTED)

    def _solve(self, run: Run) -> Reconstruction | None:
        seen = run.observation
        search = LocalSearch.of(run) if seen.local is None else None
        if search is None or search.local.head.noise > 0:
            return None
        stages = _determined(search, run)
        if stages is None:
            return None
        places, cost = search.solve(None)
        if not cost < SOLVED or run.watch.is_over():
            return None
        head, outputs = search.local.head, search.local.outputs(places)
        samples = smooth_images(seen, 128, run.generator)  # what features are like
        shape = (-1, *through(stages, samples[:1]).shape[1:])
        features = head.features(outputs, run.labels)[0]
        slopes = head.gradients(outputs, run.labels)[1] @ head.layer.weight.detach()
        start = _Known(features.view(shape), slopes.view(shape), len(stages) - 1)
        known = self._peel(stages, run, start, samples)
        if known is None:
            return None
        inputs, residual, status = self._images(stages, run, known, samples)
        own, fits = run.misfit(inputs), residual < NEAR
        certain = fits and own < SURE * run.random_misfit()
        result = Reconstruction(inputs, run.labels, own, status, certain)
        return result if fits or status == INTERRUPTED else None

    def _peel(
        self, stages: Sequence[Stage], run: Run, known: "_Known", samples: Tensor
    ) -> "_Known | None":
        """What is known of the outputs of the lowest stage that the equations reach."""
        while known.level >= 0:
            level, stage = known.level, stages[known.level]
            pooled, gradient = stage.pool > 1, run.observation.sent[stage.weight]
            features = through(stages[:level], samples if pooled else samples[:1])
            if not is_overdetermined(gradient, len(known.outputs), features):
                return known
            equations = Equations(stage, known.outputs, known.slopes, gradient, features.shape)
            if pooled:
                prior = Kronecker.fit(features.double())
                shares = search_inputs(equations, prior, STEPS, run.watch)
                sampler = Sampler(equations, prior, run.generator)
                inputs, worst = sampler.solve(shares, SWEEPS, run.watch.part(0.5))
            else:
                inputs, worst = solve_inputs(equations, equations.even())
            if worst > EXACT or run.watch.is_over():
                return None
            known = _Known(inputs, equations.pulled_back(equations.positions(inputs)), level - 1)
        return known

    def _images(
        self, stages: Sequence[Stage], run: Run, known: "_Known", samples: Tensor
    ) -> tuple[Tensor, float, str]:
        """The images from the lowest known outputs, and the relative residual at these."""
        outputs, slopes = known.outputs.to(samples), known.slopes.to(samples)
        if known.level < 0:
            return outputs, 0.0, FINISHED
        lower, stage = stages[: known.level], stages[known.level]
        features = through(lower, samples[:16])
        gradient = run.observation.sent[stage.weight]
        equations = Equations(stage, outputs, slopes, gradient, features.shape)
        energy = TotalVariation(self.total_variation / float(samples.std()))
        cost = image_cost(lower, equations, features.var(0).mean().sqrt(), energy)
        low, high, width = run.observation.low, run.observation.high, 4.0
        start = samples.new_zeros(1, len(outputs), *samples.shape[1:])
        if low is not None and high is not None:
            start, width = start + ((low + high) / 2).to(start), float((high - low).mean())
        # the rate is that of a quarter of the range, about one standard deviation
        left = run.watch.left()
        descent = Descent(self.steps, 0.1 * width, "adam", "cosine", time_budget=left, settled=1.0)
        minimum = run.minimise(cost, start, descent)
        images = minimum.inputs[0]
        with torch.no_grad():
            residual = equations.misfit(through(lower, images))
        return images, residual, minimum.status


class _Known(NamedTuple):
    """A stage's outputs and the loss's gradients with respect to them."""

    outputs: Tensor
    slopes: Tensor
    level: int
    """The number of the stage; -1: the outputs are the images."""


def _determined(search: LocalSearch, run: Run) -> list[Stage] | None:
    """The model's stages, if the equations reach down to where no pool is left below."""
    seen, probe = run.observation, random_inputs(run.observation, 2, run.generator)
    with torch.no_grad():
        features = features_of(search.local.head.call.name, seen)(probe)
        stages = chain_of(seen, features, probe)
    if stages is None or features.shape[1] >= probe[0].numel():
        return None
    if any(stage.weight not in seen.sent for stage in stages):
        return None
    for level in range(len(stages))[::-1]:
        gradient, inputs = seen.sent[stages[level].weight], through(stages[:level], probe)
        if not is_overdetermined(gradient, seen.batch_size, inputs):
            below = stages[:level]
            return stages if level + 1 < len(stages) and all(s.pool == 1 for s in below) else None
    return stages
