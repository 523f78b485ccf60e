"""ε of sampled releases: against Opacus, integrals and closed forms."""

import warnings

import numpy as np
import pytest
from scipy import stats

from gradveil.privacy import epsilon_after, solve_noise_multiplier
from gradveil.privacy._releases import _range, gaussian_epsilon, loss_curve, renyi_epsilon

from .oracles import composed_epsilon, hockey_stick, sampled, shifted

DELTA = 1e-5
CASES = [(0.1, 1.0, 50), (0.02, 0.8, 200), (0.5, 4.0, 10), (0.01, 1.0, 1)]
PLD = {(0.1, 1.0, 50): 5.148263, (0.02, 0.8, 200): 3.263148, (0.01, 1.0, 10000): 6.187745}
"""By the privacy loss distribution of dp-accounting 0.6.0, an upper bound with its own mesh."""


def opacus(kind: str, rate: float, std: float, steps: int) -> float:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from opacus.accountants import create_accountant

        accountant = create_accountant(kind)
        accountant.history = [(std, rate, steps)]
        return accountant.get_epsilon(DELTA)


@pytest.mark.parametrize("case", CASES)
def test_renyi_is_that_of_opacus(case):
    assert renyi_epsilon(*case, DELTA) == pytest.approx(opacus("rdp", *case), rel=1e-9)


@pytest.mark.parametrize("case", CASES[:2])
def test_composition_agrees_with_opacus_within_its_error(case):
    rate, std, steps = case
    found = epsilon_after(std, rate, steps, DELTA)
    error = loss_curve(*case, DELTA / 1000).epsilon_error
    assert error <= 0.01
    theirs = opacus("prv", *case)  # with 0.01 added
    assert theirs - 0.02 <= found <= theirs + 1e-3
    assert found < opacus("rdp", *case)


@pytest.mark.parametrize("case", list(PLD)[:2])
def test_composition_agrees_with_privacy_loss_distributions(case):
    rate, std, steps = case
    error = loss_curve(*case, DELTA / 1000).epsilon_error
    found = epsilon_after(std, rate, steps, DELTA)
    assert PLD[case] - 0.001 <= found <= PLD[case] + 2 * error


@pytest.mark.slow
def test_ten_thousand_steps():
    case = (0.01, 1.0, 10000)
    assert PLD[case] <= epsilon_after(1.0, 0.01, 10000, DELTA) <= PLD[case] + 0.02


@pytest.mark.parametrize(("rate", "std"), [(0.1, 1.0), (0.02, 0.8)])
def test_one_step_is_the_integral(rate, std):
    p, q = sampled(rate, std, 1.0), sampled(rate, std, 0.0)
    curve = loss_curve(rate, std, 1, 1e-9)
    for epsilon in (-0.05, 0.0, 0.3, 1.0):
        exact = hockey_stick(p, q, epsilon, 1 + 12 * std)
        shifted = epsilon - curve.epsilon_error
        gains = np.clip(-np.expm1(shifted - curve.losses), 0.0, None)
        found = float(curve.probabilities @ gains) + curve.delta_error
        assert exact <= found <= exact + 1.1e-3
    delta = hockey_stick(p, q, 0.3, 1 + 12 * std)
    assert 0.3 <= epsilon_after(std, rate, 1, delta) <= 0.305


def test_removing_is_the_worse_direction_for_one_step():
    """The account looks at P over Q only; Q over P is smaller."""
    p, q = sampled(0.1, 1.0, 1.0), sampled(0.1, 1.0, 0.0)
    for epsilon in (0.0, 0.1, 0.5):
        assert hockey_stick(q, p, epsilon, 13) <= hockey_stick(p, q, epsilon, 13) + 1e-9


@pytest.mark.parametrize(("std", "steps"), [(1.0, 1), (4.0, 16), (0.3, 1), (50.0, 100)])
def test_without_sampling_it_is_the_closed_form(std, steps):
    mu = np.sqrt(steps) / std
    assert epsilon_after(std, 1.0, steps, DELTA) == gaussian_epsilon(DELTA, mu)
    replaced = epsilon_after(std, 1.0, steps, DELTA, "replace-one")
    assert replaced == gaussian_epsilon(DELTA, 2 * mu)
    assert opacus("prv", 1.0, std, steps) == pytest.approx(
        epsilon_after(std, 1.0, steps, DELTA), abs=0.012
    )


def test_a_rate_near_one_is_near_the_closed_form():
    near, exact = epsilon_after(4.0, 0.9999, 16, DELTA), gaussian_epsilon(DELTA, 1.0)
    assert exact - 1e-3 < near < exact + 0.01


@pytest.mark.parametrize(("rate", "std"), [(0.1, 1.0), (0.5, 4.0)])
def test_replacing_is_bounded(rate, std):
    """P and Q with gradients of opposite directions, integrated; and not above four times ε."""
    p, q = sampled(rate, std, 1.0), sampled(rate, std, -1.0)
    bound = epsilon_after(std, rate, 1, DELTA, "replace-one")
    assert hockey_stick(p, q, bound, 1 + 12 * std) < DELTA
    assert bound < 4 * epsilon_after(std, rate, 1, DELTA)


