from typing import Any

import pytest
import torch
from torch import Tensor

from gradveil import NonFiniteError
from gradveil.mechanisms import Mechanism
from tests.mechanisms.statistics import assert_mean, assert_noise_scale, assert_normal, draws

Tensors = dict[str, Tensor]

VALUES = {
    "w": torch.tensor([[0.3, -2.0, 0.0], [1.0, -0.05, 4.0]], dtype=torch.float64),
    "s": torch.tensor(-1.5, dtype=torch.float64),
}


def levels(*numbers: float) -> Tensors:
    """The first six for `w`, the last for the 0-d `s`."""
    row = torch.tensor(numbers, dtype=torch.float64)
    return {"w": row[:6].view(2, 3), "s": row[6]}


STD = levels(0.1, 2.0, 0.0, 1e-6, 1e3, 0.5, 0.7)
KEEP = levels(1.0, 0.25, 0.5, 0.0, 1.0, 0.9, 0.3)
CLIP = levels(1.0, 1.0, 1.0, 1.0, 0.01, 2.0, 3.0)

CASES = {
    "noise": Mechanism(std=0.5),
    "noise by entry": Mechanism(std=STD),
    "mixed": Mechanism(std=0.0, keep=KEEP),
    "one probability": Mechanism(std=0.1, keep=0.4),
    "clipped": Mechanism(std=STD, clip=0.9),
    "all of it": Mechanism(std=STD, keep=KEEP, clip=CLIP),
}


