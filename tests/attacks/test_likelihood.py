"""Log-likelihoods against scipy, sums over all masks, and integrals that must be 1."""

import itertools
import math

import pytest
import torch
from scipy.stats import norm
from scipy.stats import t as student
from torch import Tensor

from gradveil.attacks._likelihood import (
    Doubt,
    doubtful_log_probabilities,
    log_likelihoods,
    same_noise,
)
from gradveil.mechanisms import Mechanism, RoundingMechanism
from tests.attacks.likelihood import log_likelihood
from tests.mechanisms.test_mechanism import CASES, VALUES

Tensors = dict[str, Tensor]
ROW = torch.tensor([0.3, -2.0, 0.7, 0.02], dtype=torch.float64)
SENT = torch.tensor([0.5, 0.1, 0.65, -0.3], dtype=torch.float64)


def row(tensor: Tensor) -> Tensors:
    return {"w": tensor}


def brute_force(values: Tensor, sent: Tensor, std: Tensor, keep: Tensor) -> float:
    """The sum over all masks of the probability of the mask times the normal density."""
    cases = []
    for mask in itertools.product((0.0, 1.0), repeat=len(values)):
        r = torch.tensor(mask, dtype=torch.float64)
        chance = float((r * keep + (1 - r) * (1 - keep)).prod())
        density = norm.pdf(sent.numpy(), (r * values).numpy(), std.numpy()).prod()
        cases.append(chance * density)
    return math.log(sum(cases))


