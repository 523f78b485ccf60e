"""The shape of noise that public batches prove to be better than isotropic."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log

import torch
from torch import Tensor

from gradveil._checks import (
    WrongValue,
    check_count,
    check_inputs,
    check_kind,
    check_ratio,
    check_structure,
)
from gradveil._tensors import Tensors, total
from gradveil.messages import (
    GradientMessage,
    Message,
    TokenGradient,
    example_gradients,
    over_rows,
    separates,
)
from gradveil.sensitivity import Estimator, Moments, measure_with_values

from ._shape import Factors, Shape


@dataclass(frozen=True)
class Evidence:
    """Moments of one batch, with what its single examples add to them where that is known.

    One batch gradient g = Σ_b c_b is a poor estimate of E g²: it is one draw. Over batches of n
    examples E g² = n E c_b² + n (n - 1) (E c_b)², and all of the examples tell of E c_b².
    """

    moments: Moments
    """g² and s² of the batch."""
    values: Tensors | None = None
    """g; `None` where examples do not add up."""
    example_squares: Tensors | None = None
    """Σ_b c_b², beside the values."""
    examples: int = 1
    """In the batch."""
    is_sum: bool = False
    """Whether the message is a sum over examples, and not a mean."""


def gather(
    message: Message,
    inputs: Tensor,
    generator: torch.Generator,
    estimator: Estimator | str = "auto",
    *,
    judged: bool = False,
    examples: bool = True,
) -> Evidence:
    """Measure a message at a public batch; its `examples` one by one, too, where they add up.

    What it says of the rows of a table of tokens is spread over all rows: tokens that do not occur
    here may occur elsewhere. `judged` measures sensitivities twice, as `measure` does.
    """
    alone = examples and isinstance(message, GradientMessage) and separates(message, inputs)
    values, moments = measure_with_values(
        message, inputs, estimator, generator=generator, judged=judged, examples=alone
    )
    moments = replace(moments, squared_values=over_rows(moments.squared_values, message, inputs))
    if not alone or moments.squared_example_values is None:
        return Evidence(moments, examples=len(inputs))
    if isinstance(message, TokenGradient):  # over batches, the gradients of a row have no mean
        rows = message.tables(inputs)
        values = {n: torch.zeros_like(v) if n in rows else v for n, v in values.items()}
    is_sum = getattr(message, "reduction", None) == "sum"
    squares = over_rows(moments.squared_example_values, message, inputs)
    squares = _times(squares, 1.0 if is_sum else 1 / len(inputs))
    return Evidence(moments, values, squares, len(inputs), is_sum)


def pool(
    batches: Sequence[Evidence], size: int, *, equally: bool = True
) -> tuple[Tensors, Tensors]:
    """S and G for messages of `size` examples: what stands for E‖∇g_i‖² and E g_i².

    Where examples add up, with g of a batch of B, Q = E Σ_b c_b² and M = (E g)²:

        G = Q B/n + (1 - 1/n) M,

    that is E g² for batches of n in place of B, of a loss that is a mean. With K batches the mean
    ḡ has E ḡ² = M + (Q - M/B)/K, from which M follows. Elsewhere G is the mean of g² over batches.

    With `equally` each batch is divided by its own mean of s² and of g² first. After training a few
    examples have most of all gradients, and should not decide alone on a shape; the amount of noise
    is for the plain means.
    """
    slopes = _mean([b.moments.known_squared_sensitivities for b in batches], equally)
    spreads = [b.example_squares for b in batches if b.example_squares is not None]
    if len(spreads) < len(batches):
        return slopes, _mean([b.moments.squared_values for b in batches], equally)
    count, examples = len(batches), batches[0].examples
    roots = [(_scale(each) if equally else 1.0) ** 0.5 for each in spreads]
    spread = _mean(spreads, equally)
    mean = _mean([_times(b.values or {}, r) for b, r in zip(batches, roots, strict=True)], False)
    known = 1 - 1 / (examples * count)
    squares = {}
    for name, own in spread.items():
        found = (mean[name].square() - own / count).clamp(min=0) / known if known else 0.0
        squares[name] = own * (examples / size) + (1 - 1 / size) * found
    return slopes, squares


def _mean(many: Sequence[Mapping[str, Tensor]], equally: bool) -> Tensors:
    """The mean over batches, tensor by tensor; each batch divided by its own mean if `equally`."""
    scaled = [_times(one, _scale(one) if equally else 1.0) for one in many]
    return {name: torch.stack([one[name] for one in scaled]).mean(0) for name in many[0]}


def _scale(squares: Mapping[str, Tensor]) -> float:
    """1 over the mean; 0 where all is 0."""
    size = sum(square.numel() for square in squares.values())
    whole = float(total(squares.values()))
    return size / whole if whole > 0 else 0.0


def _times(tensors: Mapping[str, Tensor], factor: float) -> Tensors:
    return {name: tensor.detach() * factor for name, tensor in tensors.items()}


def moments_for(batches: Sequence[Evidence], size: int) -> Moments:
    """E g_i² and E‖∇g_i‖² of the batches, for messages of `size` examples.

    s² of a mean falls with the number of examples, of a sum it grows.
    """
    first = batches[0]
    ratio = size / first.examples
    factor = ratio if first.is_sum else 1 / ratio
    slopes, squares = pool(batches, size, equally=False)
    if first.is_sum:
        squares = _times(squares, ratio**2)
    # no entry is 0 only because it is on the public examples, unless all are
    count = sum(square.numel() for square in squares.values())
    whole = float(total(squares.values())) / max(count, 1)
    floored = {
        n: s.clamp(min=1e-6 * max(float(s.mean()), 1e-6 * whole)) for n, s in squares.items()
    }
    seconds = [b.moments.second_squares for b in batches]
    judge = _mean([s for s in seconds if s], False) if all(seconds) else None
    return Moments(
        squared_values=floored,
        squared_sensitivities=_times(slopes, factor),
        input_size=size * (first.moments.input_size // first.examples),
        second_squares=None if judge is None else _times(judge, factor),
        hidden=max(b.moments.hidden for b in batches),
        estimator=first.moments.estimator,
    )


def fit_shape(
    batches: Sequence[Evidence | Moments],
    *,
    size: int | None = None,
    trust: float = 1.0,
    entries: bool = True,
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

    >>> from gradveil import Moments
    >>> moments = Moments({"w": torch.ones(2, 2)}, {"w": torch.ones(2, 2)}, input_size=3)
    >>> type(fit_shape([moments, moments])).__name__
    'Shape'
    """
    check_ratio(trust, "trust")
    check_kind(batches, "batches", Sequence, "Give a list of Evidence or Moments.")
    if not batches:
        advice = "Give `gather(message, inputs, generator)` of public examples."
        raise WrongValue("batches", "hold at least one batch", "none", advice)
    known = [Evidence(each) if isinstance(each, Moments) else each for each in batches]
    for number, each in enumerate(known):
        check_kind(each, f"batches[{number}]", Evidence, "Make it with `gather`.")
        first = known[0].moments.squared_values
        check_structure(each.moments.squared_values, first, f"batches[{number}]", "batches[0]")
    size = known[0].examples if size is None else size
    check_count(size, "size")
    exponents = choose_exponents(known, size, entries=entries)
    return shape_with(known, size, [trust * e for e in exponents])


