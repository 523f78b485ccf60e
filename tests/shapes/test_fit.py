"""Shapes that public batches prove: better than isotropic noise where they can be, never worse."""

import pytest
import torch
from torch import Tensor

from gradveil import Moments
from gradveil.shapes import Evidence, fit_shape, gather
from gradveil.shapes._fit import choose_exponents, levels_of, pool

from .cases import SIZE, a_message, a_model, clouds, generator

ROWS, COLUMNS = 12, 30


def drawn(seed: int, slope: Tensor, square: Tensor) -> Moments:
    """A batch whose squares are those of the population times χ² of one and of eight degrees."""
    draw = generator(seed)
    g = torch.randn(ROWS, COLUMNS, generator=draw).square()
    s = torch.randn(8, ROWS, COLUMNS, generator=draw).square().mean(0)
    return Moments({"w": square * g}, {"w": slope * s}, 5)


def structured() -> tuple[Tensor, Tensor]:
    rows = torch.logspace(-1, 1, ROWS)[:, None]
    columns = torch.logspace(1, -1, COLUMNS)[None]
    return rows * columns, torch.ones(ROWS, COLUMNS)


def gain(levels: Tensor, slope: Tensor, square: Tensor) -> float:
    """(Σ s²)(Σ g²) / ((Σ s²/r)(Σ g² r)), naively."""
    r, s, g = levels.double(), slope.double(), square.double()
    return float(s.sum() * g.sum() / ((s / r).sum() * (g * r).sum()))


def test_structure_is_found_from_few_batches():
    slope, square = structured()
    shape = fit_shape([drawn(seed, slope, square) for seed in range(4)])
    levels = shape.levels({"w": square})["w"]
    best = gain((slope / square).sqrt(), slope, square)
    assert best > 2
    assert gain(levels, slope, square) > 0.8 * best


def test_without_structure_the_shape_is_isotropic_or_next_to_it():
    flat = torch.ones(ROWS, COLUMNS)
    gains = []
    for seed in range(20):
        count = (2, 8)[seed % 2]
        shape = fit_shape([drawn(100 * seed + k, flat, flat) for k in range(count)])
        gains.append(gain(shape.levels({"w": flat})["w"], flat, flat))
    assert min(gains) > 0.995
    assert gains.count(pytest.approx(1.0, abs=1e-9)) > 10


def test_raw_moments_of_two_batches_would_have_lost():
    flat = torch.ones(ROWS, COLUMNS)
    mean = drawn(1, flat, flat) + drawn(2, flat, flat)
    raw = (mean.known_squared_sensitivities["w"] / mean.squared_values["w"]).sqrt()
    assert gain(raw, flat, flat) < 0.7


def test_one_batch_proves_nothing():
    shape = fit_shape([drawn(0, *structured())])
    assert shape.numbers == 1


def test_no_trust_is_isotropic_and_half_of_it_halves_the_logarithm():
    slope, square = structured()
    batches = [drawn(seed, slope, square) for seed in range(4)]
    full, half, none = (
        fit_shape(batches, trust=trust).levels({"w": square})["w"].log()
        for trust in (1.0, 0.5, 0.0)
    )
    torch.testing.assert_close(half, full / 2)
    assert float(none.max() - none.min()) == 0


def test_without_entries_a_shape_takes_few_numbers():
    slope, square = structured()
    shape = fit_shape([drawn(seed, slope, square) for seed in range(24)], entries=False)
    assert shape.numbers == ROWS + COLUMNS


def test_levels_add_up_to_the_logarithm_of_the_ratio():
    draw = generator()
    slopes = {"w": torch.rand(4, 3, 2, generator=draw) + 0.1, "b": torch.rand(4, generator=draw)}
    squares = {"w": torch.rand(4, 3, 2, generator=draw) + 0.1, "b": torch.rand(4, generator=draw)}
    whole = (
        torch.cat([t.flatten() for t in slopes.values()]).mean()
        / torch.cat([t.flatten() for t in squares.values()]).mean()
    )
    for name, levels in levels_of(slopes, squares).items():
        found = sum(levels).reshape(slopes[name].shape)
        wanted = (slopes[name] / squares[name] / whole).log() / 2
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 4, 32])
def test_pooled_squares_are_those_of_batches_of_the_private_size(size):
    """E g² = E g_b²/n + (1 - 1/n)(E g_b)² of a mean over n examples, in the mean over draws."""
    centre, width, batch = torch.tensor([2.0, 0.0, -1.0]), torch.tensor([1.0, 2.0, 0.1]), 4
    found = []
    for seed in range(300):
        examples = centre + width * torch.randn(3, batch, 3, generator=generator(seed))
        parts = [
            Evidence(
                Moments({"w": own.mean(0).square()}, {"w": torch.ones(3)}, 1),
                {"w": own.mean(0)},
                {"w": (own / batch).square().sum(0)},
                batch,
            )
            for own in examples
        ]
        found.append(pool(parts, size, equally=False)[1]["w"])
    wanted = (centre.square() + width.square()) / size + (1 - 1 / size) * centre.square()
    mean = torch.stack(found).mean(0)
    assert float((mean[[0, 2]] / wanted[[0, 2]] - 1).abs().max()) < 0.06
    assert float(mean[1]) >= 0.9 * float(wanted[1])  # a square is cut off at 0


def test_a_batch_is_gathered_with_its_examples():
    model = a_model()
    inputs, targets = clouds(SIZE, 1)
    found = gather(a_message(model, targets), inputs, generator(), "exact")
    assert found.example_squares is not None
    squares = {name: torch.zeros_like(v) for name, v in found.example_squares.items()}
    for x, t in zip(inputs, targets, strict=True):
        for name, g in a_message(model, t[None])(x[None]).items():
            squares[name] += (g / SIZE).square().detach()
    torch.testing.assert_close(found.example_squares, squares, rtol=1e-4, atol=1e-9)


def test_examples_make_two_batches_worth_more():
    """With squares of single examples a shape from two batches is nearer to that of many."""
    model = a_model()
    batches = [
        gather(a_message(model, t), x, generator(k), "exact")
        for k, (x, t) in enumerate(clouds(SIZE, 10 + k) for k in range(24))
    ]
    truth = pool(batches, SIZE)[1]
    errors = []
    for known in (batches[:2], [Evidence(b.moments) for b in batches[:2]]):
        found = pool(known, SIZE)[1]
        logs = [(found[n] / truth[n]).log() for n in truth]
        errors.append(float(torch.cat([each.flatten() for each in logs]).std()))
    assert errors[0] < 0.8 * errors[1], errors


def test_exponents_are_zero_for_a_single_batch():
    assert choose_exponents([Evidence(drawn(0, *structured()))], 1) == [0.0] * 4


def test_no_batches_are_an_error():
    with pytest.raises(ValueError, match="at least one batch"):
        fit_shape([])


def test_batches_of_other_models_are_an_error():
    other = Moments({"v": torch.ones(2)}, {"v": torch.ones(2)}, 5)
    with pytest.raises(ValueError, match="names"):
        fit_shape([drawn(0, *structured()), other])