def closed_form(mechanism: Mechanism, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """clip(g), keep and std, written out in full shapes."""
    value = VALUES[name]

    def full(level: Any) -> Tensor:
        return level[name] if isinstance(level, dict) else torch.full_like(value, level)

    limit = full(1e300 if mechanism.clip is None else mechanism.clip)
    kept = full(1.0 if mechanism.keep is None else mechanism.keep)
    return value.minimum(limit).maximum(-limit), kept, full(mechanism.std)


@pytest.mark.parametrize("name", CASES)
def test_mean_and_variance_are_those_of_what_is_sent(name: str) -> None:
    mechanism = CASES[name]
    sent = draws(lambda generator: mechanism.apply(VALUES, generator), 1500)
    means, variances = mechanism.mean(VALUES), mechanism.variance(VALUES)
    for key, samples in sent.items():
        assert_mean(samples, means[key])
        assert_mean((samples - means[key]).square(), variances[key].expand_as(VALUES[key]))


@pytest.mark.parametrize("name", CASES)
def test_formulas(name: str) -> None:
    mechanism = CASES[name]
    for key, value in VALUES.items():
        clipped, keep, std = closed_form(mechanism, key)
        inside = (clipped == value) & (clipped.abs() < (closed_limit(mechanism, key)))
        torch.testing.assert_close(mechanism.mean(VALUES)[key], keep * clipped)
        spread = std.square() + keep * (1 - keep) * clipped.square()
        torch.testing.assert_close(mechanism.variance(VALUES)[key].expand_as(value), spread)
        weights = torch.where(inside & (keep > 0), keep / std.square(), 0.0)
        torch.testing.assert_close(mechanism.information(VALUES)[key], weights)


def closed_limit(mechanism: Mechanism, key: str) -> Tensor | float:
    if mechanism.clip is None:
        return float("inf")
    return mechanism.clip[key] if isinstance(mechanism.clip, dict) else float(mechanism.clip)


@pytest.mark.parametrize("name", ["noise", "noise by entry"])
def test_noise_has_its_scale(name: str) -> None:
    mechanism = CASES[name]
    sent = draws(lambda generator: mechanism.apply(VALUES, generator), 300)
    std = {key: closed_form(mechanism, key)[2] for key in VALUES}
    residuals = {key: samples - VALUES[key] for key, samples in sent.items()}
    # subtracting g of order 1 leaves a rounding error of 1e-16 in noise of 1e-6: far below χ²
    assert_noise_scale(residuals, std)
    assert_normal(residuals, std)


def test_entries_are_independent() -> None:
    zeros = {"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros(2, dtype=torch.float64)}
    sent = draws(lambda generator: Mechanism(std=1.0).apply(zeros, generator), 2000)
    correlations = torch.corrcoef(torch.cat([sent["a"], sent["b"]], dim=1).T)
    assert float((correlations - torch.eye(4)).abs().max()) < 5 / 2000**0.5


def test_masks_of_a_mixed_mechanism_are_zero_or_one() -> None:
    sent = draws(lambda generator: Mechanism(0.0, keep=0.3).apply(VALUES, generator), 500)
    for name, samples in sent.items():
        assert bool(((samples == 0) | (samples == VALUES[name])).all())
    assert_mean((sent["s"] != 0).double(), 0.3)


def test_deterministic_masks_draw_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    keep = levels(1, 0, 1, 0, 1, 0, 1)
    sent = Mechanism(std=0.0, keep=keep).apply(VALUES, generator)
    assert all(torch.equal(sent[n], keep[n] * v) for n, v in VALUES.items())
    assert torch.equal(generator.get_state(), before)


def test_what_is_sent_is_not_the_value_itself() -> None:
    sent = Mechanism(std=0.0).apply(VALUES)
    assert all(torch.equal(sent[n], v) and sent[n] is not v for n, v in VALUES.items())
    sent["w"].zero_()
    assert float(VALUES["w"].abs().sum()) > 0


def test_clip_clamps_both_signs() -> None:
    sent = Mechanism(std=0.0, clip=1.0).apply(VALUES)
    torch.testing.assert_close(sent["w"].abs().max(), torch.tensor(1.0, dtype=torch.float64))
    assert sent["s"] == -1.0


def test_an_entry_at_the_threshold_reveals_nothing() -> None:
    values = {"w": torch.tensor([0.999, 1.0, -1.0, -0.999])}
    weights = Mechanism(std=2.0, clip=1.0).information(values)["w"]
    assert weights.tolist() == [0.25, 0.0, 0.0, 0.25]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_of_the_values_is_kept(dtype: torch.dtype) -> None:
    values = {name: value.to(dtype) for name, value in VALUES.items()}
    for level in (torch.float32, torch.float64):
        parts = [{n: t.to(level) for n, t in part.items()} for part in (STD, KEEP, CLIP)]
        sent = Mechanism(*parts).apply(values)
        assert {value.dtype for value in sent.values()} == {dtype}


@pytest.mark.parametrize("exponent", [-30, -10, 10, 30])
def test_extreme_scales(exponent: int) -> None:
    values = {name: value * 10.0**exponent for name, value in VALUES.items()}
    mechanism = Mechanism(std={n: s * 10.0**exponent for n, s in STD.items()}, keep=KEEP)
    unit = Mechanism(std=STD, keep=KEEP)
    sent = mechanism.apply(values, torch.Generator().manual_seed(1))
    expected = unit.apply(VALUES, torch.Generator().manual_seed(1))
    for name, value in sent.items():
        torch.testing.assert_close(value / 10.0**exponent, expected[name])


def test_same_seed_same_bytes() -> None:
    def send(seed: int) -> Tensor:
        mechanism = Mechanism(std=0.1, keep=0.5)
        return mechanism.apply(VALUES, torch.Generator().manual_seed(seed))["w"]

    assert torch.equal(send(3), send(3))
    assert not torch.equal(send(3), send(4))


def test_without_a_generator_every_call_differs_and_the_global_one_is_left_alone() -> None:
    before = torch.get_rng_state()
    first, second = (Mechanism(std=1.0, keep=0.5).apply(VALUES)["w"] for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_nothing_is_sent_of_values_that_are_not_finite(bad: float) -> None:
    values = {"w": VALUES["w"].clone(), "s": VALUES["s"]}
    values["w"][0, 1] = bad
    with pytest.raises(NonFiniteError, match=r"Found 1 of 6 entries NaN or infinite in `w`"):
        Mechanism(std=1.0).apply(values)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"std": -0.1}, r"`std` should be finite and in \[0, inf\]. Found values from -0.1"),
        ({"std": float("nan")}, r"`std` should be finite.*nan"),
        ({"std": float("inf")}, r"`std` should be finite.*inf"),
        ({"std": levels(1, 1, 1, 1, 1, -2, 1)}, r"`std`.*Found values from -2 to 1 in `w`"),
        ({"std": levels(1, 1, 1, 1, 1, 1, float("nan"))}, r"`std`.*nan in `s`"),
        ({"std": 1.0, "keep": 1.5}, r"`keep` should be finite and in \[0, 1\]. Found.*1.5"),
        ({"std": 1.0, "keep": levels(1, 1, 1, 1, -0.5, 1, 1)}, r"`keep`.*-0.5 to 1 in `w`"),
        ({"std": 1.0, "clip": -1.0}, r"`clip` should be finite and in \[0, inf\]"),
        ({"std": 1.0, "clip": float("nan")}, r"`clip` should be finite"),
    ],
)
def test_bad_levels(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"Parameter {message}"):
        Mechanism(**arguments)


@pytest.mark.parametrize("bad", [True, "0.1", None, torch.tensor(0.1)])
def test_levels_that_are_no_numbers(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"Parameter `std` should be a number. Found"):
        Mechanism(std=bad)


@pytest.mark.parametrize("part", ["std", "keep", "clip"])
@pytest.mark.parametrize("method", ["apply", "mean", "variance", "information"])
def test_mismatched_names_and_shapes(part: str, method: str) -> None:
    other_names = Mechanism(**{"std": 1.0, part: {"w": torch.ones(2, 3)}})
    with pytest.raises(ValueError, match=rf"Parameter `{part}`.*missing names \['s'\]"):
        getattr(other_names, method)(VALUES)
    wrong = {"w": torch.ones(3, 2), "s": torch.ones(())}
    with pytest.raises(ValueError, match=rf"`{part}`.*Found shape \(3, 2\) for `w` instead of"):
        getattr(Mechanism(**{"std": 1.0, part: wrong}), method)(VALUES)
