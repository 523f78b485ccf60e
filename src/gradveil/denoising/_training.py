"""How a denoiser learns: it predicts samples from themselves with noise of all levels."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradveil._random import normal_like

if TYPE_CHECKING:
    from ._denoiser import Denoiser

Progress = Callable[[int, int, float], None]
"""Called with (step, steps in all, loss of the step)."""

UNTOLD = 0.2
"""The share of samples whose class is not told, so that it learns to do without."""

MEMORY = 0.998
"""Of the mean over the last weights, which is what is kept."""


def train(
    denoiser: "Denoiser",
    samples: Tensor,
    labels: Tensor | None,
    steps: int,
    batch_size: int,
    lr: float,
    generator: torch.Generator,
    progress: Progress | None,
) -> None:
    """Minimise E ‖D(x + τn, τ) - x‖² / c_out(τ)², τ log-uniform between the levels.

    The weight makes errors at all levels count alike (Karras et al., 2022). The network ends with
    the running mean of its weights, without gradients.
    """
    network = denoiser.network.train()
    weights = list(network.parameters())
    means = [weight.detach().clone() for weight in weights]
    optimiser = torch.optim.Adam(weights, lr, betas=(0.9, 0.99))
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = _rate(lr, step, steps)
        loss = _loss(denoiser, *_batch(samples, labels, batch_size, generator), generator)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        memory = min(MEMORY, step / (step + 10))
        for mean, weight in zip(means, weights, strict=True):
            mean.lerp_(weight.detach(), 1 - memory)
        if progress is not None:
            progress(step + 1, steps, float(loss.detach()))
    with torch.no_grad():
        for weight, mean in zip(weights, means, strict=True):
            weight.copy_(mean)
    network.requires_grad_(False).eval()


def _rate(lr: float, step: int, steps: int) -> float:
    """A short rise, then a cosine."""
    return lr * min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / steps))


def _batch(
    samples: Tensor, labels: Tensor | None, size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    chosen = torch.randint(len(samples), (size,), generator=generator)
    chosen = chosen.to(samples.device)
    return samples[chosen], None if labels is None else labels.to(samples.device)[chosen]


def _loss(
    denoiser: "Denoiser", samples: Tensor, labels: Tensor | None, generator: torch.Generator
) -> Tensor:
    low, high = (math.log(level) for level in denoiser.levels)
    share = torch.rand(len(samples), generator=generator).to(samples)
    level = (low + share * (high - low)).exp()
    known = denoiser.known(labels, samples)
    if labels is not None:
        untold = torch.rand(len(samples), generator=generator).to(samples) < UNTOLD
        known = torch.where(untold, denoiser.classes, known)
    own = level.view(-1, *[1] * (samples.dim() - 1))
    noisy = samples + own * normal_like(samples, generator)
    errors = (denoiser(noisy, level, known) - samples).square().flatten(1).mean(1)
    return (errors * (level**-2 + denoiser.spread**-2)).mean()
