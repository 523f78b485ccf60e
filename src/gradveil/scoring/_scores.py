"""Scores of reconstructions: images as a whole; texts and tables piece by piece."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gradveil._checks import WrongType, WrongValue, check_flag, check_inputs, check_tensor
from gradveil._imports import require
from gradveil.data import IDENTITY, Dataset, NormalizationLike, TableLayout, resolve_normalization


def match(reconstruction: Tensor, truth: Tensor) -> Tensor:
    """For each image of the truth the place of its partner: least total squared error."""
    a, b = (x.detach().to("cpu", torch.float64).flatten(1) for x in (truth, reconstruction))
    errors = a.square().sum(1)[:, None] + b.square().sum(1)[None, :] - 2 * a @ b.T
    return best_pairs(errors).to(truth.device)


def best_pairs(costs: Tensor) -> Tensor:
    """For each row the column of its partner: the least total cost."""
    require("matching images", "gradveil[audit]", "scipy")
    from scipy.optimize import linear_sum_assignment  # only attackers' scores need it

    return torch.as_tensor(linear_sum_assignment(costs.cpu().numpy())[1])


def _psnr(mse: Tensor) -> Tensor:
    """10 log10(1 / mse) for errors in [0, 1] units; a copy has 120 dB and not infinitely many."""
    return -10 * torch.log10(mse.clamp_min(1e-12))


def structural_similarity(reconstruction: Tensor, truth: Tensor) -> Tensor | None:
    """SSIM of each pair of images in [0, 1] units; `None` for images smaller than 3x3.

    The usual window is Gaussian, σ = 1.5, 11x11. Where an image is smaller than that, σ shrinks so
    that the window still fits; such values compare with each other, not with those of large images.

    Reference: Wang et al., "Image Quality Assessment: From Error Visibility to Structural
    Similarity", IEEE TIP 2004.
    """
    radius = min(5, (min(truth.shape[-2:]) - 1) // 2)
    if radius < 1:
        return None
    require("SSIM", "gradveil[audit]", "torchmetrics")
    from torchmetrics.functional.image import structural_similarity_index_measure as measure

    sigma = min(1.5, radius / 3.5)
    values = measure(reconstruction, truth, sigma=sigma, reduction="none", data_range=1.0)
    return torch.as_tensor(values).reshape(len(truth))


class Guess(Protocol):
    """What can be scored: a `Reconstruction`, or what has these two; unknown labels are -1."""

    @property
    def inputs(self) -> Tensor: ...

    @property
    def targets(self) -> Tensor: ...


@dataclass(frozen=True)
class Scores:
    """Per-image scores, in the order of the truth. Tensors have one entry for each image.

    Which image of a batch comes back in which place is arbitrary where labels repeat or are not
    known, so the scores are those of the `assignment` with the least mean squared error; the
    `unmatched` ones compare place by place, as much of the literature does.

    >>> far = score(torch.tensor([[0.5], [0.0]]), torch.tensor([[0.0], [1.0]]))
    >>> isinstance(far, Scores), far.mse.tolist(), far.unmatched_mse.tolist()
    (True, [0.0, 0.25], [0.25, 1.0])
    """

    mse: Tensor
    """Mean squared error per entry in normalised units, the unit of the bound; not clamped."""
    mse_pixels: Tensor
    """The same in [0, 1] units, after clamping to [0, 1] as a viewer would."""
    psnr: Tensor | None
    """Of `mse_pixels` in dB, at most 120; `None` for inputs that are not images."""
    ssim: Tensor | None
    """`None` if not asked for, not images, or smaller than 3x3."""
    label_accuracy: float | None
    """The share of labels found, order ignored: Σ_c min(n_c, n̂_c) / B. Of several labels for each
    example, those in their places, examples matched by them. `None` without labels, and for targets
    that are numbers."""
    assignment: Tensor
    """`assignment[i]` is the place of the reconstruction that was matched to image i."""
    unmatched_mse: Tensor
    unmatched_psnr: Tensor | None
    unmatched_ssim: Tensor | None


def score(
    reconstruction: Guess | Tensor,
    truth: tuple[Tensor, Tensor] | Tensor,
    *,
    normalization: Dataset | NormalizationLike = None,
    ssim: bool = True,
) -> Scores:
    """Score a reconstruction against the truth, which no attack has seen.

    Inputs of shape (B, C, H, W) are images; others have no PSNR and no SSIM, which needs
    `torchmetrics`.

    Args:
        truth: The private inputs, or these and their labels.
        normalization: The data set, its name ("mnist", "cifar10") or its (mean, std): the way back
            to [0, 1] units. Inputs are in these units already if `None`.

    >>> image = torch.linspace(0, 1, 256).reshape(1, 1, 16, 16)
    >>> batch = torch.cat([image, image.flip(-1)])
    >>> scores = score(batch.flip(0) + 0.01, batch, ssim=False)
    >>> scores.assignment.tolist(), round(float(scores.psnr.mean()))
    ([1, 0], 40)
    """
    check_flag(ssim, "ssim")
    guesses, guessed_labels = parts(reconstruction, "reconstruction")
    inputs, labels = parts(truth, "truth")
    check_inputs(inputs, "truth")
    check_inputs(guesses, "reconstruction")
    check_shapes(guesses, inputs)
    guesses, inputs = guesses.detach().to(inputs), inputs.detach()
    assignment = match(guesses, inputs)
    pixels, true_pixels = (_to_pixels(x, normalization).clamp(0, 1) for x in (guesses, inputs))
    ordered, images = (pixels[assignment], pixels), inputs.dim() == 4
    errors = [_mse(each, true_pixels) for each in ordered]
    psnrs = [_psnr(error) if images else None for error in errors]
    similar = structural_similarity if images and ssim else lambda *_: None
    ssims = [similar(each, true_pixels) for each in ordered]
    return Scores(
        mse=_mse(guesses[assignment], inputs),
        mse_pixels=errors[0],
        psnr=psnrs[0],
        ssim=ssims[0],
        label_accuracy=_label_accuracy(guessed_labels, labels),
        assignment=assignment,
        unmatched_mse=_mse(guesses, inputs),
        unmatched_psnr=psnrs[1],
        unmatched_ssim=ssims[1],
    )


def _mse(guesses: Tensor, truth: Tensor) -> Tensor:
    return (guesses - truth).square().flatten(1).mean(dim=1)


def _to_pixels(inputs: Tensor, normalization: Dataset | NormalizationLike) -> Tensor:
    if not isinstance(normalization, Dataset):
        normalization = resolve_normalization(normalization) or IDENTITY
    channels = inputs.shape[1] if inputs.dim() > 1 else 1
    if {len(normalization.mean), len(normalization.std)} - {1, channels}:
        expected = f"hold one mean and standard deviation, or {channels}, one for each channel"
        found = f"{len(normalization.mean)} means and {len(normalization.std)} deviations"
        raise WrongValue("normalization", expected, found, "Use those of the data.")
    trailing = [1] * (inputs.dim() - 2)
    mean, std = (
        torch.tensor(numbers, dtype=inputs.dtype, device=inputs.device).reshape(-1, *trailing)
        for numbers in (normalization.mean, normalization.std)
    )
    return inputs * std + mean


def _label_accuracy(guessed: Tensor | None, truth: Tensor | None) -> float | None:
    if guessed is None or truth is None or truth.is_floating_point():
        return None
    if truth.dim() > 1:
        if guessed.shape != truth.shape:
            return None
        shares = (guessed.cpu()[None] == truth.cpu()[:, None]).flatten(2).double().mean(-1)
        return float(shares.gather(1, best_pairs(-shares)[:, None]).mean())
    guessed, truth = (labels[labels >= 0].cpu() for labels in (guessed, truth))  # -1: not told
    size = int(torch.cat([guessed, truth]).max()) + 1
    both = [torch.bincount(labels, minlength=size) for labels in (guessed, truth)]
    return float(torch.minimum(*both).sum()) / len(truth)


def parts(batch: Guess | tuple[Tensor, Tensor] | Tensor, name: str) -> tuple[Tensor, Tensor | None]:
    """The inputs and the labels of what is to be scored."""
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        check_tensor(batch[1], name)
        return batch[0], batch[1]
    if isinstance(batch, (tuple, list)) or not hasattr(batch, "targets"):
        expected = "be inputs, or a pair of inputs and labels"
        raise WrongType(name, expected, type(batch).__name__, "Give tensors.")
    return batch.inputs, batch.targets


def check_shapes(guesses: Tensor, truth: Tensor) -> None:
    """Require a guess for each entry of the truth."""
    if guesses.shape != truth.shape:
        found = f"{tuple(guesses.shape)} instead of {tuple(truth.shape)}"
        advice = "Score each batch by itself."
        raise WrongValue("reconstruction", "have the shape of `truth`", found, advice)


TOLERANCE = 0.319
"""In standard deviations: about a quarter of normal numbers are within it around their mean."""


@dataclass(frozen=True)
class PieceScores:
    """Which pieces of each example were found, examples in the order of the truth.

    Examples of a batch come back in any order: these are the scores of the `assignment` with the
    most pieces found.

    >>> PieceScores({"tokens": torch.tensor([[True, False]])}, torch.tensor([0])).summary()
    {'accuracy': 0.5, 'tokens': 0.5}
    """

    found: Mapping[str, Tensor]
    """By the kind of piece whether each one was found, shape (examples, pieces)."""
    assignment: Tensor
    """`assignment[i]` is the place of the reconstruction that was matched to example i."""

    @property
    def accuracy(self) -> Tensor:
        """The share of pieces found, for each example."""
        return torch.cat([*self.found.values()], 1).double().mean(1)

    def summary(self) -> dict[str, float]:
        """The mean over examples and pieces, of all and by kind where there are such pieces."""
        kinds = {name: hits for name, hits in self.found.items() if hits.numel()}
        means = {name: float(hits.double().mean()) for name, hits in kinds.items()}
        return {"accuracy": float(self.accuracy.mean()), **means}


def score_table(
    reconstruction: Guess | Tensor, truth: tuple[Tensor, Tensor] | Tensor, layout: TableLayout
) -> PieceScores:
    """Score rebuilt rows, column by column, as TabLeak does.

    A category is found if it is the right one, a number if it is off by at most `TOLERANCE`.

    Reference: Vero et al., "TabLeak: Tabular Data Leakage in Federated Learning", ICML 2023,
    arXiv:2210.01785.

    >>> layout = TableLayout.of(continuous=1, categories=[2])
    >>> truth = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 1.0]])
    >>> score_table(torch.tensor([[2.1, 0.4, 0.6], [0.5, 0.9, 0.1]]), truth, layout).summary()
    {'accuracy': 0.75, 'continuous': 0.5, 'categorical': 1.0}
    """
    (found, _), (rows, _) = parts(reconstruction, "reconstruction"), parts(truth, "truth")
    layout.check(rows, "truth")
    layout.check(found, "reconstruction")
    check_shapes(found, rows)
    found = found.detach().to(rows)
    guesses, each = found[None], rows[:, None]
    near = (layout.numbers(guesses) - layout.numbers(each)).abs() <= TOLERANCE
    same = layout.categories(guesses) == layout.categories(each)
    nearest = 1e-6 * torch.cdist(rows.double(), found.double())  # of as many columns
    return _matched({"continuous": near, "categorical": same}, nearest)


def score_tokens(
    reconstruction: Guess | Tensor, truth: tuple[Tensor, Tensor] | Tensor
) -> PieceScores:
    """Score reconstructed ids of shape (batch, length): a token is found if it is in its place.

    >>> truth = torch.tensor([[1, 2, 3], [7, 5, 6]])
    >>> scores = score_tokens(torch.tensor([[7, 5, 4], [1, 2, 3]]), truth)
    >>> scores.assignment.tolist(), scores.accuracy.tolist()
    ([1, 0], [1.0, 0.666...])
    """
    (guess, _), (wanted, _) = parts(reconstruction, "reconstruction"), parts(truth, "truth")
    check_inputs(wanted, "truth", tokens=True)
    check_inputs(guess, "reconstruction", tokens=True)
    check_shapes(guess, wanted)
    if wanted.dim() != 2:
        raise WrongValue("truth", "have the shape (batch, length)", str(tuple(wanted.shape)))
    return _matched({"tokens": guess.to(wanted)[None] == wanted[:, None]})


def _matched(found: Mapping[str, Tensor], penalty: Tensor | float = 0.0) -> PieceScores:
    """Of tables (truth, guess, pieces); where as many pieces are found, the penalty decides."""
    costs = penalty - torch.cat([*found.values()], -1).sum(-1).double()
    chosen = best_pairs(costs).to(costs.device)
    places = torch.arange(len(chosen), device=costs.device)
    return PieceScores({name: hits[places, chosen] for name, hits in found.items()}, chosen)
