"""The shape of noise that public batches prove to be better than isotropic."""

from collections.abc import Iterable, Mapping, Sequence
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._checks import check_count, check_kind, check_ratio, check_structure
from gradveil._tensors import total
from gradveil.sensitivity import Moments

from ._evidence import Evidence, entries_of, pool
from ._shape import Factors, Shape

STEPS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""The exponents that are tried."""

MOST = (1.0, 0.6, 0.6, 0.6)
"""The largest exponents of tensors, rows, columns, entries. At 1 a shape from examples of another
kind loses to isotropic noise on a fresh model, where nothing tells that they are."""

MOST_FOLDS = 8
"""At most so many parts of the batches are left out in turn."""

Exponents = tuple[float, float, float, float]


def fit_shape(
    batches: Sequence[Evidence | Moments],
    *,
    size: int | None = None,
    trust: float = 1.0,
    entries: bool = True,
    curvature: bool = False,
) -> Shape:
    """r = √(E s² / E g²), shrunk towards isotropic as far as the batches themselves demand it.

    log r is a sum of four levels: one number for each tensor, each row, each column, each entry.
    Each level is multiplied by its own exponent in [0, 1]. The exponents are those that do best on
    batches that were left out: they maximise the mean of log gain, where

        gain = (Σ s²) (Σ g²) / ((Σ s² / r) (Σ g² r))

    is how many times larger the trace bound of that batch is than isotropic noise's at equal U2,
    less a margin for chance. All exponents at 0 are isotropic noise, with a gain of 1: it wins
    when in doubt, and always with less than two batches.

    Args:
        batches: What public batches say: `gather(message, inputs, generator)`, or Moments.
        size: Examples in a private batch; as in the public ones if `None`.
        trust: In [0, 1], multiplies the exponents; below 1 for examples of another kind.
        entries: Whether entries may differ by more than their rows and columns. Without, a shape
            takes few numbers.
        curvature: Take the curvature h (`Moments.squared_example_values`) in the place of g².

    >>> import torch
    >>> from gradveil import Moments
    >>> moments = Moments({"w": torch.ones(2, 2)}, {"w": torch.ones(2, 2)}, input_size=3)
    >>> type(fit_shape([moments, moments])).__name__
    'Shape'
    """
    check_ratio(trust, "trust")
    known = _checked(batches)
    size = known[0].examples if size is None else size
    check_count(size, "size")
    exponents = choose_exponents(known, size, entries=entries, curvature=curvature)
    return shape_with(known, size, [trust * e for e in exponents], curvature=curvature)


def choose_exponents(
    batches: Sequence[Evidence], size: int, *, entries: bool = True, curvature: bool = False
) -> Exponents:
    """The exponents of tensors, rows, columns and entries that do best on left-out batches."""
    if len(batches) < 2:
        return (0.0, 0.0, 0.0, 0.0)
    parts = min(len(batches), MOST_FOLDS)
    folds = [range(start, len(batches), parts) for start in range(parts)]
    trial = Trial(batches, folds, size, curvature=curvature)
    best, found = 0.0, [0.0] * 4
    for _ in range(2):
        for place in range(4 if entries else 3):
            for step in STEPS:
                tried = [*found[:place], min(step, MOST[place]), *found[place + 1 :]]
                score = trial.score(tried)
                if score > best:
                    best, found = score, tried
    return (found[0], found[1], found[2], found[3])


def shape_with(
    batches: Sequence[Evidence],
    size: int,
    exponents: Sequence[float],
    *,
    curvature: bool = False,
) -> Shape:
    """The shape of all of the batches with given exponents of tensors, rows, columns and entries.

    (1, 1, 1, 1) is Theorem 2 as printed, (1, 1, 1, 0) rows × columns, (1, 0, 0, 0) one level for
    each tensor; see `fit_shape` for the other arguments.

    >>> import torch
    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import GradientMessage
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 4, 2])
    >>> message = GradientMessage(model, cross_entropy, torch.tensor([0, 1]))
    >>> generator = torch.Generator().manual_seed(0)
    >>> from gradveil.shapes import gather
    >>> batches = [gather(message, torch.rand(2, 3), generator) for _ in range(2)]
    >>> type(shape_with(batches, 2, [1.0, 0.0, 0.0, 0.0])).__name__
    'Shape'
    """
    pooled = pool(batches, size, curvature=curvature)
    levels = levels_of(*pooled)
    return Shape(
        {name: _factors(levels[name], exponents, like) for name, like in pooled.squares.items()}
    )


def _factors(levels: "Levels", exponents: Sequence[float], like: Tensor) -> Factors:
    """As few numbers as the exponents leave, in shapes that broadcast to the parameter."""
    tensor, rows, columns, entries = (
        power * level for power, level in zip(exponents, levels, strict=True)
    )
    if exponents[3]:
        return (_exp(tensor + rows + columns + entries).reshape(like.shape),)
    ones = (1,) * (like.dim() - 1)
    if not exponents[1] or not like.dim():
        factors = [_exp(tensor).reshape((1,) * like.dim())]
    else:
        factors = [_exp(tensor + rows).reshape(-1, *ones)]
    if exponents[2] and as_matrix(like).shape[1] > 1:
        factors.append(_exp(columns).reshape(1, *like.shape[1:]))
    return tuple(factors)


WIDEST_LOG = log(1e12)


def _exp(logarithm: Tensor) -> Tensor:
    """Finite and positive whatever the units."""
    return logarithm.nan_to_num(0.0, WIDEST_LOG, -WIDEST_LOG).clamp(-WIDEST_LOG, WIDEST_LOG).exp()


def _checked(batches: Sequence[Evidence | Moments]) -> list[Evidence]:
    check_kind(batches, "batches", Sequence, "Give a list of Evidence or Moments.")
    if not batches:
        raise ValueError(
            "Parameter `batches` should hold at least one batch. Found none. Give"
            " `gather(message, inputs, generator)` of public examples."
        )
    known = [Evidence(each) if isinstance(each, Moments) else each for each in batches]
    for number, each in enumerate(known):
        check_kind(each, f"batches[{number}]", Evidence, "Make it with `gather`.")
        first = known[0].moments.squared_values
        check_structure(each.moments.squared_values, first, f"batches[{number}]", "batches[0]")
    return known


LEAST_OF_MEAN = 1e-4
"""The least of a mean square that counts, over the mean of its tensor: a dead unit of the public
examples may live on private ones."""


class Levels(NamedTuple):
    """log r of one tensor, as a matrix of its rows, is the sum of four parts.

    The first is one number, the second has one for each row, the third one for each column, the
    last one for each entry. r is √(S / G) of mean squares over all that a level does not tell
    apart.
    """

    tensor: Tensor
    rows: Tensor
    columns: Tensor
    entries: Tensor


def levels_of(slopes: Mapping[str, Tensor], squares: Mapping[str, Tensor]) -> dict[str, Levels]:
    """The levels of √(S_i / G_i), tensor by tensor, relative to the whole message."""
    whole = _half_log(_mean(slopes), _mean(squares))
    return {name: _levels(slope, squares[name], whole) for name, slope in slopes.items()}


def as_matrix(tensor: Tensor) -> Tensor:
    """The rows of a tensor's first dimension; vectors and numbers are one column."""
    return tensor.reshape(tensor.shape[0] if tensor.dim() else 1, -1)


