"""A denoiser: the best guess of an example from itself with Gaussian noise."""

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradveil._batches import check_labels, check_pair, check_shape
from gradveil._checks import (
    check_count,
    check_inputs,
    check_kind,
    check_not_negative_count,
    check_number,
    check_optional_callable,
    check_positive,
)
from gradveil._random import generator_or_fresh

from ._file import read_archive, write_archive
from ._networks import network_for
from ._training import Progress, train

LEVELS = (0.02, 3.0)
"""The noise levels that are learned, over the spread of the samples."""


@dataclass(frozen=True)
class Denoiser:
    """D(z, τ) ≈ E[x | z] for z = x + τ n, n ~ N(0, I): learned from examples, any level at once.

    The best denoiser knows the score of the examples with noise, ∇log p_τ(z) = (E[x | z] - z) / τ²
    (Tweedie's formula). This one is the network F with the scalings of Karras et al. (2022),
    D = c_skip z + c_out F(c_in z, τ), c_skip = s² / (s² + τ²), s being the spread of the samples:
    all that it has to learn is what a Gaussian with that spread does not say.

    Make one with `Denoiser.fit`.
    """

    network: nn.Module
    shape: tuple[int, ...]
    """Of one example."""
    centre: float
    """The mean of all entries of the samples."""
    spread: float
    """Their root mean square around it."""
    levels: tuple[float, float]
    """The lowest and the highest noise level that it was trained for."""
    classes: int = 0
    """How many classes it tells apart; 0: trained without labels."""
    width: int | None = None
    """Of the network; `None`: its default."""

    def __post_init__(self) -> None:
        check_kind(self.network, "network", nn.Module, "Use `Denoiser.fit(samples)`.")
        check_shape(self.shape, "shape")
        check_number(self.centre, "centre")
        check_positive(self.spread, "spread")
        low, high = check_pair(self.levels, "levels")
        check_positive(low, "levels")
        check_positive(high, "levels")
        if low > high:
            raise ValueError(
                f"Parameter `levels` should have the lowest first. Found `levels = {(low, high)}`."
            )
        check_not_negative_count(self.classes, "classes")

    @classmethod
    def fit(
        cls,
        samples: Tensor,
        labels: Tensor | None = None,
        *,
        levels: tuple[float, float] | None = None,
        steps: int = 2000,
        batch_size: int = 64,
        lr: float = 2e-3,
        width: int | None = None,
        generator: torch.Generator | None = None,
        progress: Progress | None = None,
    ) -> "Denoiser":
        """Train a denoiser on samples: minutes on a processor for 5,000 images of MNIST.

        Args:
            samples: Examples first. Keep some back: only on others its error means anything.
            labels: A class for each sample. It then denoises with or without being told the class.
            levels: The lowest and the highest noise level; 0.02 and 3 spreads of the samples if
                left out.
            steps: Of the optimiser.
            batch_size: Samples in a step, each with a level and noise of its own.
            lr: Adam's rate at the start; it falls to 0 along a cosine.
            width: Channels (hidden units) of the network.
            generator: Of weights, batches, levels and noise: equal seeds give equal denoisers.
            progress: Called with (step, steps, loss).
        """
        check_samples(samples, labels)
        _check_fit(steps, batch_size, lr, width, progress)
        centre = float(samples.mean())
        spread = max(float(samples.std(correction=0)), torch.finfo(torch.float32).tiny)
        levels = (LEVELS[0] * spread, LEVELS[1] * spread) if levels is None else levels
        classes = 0 if labels is None else int(labels.max()) + 1
        shape = tuple(samples.shape[1:])
        generator = generator_or_fresh(generator)
        network = _fresh(shape, classes, width, generator).to(samples.device)
        made = cls(network, shape, centre, spread, levels, classes, width)
        train(made, samples, labels, steps, batch_size, lr, generator, progress)
        return made

    def __call__(
        self, noisy: Tensor, level: float | Tensor, labels: Tensor | None = None
    ) -> Tensor:
        """The best guess of each example.

        Args:
            noisy: Examples first.
            level: τ, for all or for each of them.
            labels: Their classes, where they are known and it was trained with classes.
        """
        level = torch.as_tensor(level, dtype=noisy.dtype, device=noisy.device).expand(len(noisy))
        own = level.view(-1, *[1] * (noisy.dim() - 1))
        variance = self.spread**2 + own**2
        centred = noisy - self.centre
        predicted = self.network(
            (centred / variance.sqrt()).to(self._dtype),
            (level / self.spread).log().to(self._dtype) / 2,
            self.known(labels, noisy),
        )
        scale = own * self.spread / variance.sqrt()
        kept = self.spread**2 / variance
        guess: Tensor = self.centre + kept * centred + scale * predicted.to(noisy.dtype)
        return guess

    def known(self, labels: Tensor | None, noisy: Tensor) -> Tensor:
        """The row of each example's class: the last one where nothing is told."""
        if labels is None or not self.classes:
            return torch.full((len(noisy),), self.classes, device=noisy.device)
        return labels.to(noisy.device)

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.network.parameters()).dtype

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything into one `.npz` file, without pickle, all of it or nothing."""
        header = {name: getattr(self, name) for name in _PLAIN}
        write_archive(path, header, self.network.state_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Denoiser":
        """Read what `save` wrote."""
        return read_archive(path, _restored)


_PLAIN = ("shape", "centre", "spread", "levels", "classes", "width")


def _restored(header: dict[str, Any], arrays: dict[str, Tensor]) -> Denoiser:
    header |= {name: tuple(header[name]) for name in ("shape", "levels")}
    network = network_for(header["shape"], header["classes"], header["width"])
    network.load_state_dict(arrays)
    return Denoiser(network.requires_grad_(False).eval(), **header)


def _fresh(
    shape: tuple[int, ...], classes: int, width: int | None, generator: torch.Generator
) -> nn.Module:
    """A new network whose weights depend on the generator alone."""
    seed = int(torch.randint(2**62, (1,), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return network_for(shape, classes, width)


def check_samples(samples: Tensor, labels: Tensor | None, least: int = 2) -> None:
    """Require several examples, and where there are labels one for each."""
    check_inputs(samples, "samples")
    if len(samples) < least or samples.dim() < 2:
        raise ValueError(
            f"Parameter `samples` should hold at least {least} examples, of shape (N, ...). Found"
            f" `samples.shape = {tuple(samples.shape)}`."
        )
    if labels is None:
        return
    check_labels(labels, "labels")
    if labels.shape != (len(samples),):
        raise ValueError(
            f"Parameter `labels` should hold one class for each of {len(samples)} samples. Found"
            f" `labels.shape = {tuple(labels.shape)}`."
        )


def _check_fit(
    steps: int, batch_size: int, lr: float, width: int | None, progress: Progress | None
) -> None:
    check_count(steps, "steps")
    check_count(batch_size, "batch_size")
    check_positive(lr, "lr")
    if width is not None:
        check_count(width, "width")
    check_optional_callable(progress, "progress", "Give a function, or None.")
