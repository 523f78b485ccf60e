"""The learned priors of all noise levels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_count
from gradveil._random import generator_or_fresh
from gradveil.theory import BoundCase, largest_information

from ._denoiser import Denoiser, check_samples
from ._learned_prior import LearnedPrior
from ._training import Progress

HELD_OUT = 5
"""One sample in so many is kept back, to measure on."""


@dataclass(frozen=True)
class LearnedPriors:
    """A denoiser and samples that it was not trained on: a `LearnedPrior` for each noise level.

    >>> from gradveil.denoising import Denoiser
    >>> samples = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    >>> denoiser = Denoiser.fit(samples[:32], steps=5, generator=torch.Generator().manual_seed(1))
    >>> type(LearnedPriors(denoiser, samples[32:])).__name__
    'LearnedPriors'
    """

    denoiser: Denoiser
    samples: Tensor
    labels: Tensor | None = None

    def __post_init__(self) -> None:
        check_samples(self.samples, self.labels)

    @classmethod
    def fit(
        cls,
        samples: Tensor,
        labels: Tensor | None = None,
        *,
        steps: int = 2000,
        generator: torch.Generator | None = None,
        progress: Progress | None = None,
    ) -> "LearnedPriors":
        """Train a denoiser on four fifths of the samples and keep the rest to measure on.

        Args:
            samples: Public examples.
            labels: Their classes, where the attacker is told them.
            steps: Of the training.
            generator: Of everything random.
            progress: Called with (step, steps, loss).
        """
        check_samples(samples, labels, least=2 * HELD_OUT)
        check_count(steps, "steps")
        generator = generator_or_fresh(generator)
        order = torch.randperm(len(samples), generator=generator).to(samples.device)
        taught, kept = order[len(samples) // HELD_OUT :], order[: len(samples) // HELD_OUT]
        known = (None, None) if labels is None else (labels[taught], labels[kept])
        denoiser = Denoiser.fit(
            samples[taught], known[0], steps=steps, generator=generator, progress=progress
        )
        return cls(denoiser, samples[kept], known[1])

    def at(
        self, level: float, *, draws: int = 8, generator: torch.Generator | None = None
    ) -> LearnedPrior:
        """The prior at noise τ, brought into the range that the denoiser was trained for."""
        low, high = self.denoiser.levels
        return LearnedPrior.measure(
            self.denoiser,
            self.samples,
            self.labels,
            level=min(max(level, low), high),
            draws=draws,
            generator=generator,
        )

    def covering(
        self, cases: Sequence[BoundCase], generator: torch.Generator | None = None
    ) -> LearnedPrior:
        """The prior for what these batches tell: at noise 1 / √λ, λ the largest eigenvalue of J_D.

        With less noise it is valid, too, and its bound smaller; with more it is not.
        """
        generator = generator_or_fresh(generator)
        largest = largest_information(cases, generator)
        return self.at(largest**-0.5 if largest > 0 else float("inf"), generator=generator)