def choose_exponents(
    batches: Sequence[Evidence], size: int, *, entries: bool = True
) -> list[float]:
    """The exponents that do best on left-out batches, at most eight parts of them in turn.

    Those of rows, columns and entries are at most 0.6: at 1 a shape from examples of another kind
    loses to isotropic noise on a fresh model, where nothing tells that they are.
    """
    best, found = 0.0, [0.0] * 4
    if len(batches) < 2:
        return found
    score_of = _trial(batches, size)
    for _ in range(2):
        for place, most in enumerate((1.0, 0.6, 0.6, 0.6) if entries else (1.0, 0.6, 0.6)):
            for step in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
                tried = [*found[:place], min(step, most), *found[place + 1 :]]
                score = score_of(tried)
                if score > best:
                    best, found = score, tried
    return found


def shape_with(batches: Sequence[Evidence], size: int, exponents: Sequence[float]) -> Shape:
    """The shape of all of the batches with given exponents of tensors, rows, columns and entries.

    (1, 1, 1, 1) is Theorem 2 as printed, (1, 1, 1, 0) rows × columns, (1, 0, 0, 0) one level for
    each tensor; see `fit_shape` for the other arguments.
    """
    slopes, squares = pool(batches, size)
    levels = levels_of(slopes, squares)
    return Shape({n: _factors(levels[n], exponents, like) for n, like in squares.items()})


