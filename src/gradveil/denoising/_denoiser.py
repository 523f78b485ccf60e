"""A denoiser, the best guess of an example from itself with Gaussian noise, and its prior."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce

import torch
from torch import Tensor, nn

from gradveil._checks import (
    WrongValue,
    check_callable,
    check_count,
    check_inputs,
    check_labels,
    check_optional_callable,
    check_positive,
)
from gradveil._random import generator_or_fresh, normal_like
from gradveil.theory import BoundCase, GaussianPrior, Prior, largest_information

Progress = Callable[[int, int, float], None]
"""Called with (step, steps in all, loss of the step)."""


@dataclass(frozen=True)
class Denoiser:
    """D(z, τ) ≈ E[x | z] for z = x + τ n, n ~ N(0, I): learned from examples, any level at once.

    The best denoiser knows the score of the examples with noise, ∇log p_τ(z) = (E[x | z] - z) / τ²
    (Tweedie's formula). This one is the network F with the scalings of Karras et al. (2022),
    D = c_skip z + c_out F(c_in z, τ), c_skip = s² / (s² + τ²), s being the spread of the samples:
    all that it has to learn is what a Gaussian with that spread does not say.
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
            image = samples.dim() == 4 and not any(side % 4 for side in samples.shape[2:])
            kind = ImageNet if image else VectorNet
            network = kind(samples.shape[1:], classes).to(samples.device)
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
    """A UNet of three sizes: half the image (four pixels become channels), a quarter and back.

    An image's sides must be divisible by 4.
    """

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
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

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
    """A residual perceptron of three hidden layers, for all other examples."""

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


def _linear_score(
    samples: Tensor, labels: Tensor | None, level: float
) -> tuple[Tensor, Callable[[Tensor, Tensor | None], Tensor]]:
    """(C + τ²)⁻¹, C the samples' covariance (within classes), and ℓ(z) = -(C + τ²)⁻¹ (z - μ).

    That is the best linear score, with μ of the class where labels are told.
    """
    prior = GaussianPrior.fit(samples, labels=labels)
    smoothed = prior.covariance + level**2 * torch.eye(len(prior.covariance)).to(prior.mean)
    information = torch.cholesky_inverse(torch.linalg.cholesky(smoothed))
    means = prior.mean[None]
    if labels is not None:
        flat, count = samples.flatten(1).double(), int(labels.max()) + 1
        sums = flat.new_zeros(count, flat.shape[1]).index_add_(0, labels.to(flat.device), flat)
        numbers = torch.bincount(labels.to(flat.device), minlength=count).clamp(min=1)
        means = sums / numbers[:, None]

    def score(noisy: Tensor, known: Tensor | None) -> Tensor:
        own = means[0] if known is None else means[known.to(means.device)]
        return (own - noisy.flatten(1).double()) @ information

    return information, score


def score_information(
    denoiser: "Denoise",
    samples: Tensor,
    labels: Tensor | None,
    level: float,
    generator: torch.Generator,
) -> tuple[Tensor, float]:
    """J_P = E[s sᵀ] at z = x + τn as far as a learned score ŝ = (D(z) - z) / τ² shows it.

    The true score is s = ℓ + q, where q has nothing in common with any linear function of z, so
    J_P = (C + τ²)⁻¹ + E[q qᵀ]. What is learned of q is r = ŝ - ℓ, with the moments M = E[r rᵀ] and
    A = E[r (t - ℓ)ᵀ] = E[r qᵀ], t = -n / τ having the mean s given z. By Cauchy's inequality
    tr(P E[q qᵀ]) ≥ tr(P A)² / tr(P M) for every projection P, with equality where r is proportional
    to q. P runs over 16 bands of eigenvectors of M; within a band the eigenvalues are M's, times
    (tr(P A) / tr(P M))². In the mean over many entries A is known well; entry by entry it is not,
    for t is mostly noise. J_P is at most 1 / τ². It is never more than there is but for chance.

    Returns J_P, and E‖D(z) - x‖² per entry.
    """
    known, linear = _linear_score(samples, labels, level)
    size = samples[0].numel()
    squares, products = torch.zeros(2, size, size, dtype=torch.float64, device=samples.device)
    error, draws = 0.0, 8  # of noise, for each sample
    count = draws * len(samples)
    for index in torch.arange(len(samples)).split(256):
        clean, told = samples[index], None if labels is None else labels[index]
        for _ in range(draws):
            noise = normal_like(clean, generator)
            noisy = clean + level * noise
            with torch.no_grad():
                guess = denoiser(noisy, level, told)
            straight = linear(noisy, told)
            beyond = (guess - noisy).flatten(1).double() / level**2 - straight
            squares += beyond.T @ beyond / count
            products += beyond.T @ (noise.flatten(1).double() / -level - straight) / count
            error += float((guess - clean).square().sum()) / (count * size)
    values, vectors = torch.linalg.eigh(squares)
    shown = ((vectors.T @ products) * vectors.T).sum(1)
    bands = torch.arange(len(values)).tensor_split(min(16, len(values)))
    totals = torch.stack([values[band].sum() for band in bands])
    learned = torch.stack([shown[band].sum() for band in bands]) / totals
    learned = torch.where(totals > 0, learned, 0.0).clamp(min=0)  # 0 where nothing was
    factors = [share.expand(len(band)) for share, band in zip(learned, bands, strict=True)]
    beyond = (vectors * (values.clamp(min=0) * torch.cat(factors).square())) @ vectors.T
    values, vectors = torch.linalg.eigh(known + beyond)
    matrix: Tensor = (vectors * values.clamp(max=level**-2)) @ vectors.T
    return (matrix + matrix.T) / 2, error


Denoise = Callable[[Tensor, float, Tensor | None], Tensor]
"""From examples with noise, its level and their labels to guesses of the examples."""


@dataclass(frozen=True)
class LearnedPrior(Prior):
    """What a denoiser D knows of examples x, from its error on x_τ = x + τ n, n ~ N(0, I).

    The score of x_τ is s(z) = (E[x | z] - z) / τ² (Tweedie's formula), and its information is

        J_τ = E[s sᵀ] = I / τ² - E[Cov(x | x_τ)] / τ⁴,   tr J_τ = n / τ² - MMSE(τ) / τ⁴.

    Pixels with atoms (a black border) have infinite information; with noise they have 1 / τ². The
    bound is tr (J_D + K⁻¹)⁻¹ with K = J_τ⁻¹ - τ². The Gaussian of covariance K has the error of the
    examples at noise τ, and a smaller one at more noise: their curves cross once (Guo, Wu, Shamai
    and Verdú, 2011). So it holds where the message tells at most as much as x_τ does,
    J_D ≤ I / τ² (`largest`), and is nearly linear.

    For Gaussian examples K is their covariance, and the bound is exact. A learned D has a larger
    error than the best one, so that it shows too little of J_τ: **bounds with this prior err
    upwards**. A better denoiser can only lower them; they are never above those of the fitted
    Gaussian.

    >>> LearnedPrior(torch.eye(3), level=0.5).level
    0.5
    """

    information: Tensor
    """J_τ of one example, shape (n, n), positive definite and at most 1 / τ²."""
    level: float
    """τ."""
    name: str = "learned"
    error: float | None = None
    """The denoiser's mean squared error per entry on held-out samples, above MMSE(τ) / n."""
    precision: Tensor = field(init=False, repr=False)
    covariance: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_inputs(self.information, "information")
        check_positive(self.level, "level")
        shape = self.information.shape
        if len(shape) != 2 or shape[0] != shape[1]:
            raise WrongValue("information", "have the shape (n, n)", str(tuple(shape)))
        values, vectors = torch.linalg.eigh(self.information.double())
        if not 0 < float(values.min()) <= float(values.max()) <= 1.001 * self.level**-2:
            found = f"eigenvalues from {float(values.min()):.3g} to {float(values.max()):.3g}"
            expected = "be positive definite and at most 1 / level²"
            raise WrongValue("information", expected, found, "Take more samples or draws.")
        known = values.reciprocal() - self.level**2
        known = known.clamp(min=1e-10 * float(known.max()))  # no direction is known for sure
        object.__setattr__(self, "covariance", (vectors * known) @ vectors.T)
        object.__setattr__(self, "precision", (vectors / known) @ vectors.T)

    @property
    def largest(self) -> float:
        """Of the information of a message in any direction, where the bound holds."""
        return self.level**-2

    @classmethod
    def measure(
        cls,
        denoiser: Denoise,
        samples: Tensor,
        labels: Tensor | None = None,
        *,
        level: float,
        generator: torch.Generator | None = None,
    ) -> "LearnedPrior":
        """J_τ from what a denoiser does to samples that it was not trained on.

        Args:
            denoiser: A `Denoiser`, or any function of (noisy examples, level, labels).
            samples: Held-out examples: eight times as many should be several for each entry.
            labels: Their classes, where the attacker is told them.
            level: τ. For a message of information J_D: 1 / √λ, λ the largest eigenvalue.
        """
        check_callable(denoiser, "denoiser", "Use `Denoiser.fit(samples)`.")
        check_samples(samples, labels)
        check_positive(level, "level")
        low, high = denoiser.levels if isinstance(denoiser, Denoiser) else (0.0, torch.inf)
        if not low <= level <= high:
            expected = f"be one that the denoiser was trained for, from {low:.3g} to {high:.3g}"
            raise WrongValue("level", expected, f"{level:.3g}", "Choose one of these.")
        level, generator = float(level), generator_or_fresh(generator)
        found, error = score_information(denoiser, samples, labels, level, generator)
        within = "" if labels is None else " within classes"
        name = (
            f"learned{within}: a denoiser whose error at noise {level:.3g} is {error:.3g} per entry"
            f" on {len(samples)} held-out samples (not the least possible, so the bound errs"
            " upwards)"
        )
        return cls(found, level, name, error)


@dataclass(frozen=True)
class LearnedPriors:
    """A denoiser and samples that it was not trained on: a `LearnedPrior` for each noise level.

    >>> samples = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    >>> len(LearnedPriors.fit(samples, steps=5, generator=torch.Generator().manual_seed(1)).samples)
    12
    """

    denoiser: Denoiser
    samples: Tensor
    labels: Tensor | None = None

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
        """`Denoiser.fit` on four fifths of the samples; the rest is kept to measure on."""
        check_samples(samples, labels, least=10)
        generator = generator_or_fresh(generator)
        order = torch.randperm(len(samples), generator=generator).to(samples.device)
        kept, taught = order.tensor_split([len(samples) // 5])
        known, others = (None, None) if labels is None else (labels[taught], labels[kept])
        denoiser = Denoiser.fit(
            samples[taught], known, steps=steps, generator=generator, progress=progress
        )
        return cls(denoiser, samples[kept], others)

    def at(self, level: float, generator: torch.Generator | None = None) -> LearnedPrior:
        """The prior at noise τ, brought into the range that the denoiser was trained for."""
        low, high = self.denoiser.levels
        level, known = min(max(level, low), high), (self.samples, self.labels)
        return LearnedPrior.measure(self.denoiser, *known, level=level, generator=generator)

    def covering(
        self, cases: Sequence[BoundCase], generator: torch.Generator | None = None
    ) -> LearnedPrior:
        """The prior for what these batches tell: at noise 1 / √λ, λ the largest eigenvalue of J_D.

        With less noise it is valid, too, and its bound smaller; with more it is not.
        """
        generator = generator_or_fresh(generator)
        largest = largest_information(cases, generator)
        return self.at(largest**-0.5 if largest > 0 else float("inf"), generator=generator)
