"""The shape of noise that public batches prove to be better than isotropic."""

from collections.abc import Mapping, Sequence
from math import log

from torch import Tensor

from gradveil._checks import check_count, check_kind, check_ratio, check_structure
from gradveil.sensitivity import Moments

from ._evidence import Evidence
from ._levels import Levels, as_matrix, levels_of
from ._pooling import pool
from ._shape import Factors, Shape
from ._trial import Trial

STEPS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""The exponents that are tried."""

MOST = (1.0, 0.6, 0.6, 0.6)
"""The largest exponents of tensors, rows, columns, entries. At 1 a shape from examples of another
kind loses to isotropic noise on a fresh model, where nothing tells that they are."""

FOLDS = 8
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
    parts = min(len(batches), FOLDS)
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
    >>> from gradveil.plans import gather
    >>> batches = [gather(message, torch.rand(2, 3), generator) for _ in range(2)]
    >>> type(shape_with(batches, 2, [1.0, 0.0, 0.0, 0.0])).__name__
    'Shape'
    """
    pooled = pool(batches, size, curvature=curvature)
    return shape_of([(levels_of(*pooled), exponents)], pooled.squares)


def shape_of(
    parts: Sequence[tuple[Mapping[str, Levels], Sequence[float]]], like: Mapping[str, Tensor]
) -> Shape:
    """The product of shapes, each given by its levels and their exponents."""
    return Shape(
        {
            name: _factors([(each[name], powers) for each, powers in parts], like[name])
            for name in like
        }
    )


def _factors(parts: Sequence[tuple[Levels, Sequence[float]]], like: Tensor) -> Factors:
    """As few numbers as the exponents leave, in shapes that broadcast to the parameter."""
    tensor, rows, columns, entries = (_weighted(parts, place) for place in range(4))
    has = [any(powers[place] for _, powers in parts) for place in range(4)]
    if has[3]:
        return (_exp(tensor + rows + columns + entries).reshape(like.shape),)
    ones = (1,) * (like.dim() - 1)
    if not has[1] or not like.dim():
        factors = [_exp(tensor).reshape((1,) * like.dim())]
    else:
        factors = [_exp(tensor + rows).reshape(-1, *ones)]
    if has[2] and as_matrix(like).shape[1] > 1:
        factors.append(_exp(columns).reshape(1, *like.shape[1:]))
    return tuple(factors)


def _weighted(parts: Sequence[tuple[Levels, Sequence[float]]], place: int) -> Tensor:
    """The sum of one level over all parts, each with its exponent."""
    first, *others = (powers[place] * levels[place] for levels, powers in parts)
    return sum(others, first)


WIDEST = log(1e12)


def _exp(logarithm: Tensor) -> Tensor:
    """Finite and positive whatever the units."""
    return logarithm.nan_to_num(0.0, WIDEST, -WIDEST).clamp(-WIDEST, WIDEST).exp()


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