def drawn(count: int, rate: float, last: int = 0):
    """Probabilities of the sum of a Poisson sample: gradients of 1, and a last one of 0 or -1."""
    others = {k: float(stats.binom.pmf(k, count - 1, rate)) for k in range(count)}
    with_last = {k + last: rate * share for k, share in others.items()}
    rest = {k: (1 - rate) * share for k, share in others.items()}
    return {k: with_last.get(k, 0) + rest.get(k, 0) for k in {*with_last, *rest}}


def test_a_rate_made_from_n_is_zero_out_and_not_add_remove():
    """B, n, z, T = 16, 17, 5, 25: the 17th has a gradient of -1, all others of 1.

    Without it q is 16/16. Removing it takes ε from the 4.10 and 4.38 that accounts at n = 17 and 16
    say to 9.78. A record of zeros in its place leaves q at 16/17, and the 4.10 holds.
    """
    std, steps, reach = 5.0, 25, (-70.0, 87.0)
    full = shifted(drawn(17, 16 / 17, -1), std)
    removed, zeroed = shifted(drawn(17, 1.0), std), shifted(drawn(17, 16 / 17), std)
    told = epsilon_after(std, 16 / 17, steps, DELTA, "zero-out")
    assert told == epsilon_after(std, 16 / 17, steps, DELTA) == pytest.approx(4.10, abs=0.01)
    assert epsilon_after(std, 1.0, steps, DELTA) == pytest.approx(4.38, abs=0.01)
    assert composed_epsilon(full, removed, steps, DELTA, *reach)[0] == pytest.approx(9.78, abs=0.01)
    for pair in ((full, zeroed), (zeroed, full)):
        assert composed_epsilon(*pair, steps, DELTA, *reach)[1] <= told


@pytest.mark.parametrize(("rate", "std", "steps"), [(16 / 17, 5.0, 25), (0.2, 1.5, 20)])
def test_zero_out_is_the_sampled_gaussian_pair_in_both_directions(rate, std, steps):
    """All others 0, the worst case: the number is not below the integral, and hardly above."""
    p, q, reach = sampled(rate, std, 1.0), sampled(rate, std, 0.0), 1 + 14 * std
    told = epsilon_after(std, rate, steps, DELTA, "zero-out")
    low, high = composed_epsilon(p, q, steps, DELTA, -reach, reach)
    assert low <= told <= high + 0.01
    assert composed_epsilon(q, p, steps, DELTA, -reach, reach)[1] <= told


def test_without_sampling_zero_out_moves_the_sum_by_one_clip():
    assert epsilon_after(4.0, 1.0, 16, DELTA, "zero-out") == gaussian_epsilon(DELTA, 1.0)


def test_the_range_of_losses_is_that_of_opacus():
    from opacus.accountants.analysis.prv import (
        PoissonSubsampledGaussianPRV,
        compute_safe_domain_size,
    )

    theirs = compute_safe_domain_size([PoissonSubsampledGaussianPRV(0.1, 1.0)], [50], 1e-3, 1e-8)
    assert _range(0.1, 1.0, 50, 1e-8) == pytest.approx(theirs)


def test_it_grows_with_steps_and_rate_and_falls_with_noise():
    found = [epsilon_after(1.0, 0.1, steps, DELTA) for steps in (1, 2, 3, 8, 9)]
    assert found == sorted(found)
    assert epsilon_after(1.0, 0.2, 8, DELTA) > found[3] > epsilon_after(1.2, 0.1, 8, DELTA)


def test_the_ends():
    assert epsilon_after(1.0, 0.1, 0, DELTA) == 0.0
    assert epsilon_after(0.0, 0.1, 1, DELTA) == np.inf
    assert epsilon_after(0.05, 0.9, 100, DELTA) > 1000  # no room for a composition: Rényi
    assert epsilon_after(1.0, 0.1, 10, 1e-13) >= epsilon_after(1.0, 0.1, 10, 1e-10)


@pytest.mark.parametrize(("rate", "steps"), [(1.0, 16), (0.1, 50)])
def test_the_noise_is_solved_for(rate, steps):
    found = solve_noise_multiplier(3.0, DELTA, rate, steps)
    assert epsilon_after(found, rate, steps, DELTA) <= 3.0
    assert epsilon_after(0.998 * found, rate, steps, DELTA) > 3.0


def test_targets_that_little_and_much_noise_reach():
    assert solve_noise_multiplier(1e5, DELTA, 1.0, 1) < 0.02
    found = solve_noise_multiplier(1e-3, DELTA, 1.0, 100)
    assert epsilon_after(found, 1.0, 100, DELTA) <= 1e-3
    with pytest.raises(ValueError, match="should be within reach of a noise multiplier"):
        solve_noise_multiplier(1e-9, 1e-12, 1.0, 10**6)
