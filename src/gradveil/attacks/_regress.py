"""Regression: inputs from a message as simulated messages of random inputs teach it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._random import normal_like
from gradveil._tensors import Tensors

from ._attack import FINISHED, TIME_BUDGET, Reconstruction
from ._descent import Watch
from ._model_layers import random_examples
from ._targets import LabelledSearch, Run

STRENGTHS = tuple(10.0 ** (k / 2) for k in range(-6, 5))
"""The ridges that are tried, over the mean of the kernel's diagonal."""


class Ridge(NamedTuple):
    """λ, infinite where no other predicts better than the mean, and the mean squared error that it
    leaves of samples left out, over the targets' variance."""

    strength: float
    error: float


def choose_ridge(kernel: Tensor, targets: Tensor) -> Ridge:
    """For a centred kernel matrix and centred targets, one row for each sample.

    With A = (K + λ I)⁻¹ the residuals are λ A Y and the leverages 1 - λ A_nn + 1/N (the intercept),
    so that the error of sample n, left out, is (λ A Y)_n / (λ A_nn - 1/N).
    """
    samples, unit = len(kernel), float(kernel.diagonal().mean())
    values, vectors = torch.linalg.eigh(kernel)
    values, rotated = values.clamp(min=0), vectors.T @ targets
    whole = float(targets.square().mean()) * (samples / (samples - 1)) ** 2
    best = Ridge(math.inf, 1.0)
    for strength in STRENGTHS:
        ridge = strength * unit
        inverse = 1 / (values + ridge)
        residuals = ridge * (vectors @ (inverse[:, None] * rotated))
        left = (ridge * (vectors.square() @ inverse) - 1 / samples).clamp(min=1e-9)
        error = float((residuals / left[:, None]).square().mean()) / whole
        best = min(best, Ridge(ridge, error), key=lambda found: found.error)
    return best


def fit_ridge(kernel: Tensor, targets: Tensor, ridge: Ridge) -> Tensor:
    """α with prediction = mean of the targets + Σ_n k(x, x_n) α_n."""
    if math.isinf(ridge.strength):
        return torch.zeros_like(targets)
    shift = ridge.strength * torch.eye(len(kernel), dtype=kernel.dtype, device=kernel.device)
    solution: Tensor = torch.linalg.solve(kernel + shift, targets)
    return solution


WIDTH = 8192
"""Larger tensors of a message are summed up, with random signs, to so many numbers: products of
two of them stay the same in the mean."""


def sketch_of(like: Tensors, generator: torch.Generator) -> Callable[[str, Tensor], Tensor]:
    """(name, tensor) to a row; of large tensors it has sums of entries with random signs."""
    maps: dict[str, tuple[Tensor, Tensor]] = {}
    for name, values in like.items():
        if values.numel() > WIDTH:
            drawn = normal_like(values.new_empty(2, values.numel()), generator)
            places = (WIDTH * torch.special.ndtr(drawn[0])).long().clamp(0, WIDTH - 1)
            maps[name] = (places, drawn[1].sign())

    def sketch(name: str, values: Tensor) -> Tensor:
        if name not in maps:
            return values.flatten()
        places, signs = maps[name]
        return values.new_zeros(WIDTH).index_add_(0, places, values.flatten() * signs)

    return sketch


@dataclass(frozen=True)
class Regress(LabelledSearch):
    """The inputs as a linear function of the message, fitted to messages of random inputs.

    The attacker draws random images with the spectrum of photographs (no data set; other inputs:
    normal numbers), computes the message of each batch with the labels of the one that was sent,
    and fits

        E[x | y] ≈ mean of x + Σ_n k(y, y_n) α_n

    by ridge regression, k being the product of messages, tensor by tensor, weighted by how well
    each tensor alone predicts samples that are left out. What the message does not tell stays at
    the mean, so the estimate is seldom worse than a blind guess. It follows no derivative: the
    kinks and max-pools that lead a descent astray do not matter. So it is a good start for a
    descent, and better than the end of one that explains nothing. A sample costs one gradient.

    >>> Regress(samples=20)(seen, torch.Generator().manual_seed(0)).inputs.shape
    torch.Size([1, 3])
    """

    samples: int = 300

    def search(self, run: Run) -> Reconstruction:
        """The estimate; the middle of the range where the samples teach nothing."""
        inputs, count = self.estimate(run, run.generator, run.watch)
        status = TIME_BUDGET if count < self.samples else FINISHED
        return Reconstruction(inputs, run.labels, run.misfit(inputs), status)

    def estimate(self, run: Run, generator: torch.Generator, watch: Watch) -> tuple[Tensor, int]:
        """The inputs, and from how many samples: as many as the time allows, at least 16.

        Where they teach nothing this is their mean, still a better start of a descent than noise:
        of BatchNorm in training mode noise in the start is noise in the end.
        """
        seen, message = run.observation, run.observation.message(run.labels)
        size = seen.batch_size
        drawn = random_examples(seen, self.samples * size, generator).unflatten(0, (-1, size))
        sketch, rows = sketch_of(seen.sent, generator), list[Tensors]()
        for number, batch in enumerate(drawn):
            if number >= 16 and watch.is_over():
                break
            made = message(batch)
            rows.append({name: sketch(name, part.detach()) for name, part in made.items()})
            if self.progress is not None:
                self.progress(number + 1, self.samples, 1.0)
        directions = normal_like(drawn.new_empty(drawn[0].numel(), 64), generator)
        targets = drawn[: len(rows)].flatten(1).double()
        centred = targets - targets.mean(0)
        judged = centred @ directions.double()  # in random directions of the inputs
        kernels, products, weights = [], [], []
        for name in rows[0]:
            values = torch.stack([row[name] for row in rows])
            mean = values.mean(0)
            values, own = values - mean, sketch(name, seen.sent[name]) - mean
            power = values.square().sum(1).mean()
            if bool(power > 0):  # each tensor weighs as its error on samples left out to the -16
                kernels.append((values @ values.T / power).double())
                products.append((values @ own / power).double())
                weights.append(choose_ridge(kernels[-1], judged).error ** -16)
        share = torch.tensor(weights, dtype=torch.float64, device=judged.device)
        share = share / share.sum()
        kernel, row = (torch.tensordot(share, torch.stack(p), 1) for p in (kernels, products))
        found = targets.mean(0) + row @ fit_ridge(kernel, centred, choose_ridge(kernel, judged))
        return run.clamp(found.to(drawn).view(drawn.shape[1:])), len(rows)
