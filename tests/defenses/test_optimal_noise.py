"""Theorem 2 and Eq. 10: at equal second-order utility nothing reveals less."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gradveil import GradientMessage, Moments, OptimalNoise, measure
from gradveil.models import build_model
from gradveil.theory import fisher_trace, share_of_optimum

from .cases import FREE, SWEEPS, Sweep, batch, like, message, powers, row
from .properties import (
    EXACT,
    assert_no_better_noise,
    assert_noise_is_stationary,
    at_equal_price,
    noise_price,
    perturbed,
    with_powers,
)


@pytest.mark.parametrize("sweep", SWEEPS, ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_feasible_noise_reveals_less(sweep: Sweep, seed: int) -> None:
    moments = sweep.moments(seed)
    mechanism = OptimalNoise(0.1, **FREE, source="private").plan(moments)
    assert_noise_is_stationary(moments, mechanism)
    assert_no_better_noise(moments, mechanism, perturbed(powers(mechanism), seed))
    assert_no_better_noise(moments, mechanism, iter([torch.ones(moments.size).double()]))


@pytest.mark.parametrize("sweep", SWEEPS, ids=str)
def test_cauchy_holds_with_equality(sweep: Sweep) -> None:
    """tr J_F · Σ g_i² Σ_ii = (Σ s_i |g_i|)², the least that the product can be."""
    moments = sweep.moments(3)
    mechanism = OptimalNoise(0.1, **FREE, source="private").plan(moments)
    product = fisher_trace(moments, mechanism) * noise_price(moments, mechanism)
    squares = row(moments.squared_values) * row(moments.known_squared_sensitivities)
    assert product == pytest.approx(float(squares.sqrt().sum()) ** 2, rel=EXACT, abs=0)


@pytest.mark.parametrize("sweep", [s for s in SWEEPS if s.decades > 0], ids=str)
def test_erratum_4_squared_sensitivities_are_worse(sweep: Sweep) -> None:
    """Algorithm 1, step 4 prints Σ_ii = λ ‖∇g_i‖² / |g_i|; Eq. 10 has ‖∇g_i‖."""
    moments = sweep.moments()
    mechanism = OptimalNoise(0.1, **FREE, source="private").plan(moments)
    printed = row(moments.known_squared_sensitivities) / row(moments.squared_values).sqrt()
    rival = at_equal_price(moments, printed, mechanism)
    assert_noise_is_stationary(moments, mechanism)
    if moments.size > 1:
        assert fisher_trace(moments, rival) > 1.05 * fisher_trace(moments, mechanism)
        assert share_of_optimum(moments, rival) < 0.95


def one_per_tensor(variances: Tensor, moments: Moments, seed: int) -> Iterator[Tensor]:
    """Perturbations that keep one level for each tensor."""
    levels = torch.stack([t.flatten()[0] for t in like(variances, moments.squared_values).values()])
    for rival in perturbed(levels, seed):
        expanded = {
            name: level.expand(tensor.shape)
            for level, (name, tensor) in zip(rival, moments.squared_values.items(), strict=True)
        }
        yield row(expanded)


@pytest.mark.parametrize("sweep", SWEEPS, ids=str)
def test_layer_granularity_is_the_best_with_one_level_per_tensor(sweep: Sweep) -> None:
    moments = sweep.moments(4)
    mechanism = OptimalNoise(0.1, granularity="layer", **FREE, source="private").plan(moments)
    levels = like(powers(mechanism), moments.squared_values)
    assert all(float(level.max()) == float(level.min()) for level in levels.values())
    assert_no_better_noise(moments, mechanism, one_per_tensor(powers(mechanism), moments, seed=4))
    squares, slopes = moments.squared_values, moments.known_squared_sensitivities
    least = sum(float(squares[n].sum() * slopes[n].sum()) ** 0.5 for n in squares) ** 2
    found = fisher_trace(moments, mechanism) * noise_price(moments, mechanism)
    assert found == pytest.approx(least, rel=EXACT, abs=0)


def test_layer_granularity_is_between_isotropic_and_by_entry() -> None:
    moments = SWEEPS[0].moments()
    by_entry = OptimalNoise(0.1, **FREE, source="private").plan(moments)
    layer = OptimalNoise(0.1, granularity="layer", **FREE, source="private").plan(moments)
    isotropic = with_powers(torch.ones(moments.size).double(), by_entry)
    shares = [share_of_optimum(moments, m) for m in (isotropic, layer, by_entry)]
    assert shares == sorted(shares)
    assert shares[2] == pytest.approx(1.0, rel=EXACT, abs=0)


def test_global_form_is_the_best_fixed_plan_for_many_batches() -> None:
    """Theorem 2: one Σ for all batches; the expectation is linear in the moments."""
    batches = [SWEEPS[0].moments(seed) for seed in range(6)]
    mean = Moments.average(batches)
    planned = OptimalNoise(0.1, **FREE, source="private").plan(mean)
    expected = sum(fisher_trace(one, planned) for one in batches) / len(batches)
    assert fisher_trace(mean, planned) == pytest.approx(expected, rel=EXACT, abs=0)
    assert_noise_is_stationary(mean, planned)
    local = (powers(OptimalNoise(0.1, **FREE, source="private").plan(one)) for one in batches)
    assert_no_better_noise(mean, planned, local)
    assert_no_better_noise(mean, planned, perturbed(powers(planned)))


def test_local_form_is_the_best_for_its_own_batch() -> None:
    batches = [SWEEPS[0].moments(seed) for seed in range(6)]
    shared = powers(OptimalNoise(0.1, **FREE, source="private").plan(Moments.average(batches)))
    for one in batches:
        local = OptimalNoise(0.1, **FREE, source="private").plan(one)
        assert_no_better_noise(one, local, iter([shared]))
        rival = at_equal_price(one, shared, local)
        assert fisher_trace(one, rival) > 1.1 * fisher_trace(one, local)


def test_average_of_one_batch_is_the_local_form() -> None:
    moments = SWEEPS[0].moments()
    first, second = (
        OptimalNoise(0.1, source="private").plan(m)
        for m in (moments, Moments.average([moments, moments]))
    )
    torch.testing.assert_close(powers(first), powers(second))


@pytest.mark.parametrize("factor", [1e-9, 1e9])
def test_plan_does_not_depend_on_the_units_of_the_inputs(factor: float) -> None:
    """x in other units multiplies every sensitivity by one factor, which λ takes back."""
    sweep = SWEEPS[0]
    other = Sweep("scaled", slope_size=factor)
    plans = [
        powers(OptimalNoise(0.1, **FREE, source="private").plan(s.moments()))
        for s in (sweep, other)
    ]
    torch.testing.assert_close(*plans, rtol=EXACT, atol=0.0)


@pytest.mark.parametrize("sweep", SWEEPS, ids=str)
def test_single_precision_agrees(sweep: Sweep) -> None:
    """Float32 keeps 7 digits; a ratio, its root and the sum lose less than one of them."""
    moments = sweep.moments(5)
    single = Moments(
        {n: t.float() for n, t in moments.squared_values.items()},
        {n: t.float() for n, t in moments.known_squared_sensitivities.items()},
        moments.input_size,
    )
    plans = [powers(OptimalNoise(0.1, **FREE, source="private").plan(m)) for m in (moments, single)]
    torch.testing.assert_close(plans[1], plans[0], rtol=1e-5, atol=0.0)


def test_moments_of_a_clipped_message_are_refused() -> None:
    moments = measure(message, batch(), "exact", clip=0.5)
    with pytest.raises(ValueError, match=r"Found moments clamped to 0\.5"):
        OptimalNoise(0.1, source="private").plan(moments)


def test_a_target_for_layers_is_met_on_all_examples() -> None:
    model = build_model("mlp", sizes=[6, 16, 3])
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(12, 6, generator=generator) * torch.linspace(0.1, 6, 12).view(-1, 1)
    targets = torch.arange(12) % 3
    gradient = GradientMessage(model, torch.nn.functional.cross_entropy, targets)
    defense = OptimalNoise(target_error=0.5, granularity="layer", source="private")
    mechanism = defense.plan(defense.observe(gradient, inputs, generator)[1])
    exact = measure(gradient, inputs, "exact")
    assert inputs.numel() / fisher_trace(exact, mechanism) == pytest.approx(0.5, rel=0.5)