def _factors(levels: "Levels", exponents: Sequence[float], like: Tensor) -> Factors:
    """As few numbers as the exponents leave, in shapes that broadcast to the parameter."""
    tensor, rows, columns, entries = (
        power * level for power, level in zip(exponents, levels, strict=True)
    )
    if exponents[3]:
        return (_exp(tensor + rows + columns + entries).reshape(like.shape),)
    if not exponents[1] or not like.dim():
        factors = [_exp(tensor).reshape((1,) * like.dim())]
    else:
        factors = [_exp(tensor + rows).reshape(-1, *(1,) * (like.dim() - 1))]
    if exponents[2] and as_matrix(like).shape[1] > 1:
        factors.append(_exp(columns).reshape(1, *like.shape[1:]))
    return tuple(factors)


def _exp(logarithm: Tensor) -> Tensor:
    """Finite and positive whatever the units."""
    widest = log(1e12)
    return logarithm.nan_to_num(0.0, widest, -widest).clamp(-widest, widest).exp()


Levels = tuple[Tensor, Tensor, Tensor, Tensor]
"""log r of one tensor, as a matrix of its rows, is the sum of four parts: one number, one for each
row, one for each column and one for each entry. r is √(S / G) of mean squares over all that a level
does not tell apart."""


def levels_of(slopes: Mapping[str, Tensor], squares: Mapping[str, Tensor]) -> dict[str, Levels]:
    """The levels of √(S_i / G_i), tensor by tensor, relative to the whole message."""
    size = max(1, sum(slope.numel() for slope in slopes.values()))
    whole = _half_log(total(slopes.values()) / size, total(squares.values()) / size)
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
        return tensor.to(s.dtype), rows, nothing[:1], nothing
    columns = _half_log(s.mean(0, keepdim=True), g.mean(0, keepdim=True))
    return tensor.to(s.dtype), rows, columns, _half_log(s, g) - rows - columns


def _relative(matrix: Tensor) -> Tensor:
    """Over its mean, and not below 1e-4: a dead unit may live on private examples."""
    mean = matrix.mean(dtype=torch.float64).clamp(min=1e-300)
    return (matrix / mean).to(matrix.dtype).clamp(min=1e-4)


def _half_log(slope: Tensor, square: Tensor) -> Tensor:
    """log √(S / G); 0 where both are 0."""
    least = torch.finfo(slope.dtype).tiny
    return (slope.clamp(min=least).log() - square.clamp(min=least).log()) / 2


DOUBT = (0.0, 0.4, 0.1, 0.4)
"""By how much log gain has to rise, over the number of batches, for each unit of the exponents of
tensors, rows, columns and entries: two batches may agree by chance. Over 12 draws of two and 8 of
eight public batches (MNIST CNN after 60 and 300 steps) the worst mean gain over 32 private batches
was 0.9995; 0.993 with a quarter of this, 0.98 with standard errors alone."""


