"""A denoiser, the best guess of an example from itself with Gaussian noise, and its networks."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from gradveil._batches import check_labels
from gradveil._checks import WrongValue, check_count, check_inputs, check_optional_callable
from gradveil._random import generator_or_fresh, normal_like

Progress = Callable[[int, int, float], None]
"""Called with (step, steps in all, loss of the step)."""


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
    centre: float
    """The mean of all entries of the samples."""
    spread: float
    """Their root mean square around it."""
    levels: tuple[float, float]
    """The lowest and the highest noise level that it was trained for."""
    classes: int = 0
    """How many classes it tells apart; 0: trained without labels."""

    spec_words = "learned"  # in specifications, which hold no networks

    @classmethod
    def fit(
        cls,
        samples: Tensor,
        labels: Tensor | None = None,
        *,
        steps: int = 2000,
        generator: torch.Generator | None = None,
        progress: Progress | None = None,
    ) -> "Denoiser":
        """Train a denoiser on samples: minutes on a processor for 5,000 images of MNIST.

        Minimises E ‖D(x + τn, τ) - x‖² / c_out(τ)², τ log-uniform between 0.02 and 3 spreads of the
        samples: the weight makes errors at all levels count alike (Karras et al., 2022). Adam's
        rate rises shortly, then falls to 0 along a cosine. A fifth of the samples is denoised
        without their class. The network ends with the running mean of its weights, and no
        gradients.

        Args:
            samples: Examples first. Keep some back: only on others its error means anything.
            labels: A class for each sample. It then denoises with or without being told the class.
        """
        check_samples(samples, labels)
        check_count(steps, "steps")
        check_optional_callable(progress, "progress", "Give a function, or None.")
        spread = max(float(samples.std(correction=0)), torch.finfo(torch.float32).tiny)
        classes = 0 if labels is None else int(labels.max()) + 1
        generator = generator_or_fresh(generator)
        with torch.random.fork_rng(devices=[]):  # weights depend on the generator alone
            seed = int(torch.randint(2**62, (1,), generator=generator))
            torch.default_generator.manual_seed(seed)
            network = network_for(samples.shape[1:], classes).to(samples.device)
        levels = 0.02 * spread, 3.0 * spread
        made = cls(network, float(samples.mean()), spread, levels, classes)
        weights = list(network.train().parameters())
        means = [weight.detach().clone() for weight in weights]
        optimiser = torch.optim.Adam(weights, betas=(0.9, 0.99))
        for step in range(steps):
            rise, fall = min(1.0, (step + 1) / 50), 0.5 * (1 + math.cos(math.pi * step / steps))
            optimiser.param_groups[0]["lr"] = 2e-3 * rise * fall
            drawn = torch.randint(len(samples), (64,), generator=generator)
            chosen = drawn.to(samples.device)
            known = None if labels is None else labels.to(samples.device)[chosen]
            loss = made._loss(samples[chosen], known, generator)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimiser.step()
            memory = min(0.998, step / (step + 10))
            for mean, weight in zip(means, weights, strict=True):
                mean.lerp_(weight.detach(), 1 - memory)
            if progress is not None:
                progress(step + 1, steps, float(loss.detach()))
        with torch.no_grad():
            for weight, mean in zip(weights, means, strict=True):
                weight.copy_(mean)
        network.requires_grad_(False).eval()
        return made

    def _loss(self, samples: Tensor, labels: Tensor | None, generator: torch.Generator) -> Tensor:
        """Of a batch, each sample with a level and noise of its own."""
        low, high = (math.log(level) for level in self.levels)
        share = torch.rand(len(samples), generator=generator).to(samples)
        level = (low + share * (high - low)).exp()
        known = self.known(labels, samples)
        if labels is not None:
            untold = torch.rand(len(samples), generator=generator).to(samples) < 0.2
            known = torch.where(untold, self.classes, known)
        own = level.view(-1, *[1] * (samples.dim() - 1))
        noisy = samples + own * normal_like(samples, generator)
        errors = (self(noisy, level, known) - samples).square().flatten(1).mean(1)
        return (errors * (level**-2 + self.spread**-2)).mean()

    def __call__(
        self, noisy: Tensor, level: float | Tensor, labels: Tensor | None = None
    ) -> Tensor:
        """The best guess of each example, from its level τ and its class as far as it is known."""
        level = torch.as_tensor(level, dtype=noisy.dtype, device=noisy.device).expand(len(noisy))
        own = level.view(-1, *[1] * (noisy.dim() - 1))
        variance = self.spread**2 + own**2
        centred = noisy - self.centre
        dtype = next(self.network.parameters()).dtype
        scaled, place = (centred / variance.sqrt()).to(dtype), (level / self.spread).log().to(dtype)
        predicted = self.network(scaled, place / 2, self.known(labels, noisy))
        scale = own * self.spread / variance.sqrt()
        kept = self.spread**2 / variance
        guess: Tensor = self.centre + kept * centred + scale * predicted.to(noisy.dtype)
        return guess

    def known(self, labels: Tensor | None, noisy: Tensor) -> Tensor:
        """The row of each example's class: the last one where nothing is told."""
        if labels is None or not self.classes:
            return torch.full((len(noisy),), self.classes, device=noisy.device)
        return labels.to(noisy.device)