def _levels(slope: Tensor, square: Tensor, whole: Tensor) -> Levels:
    s, g = _relative(as_matrix(slope)), _relative(as_matrix(square))
    tensor = _half_log(slope.mean(dtype=torch.float64), square.mean(dtype=torch.float64)) - whole
    rows = _half_log(s.mean(1, keepdim=True), g.mean(1, keepdim=True))
    if s.shape[1] == 1:
        nothing = torch.zeros_like(rows)
        return Levels(tensor.to(s.dtype), rows, nothing[:1], nothing)
    columns = _half_log(s.mean(0, keepdim=True), g.mean(0, keepdim=True))
    return Levels(tensor.to(s.dtype), rows, columns, _half_log(s, g) - rows - columns)


def _relative(matrix: Tensor) -> Tensor:
    """Over its mean, and not below `LEAST_OF_MEAN`."""
    mean = matrix.mean(dtype=torch.float64).clamp(min=1e-300)
    return (matrix / mean).to(matrix.dtype).clamp(min=LEAST_OF_MEAN)


def _half_log(slope: Tensor, square: Tensor) -> Tensor:
    """log √(S / G); 0 where both are 0."""
    least = torch.finfo(slope.dtype).tiny
    return (slope.clamp(min=least).log() - square.clamp(min=least).log()) / 2