@pytest.mark.parametrize("keep", [None, 0.4, "mask", "mixed"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_noise_clamping_and_masks_equal_the_sum_over_all_masks(
    keep: float | str | None, clip: float | None
) -> None:
    std = torch.tensor([0.1, 1.5, 0.3, 2.0], dtype=torch.float64)
    shares = {
        None: torch.ones(4),
        0.4: torch.full((4,), 0.4, dtype=torch.float64),
        "mask": torch.tensor([1.0, 0.0, 1.0, 0.0]),
        "mixed": torch.tensor([1.0, 0.25, 0.0, 0.75]),
    }[keep].double()
    level = row(shares) if isinstance(keep, str) else keep
    mechanism = Mechanism(row(std), level, clip)
    clamped = ROW if clip is None else ROW.clamp(-clip, clip)
    expected = brute_force(clamped, SENT, std, shares)
    assert float(log_likelihood(mechanism, row(ROW), row(SENT))) == pytest.approx(
        expected, rel=1e-9
    )


def test_the_level_enters_by_its_logarithm() -> None:
    """Twice the level costs log 2 for each entry where the misfit is 0."""
    one, two = (float(log_likelihood(Mechanism(s), row(ROW), row(ROW))) for s in (0.5, 1.0))
    assert one - two == pytest.approx(4 * math.log(2))


def test_entries_without_noise_are_points() -> None:
    bare = Mechanism(row(torch.tensor([0.0, 0.5, 0.0, 0.5], dtype=torch.float64)))
    sent = torch.tensor([0.3, -1.0, 0.7, 0.5], dtype=torch.float64)
    noisy = norm.logpdf([-1.0, 0.5], [-2.0, 0.02], 0.5).sum()
    assert float(log_likelihood(bare, row(ROW), row(sent))) == pytest.approx(noisy)
    sent[0] += 1e-6
    assert float(log_likelihood(bare, row(ROW), row(sent))) < -1e9


def test_a_bare_entry_in_single_precision_may_differ_by_a_rounding_error() -> None:
    value = torch.tensor([0.1, 0.2, 0.3])
    other = value * (1 + 2e-7)
    assert float(log_likelihood(Mechanism(0.0), row(value), row(other))) > -1
    assert float(log_likelihood(Mechanism(0.0), row(value), row(value * 1.001))) < -1e4


def test_of_a_bare_mixture_zeros_may_be_pruned() -> None:
    keep = row(torch.tensor([0.25, 0.25, 0.25, 0.25], dtype=torch.float64))
    sent = torch.tensor([0.3, 0.0, 0.0, 0.02], dtype=torch.float64)
    found = log_likelihood(Mechanism(0.0, keep), row(ROW), row(sent))
    assert float(found) == pytest.approx(2 * math.log(0.25) + 2 * math.log(0.75))


@pytest.mark.parametrize("name", CASES)
def test_what_a_mechanism_draws_is_likelier_than_other_values(name: str) -> None:
    mechanism, generator = CASES[name], torch.Generator().manual_seed(0)
    sent = mechanism.apply(VALUES, generator)
    others = {n: 3 * v + 1 for n, v in VALUES.items()}
    own = log_likelihood(mechanism, VALUES, sent)
    assert (own.dtype, own.shape) == (torch.float64, ())
    assert bool(own.isfinite())
    totals = torch.zeros(())
    for _ in range(60):
        sent = mechanism.apply(VALUES, generator)
        own, other = (log_likelihood(mechanism, v, sent) for v in (VALUES, others))
        totals = totals + (own - other).clamp(-50, 50)
    assert float(totals) > 0  # the mean of log p/q under p is positive


def test_rounding_is_a_cell() -> None:
    mechanism = RoundingMechanism(0.5)
    sent = mechanism.apply(row(ROW))
    for shift, inside in ((0.0, True), (0.1, False), (-0.04, True)):
        found = float(log_likelihood(mechanism, row(ROW + shift), sent))
        same = torch.equal(mechanism.apply(row(ROW + shift))["w"], sent["w"])
        assert same == inside
        assert (found == 0) if inside else (found < -1e9)


def test_a_step_of_0_sends_the_value() -> None:
    mechanism = RoundingMechanism(0.0)
    assert float(log_likelihood(mechanism, row(ROW), row(ROW))) == 0
    assert float(log_likelihood(mechanism, row(ROW + 1e-6), row(ROW))) < -1e9


@pytest.mark.parametrize("doubt", [Doubt(), Doubt(kept=0.99, pruned=0.02)])
def test_without_doubt_on_the_levels_noise_is_normal(doubt: Doubt) -> None:
    mechanism = Mechanism(row(torch.tensor([0.1, 1.5, 0.3, 2.0], dtype=torch.float64)))
    plain = float(log_likelihood(mechanism, row(ROW), row(SENT)))
    assert float(log_likelihood(mechanism, row(ROW), row(SENT), doubt)) == pytest.approx(plain)


def test_levels_in_doubt_are_students() -> None:
    std = torch.tensor([0.1, 1.5, 0.3, 2.0], dtype=torch.float64)
    found = log_likelihood(Mechanism(row(std)), row(ROW), row(SENT), Doubt({"w": 0.5}))
    expected = student.logpdf(SENT.numpy(), 1 + 2 / 0.5, ROW.numpy(), std.numpy()).sum()
    assert float(found) == pytest.approx(expected)


@pytest.mark.parametrize("level", [0.0, 0.3])
@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_what_a_tensor_shares_is_integrated_out(level: float, factor: float) -> None:
    """Against an integral over the shared factor on a fine grid."""
    generator = torch.Generator().manual_seed(1)
    std = torch.rand(200, generator=generator, dtype=torch.float64) + 0.5
    sent = factor * std * torch.randn(200, generator=generator, dtype=torch.float64)
    zeros, shared = torch.zeros_like(sent), 0.4
    found = log_likelihood(
        Mechanism(row(std)), row(zeros), row(sent), Doubt({"w": level}, {"w": shared})
    )
    us = torch.linspace(-4, 4, 801, dtype=torch.float64)
    logs = torch.stack(
        [
            log_likelihood(
                Mechanism(row(std * math.exp(float(u) / 2))),
                row(zeros),
                row(sent),
                Doubt({"w": level}),
            )
            for u in us
        ]
    )
    prior = torch.tensor(norm.logpdf(us.numpy(), 0, math.sqrt(shared)))
    expected = float((logs + prior).logsumexp(0)) + math.log(0.01)
    assert float(found) == pytest.approx(expected, abs=0.02)


def test_a_mask_in_doubt_is_a_mixture_of_both_sides() -> None:
    std, keep = (torch.tensor(x, dtype=torch.float64) for x in ([0.2, 0.0], [1.0, 0.0]))
    mechanism, doubt = Mechanism(row(std), row(keep)), Doubt(kept=0.9, pruned=0.2)
    values = torch.tensor([0.3, -2.0], dtype=torch.float64)
    sent = torch.tensor([0.5, -1.9], dtype=torch.float64)  # both kept, the second unexpectedly
    expected = norm.logpdf([0.5, -1.9], [0.3, -2.0], 0.2).sum() + math.log(0.9 * 0.2)
    found = log_likelihood(mechanism, row(values), row(sent), doubt)
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_kept_zeros_and_missing_entries_cost_their_odds() -> None:
    """Of two candidates' masks the one that fits the zeros of the message is the likelier."""
    zeros = torch.zeros(6, dtype=torch.float64)
    sent, values = zeros.clone(), torch.full((6,), 0.5, dtype=torch.float64)
    sent[:3] = 0.5
    doubt = Doubt(kept=0.95, pruned=0.05)
    right = Mechanism(0.0, row(torch.tensor([1.0, 1, 1, 0, 0, 0], dtype=torch.float64)))
    wrong = Mechanism(0.0, row(torch.tensor([0.0, 1, 1, 1, 0, 0], dtype=torch.float64)))
    gap = [float(log_likelihood(m, row(values), row(sent), doubt)) for m in (right, wrong)]
    assert gap[0] - gap[1] == pytest.approx(2 * math.log(0.95 / 0.05), rel=1e-6)


@pytest.mark.parametrize("value", [0.2, -0.45, 1.3])
def test_steps_in_doubt_have_a_total_probability_of_1(value: float) -> None:
    grid = value * torch.arange(0.3, 5.0, 2e-4, dtype=torch.float64)
    values, steps = torch.full_like(grid, value), torch.full_like(grid, 0.7)
    density = doubtful_log_probabilities(grid, values, steps, 0.25).exp().sum()
    zero = torch.zeros(1, dtype=torch.float64)
    silent = doubtful_log_probabilities(zero, values[:1], steps[:1], 0.25).exp()
    assert float(density * abs(value) * 2e-4 + silent) == pytest.approx(1, abs=3e-3)


def test_steps_in_doubt_are_drawn_as_the_likelihood_says() -> None:
    """P[0] and the mean log-density against rounding with log-normal steps."""
    generator = torch.Generator().manual_seed(0)
    steps = 0.7 * (0.25 * torch.randn(20_000, generator=generator, dtype=torch.float64)).exp()
    values = torch.full_like(steps, 0.4)
    sent = RoundingMechanism(row(steps)).apply(row(values))["w"]
    share = float((sent == 0).double().mean())
    chance = log_likelihood(
        RoundingMechanism(0.7),
        row(values[:1]),
        row(torch.zeros(1).double()),
        Doubt({"w": 0.2}, {"w": 0.05}),
    )
    assert math.exp(float(chance)) == pytest.approx(share, abs=0.015)


@pytest.mark.parametrize("mechanism", [Mechanism(0.1), RoundingMechanism(0.1)])
def test_values_and_sent_must_fit(mechanism: Mechanism | RoundingMechanism) -> None:
    with pytest.raises(ValueError, match="`sent` should have the shapes"):
        log_likelihood(mechanism, row(ROW), row(ROW[:2]))


TABLES = {
    "one level": Mechanism(0.3),
    "levels": Mechanism({"w": torch.tensor([[0.1, 2.0], [0.5, 1.0]]), "b": torch.ones(3)}),
    "clamped": Mechanism(0.2, clip=0.4),
    "masked": Mechanism(
        {"w": torch.tensor([[0.1, 0.0], [0.5, 0.0]]), "b": torch.zeros(3)},
        {"w": torch.tensor([[1.0, 0.0], [1.0, 0.0]]), "b": torch.tensor([True, True, False])},
    ),
    "mixed": Mechanism(0.5, {"w": torch.full((2, 2), 0.3), "b": torch.tensor([1.0, 0.0, 0.9])}),
    "bare": Mechanism(0.0),
    "nearly bare": Mechanism(1e-7),
    "all pruned": Mechanism(0.0, keep=0.0),
}


@pytest.mark.parametrize("case", TABLES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [2, 2**15])
def test_a_table_has_the_likelihood_of_each_pair(
    case: str, dtype: torch.dtype, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradveil.attacks._likelihood.COLUMNS", columns)
    draws, mechanism = torch.Generator().manual_seed(0), TABLES[case]

    def message() -> Tensors:
        shapes = {"w": (2, 2), "b": (3,)}
        drawn = {n: torch.randn(s, generator=draws, dtype=dtype) for n, s in shapes.items()}
        return {name: 5 + 0.3 * value for name, value in drawn.items()}

    values = [message() for _ in range(4)]
    values.append({name: value.clone() for name, value in values[0].items()})  # a twin
    sent = [mechanism.apply(values[k], draws) for k in (0, 2, 3)]
    found = log_likelihoods(mechanism, values, sent)
    expected = torch.stack(
        [torch.stack([log_likelihood(mechanism, v, y) for v in values]) for y in sent]
    )
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-6)
    torch.testing.assert_close(found.softmax(1), expected.softmax(1), rtol=1e-6, atol=1e-9)


def test_a_tensor_of_zeros_without_noise_has_a_table_too() -> None:
    zeros = [row(torch.zeros(3, dtype=torch.float64))] * 2
    assert log_likelihoods(Mechanism(0.0), zeros, zeros).tolist() == [[0.0, 0.0]] * 2


def test_mechanisms_are_equal_where_all_levels_are() -> None:
    level = {"w": torch.tensor([0.1, 0.2])}
    one = Mechanism(level, clip=1.0)
    assert same_noise(one, Mechanism({"w": level["w"].clone()}, clip=1.0))
    assert not same_noise(one, Mechanism(level))
    assert not same_noise(one, Mechanism({"w": torch.tensor([0.1, 0.3])}, clip=1.0))
    assert not same_noise(one, Mechanism(0.1, clip=1.0))
    assert not same_noise(one, Mechanism({"v": level["w"]}, clip=1.0))
    assert same_noise(Mechanism(0.1, keep=0.5), Mechanism(0.1, keep=0.5))


def doubted(sent: Tensor, value: Tensor, std: Tensor, keep: Tensor, doubt: Doubt) -> float:
    """Entry by entry, where pruned entries are 0: the mask, and the normal density of the rest."""
    size = float(sent.double().square().mean().sqrt())
    kept = [float(s) for s, k in zip(std, keep, strict=True) if k > 0]
    typical = math.sqrt(sum(s**2 for s in kept) / max(1, len(kept)))
    total = 0.0
    for y, v, s, k in zip(*(x.double().tolist() for x in (sent, value, std, keep)), strict=True):
        chance = k * doubt.kept + (1 - k) * doubt.pruned
        error = 16 * torch.finfo(sent.dtype).eps * (abs(y) + size)
        level = s if k > 0 else typical
        if y == 0:
            unseen = level == 0 and abs(v) <= error
            total += math.log(1 - chance + chance * unseen)
        else:
            total += math.log(chance) + norm.logpdf(y, v, math.sqrt(level**2 + error**2))
    return total


@pytest.mark.parametrize("noise", ["none", "levels", "some"])
@pytest.mark.parametrize("shares", ["mask", "mixed", "all pruned"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mask_in_doubt_is_weighed_entry_by_entry(
    noise: str, shares: str, dtype: torch.dtype
) -> None:
    keep = {
        "mask": torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0]),
        "mixed": torch.tensor([1.0, 0.0, 0.3, 0.0, 1.0, 0.9, 0.0, 0.0]),
        "all pruned": torch.zeros(8),
    }[shares].to(dtype)
    levels = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0 if noise == "some" else 0.5, 0.6, 0.7, 0.8])
    std = (levels * (noise != "none")).to(dtype) * (keep > 0)
    value = torch.tensor([0.3, 0.2, -0.4, 0.0, 0.0, 1.0, 0.0, 0.5], dtype=dtype)
    sent = torch.tensor([0.35, 0.0, 0.0, 0.2, 0.0, 0.9, 0.0, 0.5], dtype=dtype)
    doubt = Doubt(kept=0.95, pruned=0.02)
    mechanism = Mechanism(row(std), row(keep))
    found = log_likelihood(mechanism, row(value), row(sent), doubt)
    assert float(found) == pytest.approx(doubted(sent, value, std, keep, doubt), rel=1e-9)


@pytest.mark.parametrize("keep", [None, "mask"])
def test_messages_in_doubt_have_a_table_too(keep: str | None) -> None:
    draws, mask = torch.Generator().manual_seed(0), torch.tensor([1.0, 0.0, 1.0, 1.0])
    shares = None if keep is None else row(mask)
    mechanism = Mechanism(row(torch.tensor([0.1, 0.0, 0.3, 0.2])), shares)
    doubt = Doubt({"w": 0.3}, {"w": 0.1}, kept=0.9, pruned=0.05)
    values = [row(torch.randn(4, generator=draws)) for _ in range(3)]
    sent = [mechanism.apply(value, draws) for value in values[:2]]
    found = log_likelihoods(mechanism, values, sent, doubt)
    for line, y in zip(found, sent, strict=True):
        for log, value in zip(line, values, strict=True):
            torch.testing.assert_close(log, log_likelihood(mechanism, value, y, doubt))