def check_samples(samples: Tensor, labels: Tensor | None, least: int = 2) -> None:
    """Require several examples, and where there are labels one for each."""
    check_inputs(samples, "samples")
    if len(samples) < least or samples.dim() < 2:
        expected = f"hold at least {least} examples, of shape (N, ...)"
        raise WrongValue("samples", expected, f"`samples.shape = {tuple(samples.shape)}`")
    if labels is None:
        return
    check_labels(labels, "labels")
    if labels.shape != (len(samples),):
        expected = f"hold one class for each of {len(samples)} samples"
        raise WrongValue("labels", expected, f"`labels.shape = {tuple(labels.shape)}`")


EMBEDDING = 64
"""Of the noise level and the class, from which every block is scaled and shifted."""


class ImageNet(nn.Module):
    """A UNet of three sizes: half the image (four pixels become channels), a quarter and back."""

    def __init__(self, shape: Sequence[int], classes: int):
        super().__init__()
        pixels, width = 4 * shape[0], 32  # channels at half size; twice as many at a quarter
        self.condition = Condition(classes)
        self.fold, self.unfold = nn.PixelUnshuffle(2), nn.PixelShuffle(2)
        self.enter = nn.Conv2d(pixels, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 2, stride=2)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.first, self.middle, self.last = (
            nn.ModuleList(ImageBlock(channels) for _ in range(2))
            for channels in (width, 2 * width, width)
        )
        self.leave = nn.Conv2d(width, pixels, 3, padding=1)

    def forward(self, inputs: Tensor, level: Tensor, labels: Tensor) -> Tensor:
        told = self.condition(level, labels)

        def through(blocks: Iterable[nn.Module], hidden: Tensor) -> Tensor:
            return reduce(lambda each, block: block(each, told), blocks, hidden)

        wide = through(self.first, self.enter(self.fold(inputs)))
        wide = wide + self.up(through(self.middle, self.down(wide)))
        predicted: Tensor = self.unfold(self.leave(nn.functional.silu(through(self.last, wide))))
        return predicted


class ImageBlock(nn.Module):
    """h + conv(silu(scale ⊙ conv(silu(h)) + shift)), scale and shift from the embedding."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.told = nn.Linear(EMBEDDING, 2 * channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, hidden: Tensor, told: Tensor) -> Tensor:
        scale, shift = self.told(told)[:, :, None, None].chunk(2, dim=1)
        inner = self.first(nn.functional.silu(hidden)) * (1 + scale) + shift
        moved: Tensor = hidden + self.second(nn.functional.silu(inner))
        return moved


class VectorNet(nn.Module):
    """A residual perceptron of three hidden layers, for examples that are no images."""

    def __init__(self, shape: Sequence[int], classes: int):
        super().__init__()
        size, width = math.prod(shape), 128
        self.condition = Condition(classes)
        self.enter, self.leave = nn.Linear(size, width), nn.Linear(width, size)
        self.layers = nn.ModuleList(nn.Linear(width + EMBEDDING, width) for _ in range(3))

    def forward(self, inputs: Tensor, level: Tensor, labels: Tensor) -> Tensor:
        told = self.condition(level, labels)
        hidden = self.enter(inputs.flatten(1))
        for layer in self.layers:
            hidden = hidden + layer(nn.functional.silu(torch.cat([hidden, told], dim=1)))
        predicted: Tensor = self.leave(nn.functional.silu(hidden)).view_as(inputs)
        return predicted


class Condition(nn.Module):
    """The embedding of a noise level and a class, with a row more for "not told"."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.level = nn.Sequential(nn.Linear(5, EMBEDDING), nn.SiLU())
        self.label = nn.Embedding(classes + 1, EMBEDDING)
        self.mix = nn.Sequential(nn.Linear(EMBEDDING, EMBEDDING), nn.SiLU())

    def forward(self, level: Tensor, labels: Tensor) -> Tensor:
        """From the level's logarithm and two of its waves, an entry for each example."""
        waves = [f(k * level) for k in (1.0, 2.0) for f in (torch.sin, torch.cos)]
        told: Tensor = self.mix(self.level(torch.stack([level, *waves], 1)) + self.label(labels))
        return told


def network_for(shape: Sequence[int], classes: int) -> nn.Module:
    """The network for examples of this shape: an image's sides must be divisible by 4."""
    image = len(shape) == 3 and shape[1] % 4 == 0 and shape[2] % 4 == 0
    if not image:
        return VectorNet(shape, classes)
    network: nn.Module = ImageNet(shape, classes)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network