def _mean(tensors: Mapping[str, Tensor]) -> Tensor:
    size = sum(tensor.numel() for tensor in tensors.values())
    return total(tensors.values()) / max(size, 1)


SAMPLE = 2**15
"""At most about so many entries of a message, evenly spread, stand for all."""

STANDARD_ERRORS = 0.5
"""Of the mean, by which a gain has to be above 1."""

DOUBT = (0.0, 0.4, 0.1, 0.4)
"""By how much log gain has to rise, over the number of batches, for each unit of the exponents of
tensors, rows, columns and entries: two batches may agree by chance. Over 12 draws of two and 8 of
eight public batches (MNIST CNN after 60 and 300 steps) the worst mean gain over 32 private batches
was 0.9995; 0.993 with a quarter of this, 0.98 with standard errors alone."""


class Trial:
    """Leaves out one part of the batches at a time, and judges shapes of the others on it.

    Args:
        batches: At least two.
        folds: The numbers of the batches that are left out together.
        size: Examples in a private batch.
        curvature: Judge by the curvature h in the place of g².
    """

    def __init__(
        self,
        batches: Sequence[Evidence],
        folds: Sequence[Iterable[int]],
        size: int,
        *,
        curvature: bool = False,
    ) -> None:
        first = batches[0].moments.squared_values
        chosen, self._weights = _sample(first)
        held = [[*fold] for fold in folds]
        self._logs, owners = [], []
        for number, fold in enumerate(held):
            rest = [batch for place, batch in enumerate(batches) if place not in fold]
            self._logs.append(_logs(levels_of(*pool(rest, size, curvature=curvature)), chosen))
            owners += [number] * len(fold)
        self._owners = torch.tensor(owners)
        order = [batches[place] for fold in held for place in fold]
        self._squares = torch.stack([entries_of(b.squares(curvature), chosen) for b in order])
        self._slopes = torch.stack(
            [entries_of(b.moments.known_squared_sensitivities, chosen) for b in order]
        )

    def score(self, exponents: Sequence[float]) -> float:
        """The mean of log gain over left-out batches less its margin; 0 for isotropic noise."""
        gains = self.gains(exponents)
        chance = STANDARD_ERRORS * float(gains.std()) / len(gains) ** 0.5
        doubt = sum(each * e for each, e in zip(DOUBT, exponents, strict=True)) / len(gains)
        score: float = float(gains.mean()) - chance - doubt
        return score

    def gains(self, exponents: Sequence[float]) -> Tensor:
        """log gain of each batch, by the shape of the batches outside of its part."""
        powers = torch.tensor(exponents, dtype=torch.float64, device=self._weights.device)
        levels = torch.stack([torch.einsum("l,ln->n", powers, logs).exp() for logs in self._logs])
        levels, weights = levels[self._owners.to(levels.device)], self._weights
        squares, slopes = self._squares * weights, self._slopes * weights
        isotropic = squares.sum(1).log() + slopes.sum(1).log()
        shaped = (squares * levels).sum(1).log() + (slopes / levels).sum(1).log()
        return torch.nan_to_num(isotropic - shaped, nan=0.0, posinf=0.0, neginf=0.0)


def _sample(like: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """Which entries stand for all, by name, and how many each of them stands for."""
    size = sum(value.numel() for value in like.values())
    chosen, weights = {}, []
    for name, value in like.items():
        step = max(1, min(size // SAMPLE, value.numel() // 64))
        index = torch.arange(0, value.numel(), step, device=value.device)
        chosen[name] = index
        share = value.numel() / max(len(index), 1)
        weights.append(torch.full((len(index),), share, dtype=torch.float64, device=value.device))
    return chosen, torch.cat(weights)


def _logs(levels: dict[str, Levels], chosen: dict[str, Tensor]) -> Tensor:
    """The four levels at the chosen entries, one row each."""
    parts = []
    for name, index in chosen.items():
        shape = levels[name].entries.shape
        own = [part.expand(shape).reshape(-1)[index].double() for part in levels[name]]
        parts.append(torch.stack(own))
    return torch.cat(parts, 1)