def _trial(batches: Sequence[Evidence], size: int) -> Callable[[Sequence[float]], float]:
    """The mean of log gain of exponents over left-out batches less its margin; 0 for isotropic.

    One part of at least two batches is left out at a time, every eighth at once if there are more
    than eight, and judged by the shape of the others for private batches of `size` examples. The
    margin is half of a standard error, and `DOUBT`.
    """
    chosen, weights = _sample(batches[0].moments.squared_values)
    parts, order, every, owners = min(len(batches), 8), [], [], []
    for part in range(parts):
        rest = [batch for place, batch in enumerate(batches) if place % parts != part]
        levels, rows = levels_of(*pool(rest, size)), []
        for name, index in chosen.items():  # the four levels at the chosen entries, one row each
            own = [part.expand_as(levels[name][3]).reshape(-1)[index] for part in levels[name]]
            rows.append(torch.stack(own).double())
        every.append(torch.cat(rows, 1))
        held = [batch.moments for batch in batches[part::parts]]
        owners += [part] * len(held)
        order += held
    squares = torch.stack([_entries(m.squared_values, chosen) for m in order]) * weights
    slopes = torch.stack([_entries(m.known_squared_sensitivities, chosen) for m in order]) * weights
    isotropic = squares.sum(1).log() + slopes.sum(1).log()

    def score(exponents: Sequence[float]) -> float:
        powers = torch.tensor(exponents, dtype=torch.float64, device=weights.device)
        levels = torch.stack([torch.einsum("l,ln->n", powers, logs).exp() for logs in every])[
            owners
        ]
        shaped = (squares * levels).sum(1).log() + (slopes / levels).sum(1).log()
        gains = torch.nan_to_num(isotropic - shaped, nan=0.0, posinf=0.0, neginf=0.0)
        chance: float = 0.5 * float(gains.std()) / len(gains) ** 0.5
        doubt = sum(each * e for each, e in zip(DOUBT, exponents, strict=True)) / len(gains)
        return float(gains.mean()) - chance - doubt

    return score


def _sample(like: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """Which entries, about 2¹⁵ and evenly spread, stand for all, and for how many each does."""
    size = sum(value.numel() for value in like.values())
    chosen, weights = {}, []
    for name, value in like.items():
        step = max(1, min(size // 2**15, value.numel() // 64))
        index = torch.arange(0, value.numel(), step, device=value.device)
        chosen[name] = index
        share = value.numel() / max(len(index), 1)
        weights.append(torch.full((len(index),), share, dtype=torch.float64, device=value.device))
    return chosen, torch.cat(weights)


def _entries(tensors: Mapping[str, Tensor], chosen: Mapping[str, Tensor]) -> Tensor:
    """The chosen entries of each tensor in one row, in float64."""
    return torch.cat([tensors[n].reshape(-1)[index].double() for n, index in chosen.items()])


def rms_shape(message: GradientMessage, inputs: Tensor) -> Shape:
    """r_i ∝ √E g_bi² over public examples b: as much noise as there is gradient.

    That minimises the noise Σ_i Σ_ii beside the clipping norm E Σ_i g_bi² / Σ_ii, whose product is
    least for Σ_ii ∝ √E g_bi². For `PrivateNoise`, whose shape must not depend on private data. A
    tensor's squares are the product of their means over columns and over rows, which few examples
    determine. No root mean square is taken to be below a twentieth of that of its tensor, and no
    tensor's below a twentieth of that of all.

    >>> model = torch.nn.Linear(2, 1)
    >>> message = GradientMessage(model, lambda o, _: o.sum(), None)
    >>> shape = rms_shape(message, torch.tensor([[3.0, 1.0], [3.0, -1.0]]))
    >>> [round(float(r), 3) for r in shape.levels(dict(model.named_parameters()))["weight"][0]]
    [3.0, 1.0]
    """
    check_inputs(inputs)
    squares: Tensors = {}
    with torch.no_grad():
        for gradients in example_gradients(message, inputs):
            for name, g in gradients.items():
                square = g.square().sum(0) / len(inputs)
                squares[name] = squares[name] + square if name in squares else square
    least, entries = 0.05**2, sum(s.numel() for s in squares.values())
    whole = sum(float(s.sum(dtype=torch.float64)) for s in squares.values()) / entries
    factors = {}
    for name, square in squares.items():
        mean = square.mean().clamp(min=least * max(whole, torch.finfo(torch.float32).tiny))
        square = square.clamp(min=least * mean)
        parts = [square]
        if square.dim() > 1:
            rows = square.mean(tuple(range(1, square.dim())), keepdim=True)
            parts = [rows / square.mean(), square.mean(0, keepdim=True)]
        factors[name] = tuple(part.sqrt() for part in parts)
    return Shape(factors)
