"""Eqs. 6 and 7 against Monte Carlo of what is sent."""

import pytest
import torch

from gradveil import NonFiniteError, utility
from gradveil.mechanisms import AnyMechanism, Mechanism, RoundingMechanism
from tests.defenses.cases import ALL, batch, message
from tests.mechanisms.statistics import assert_mean, draws

from .oracles import row, seeded

VALUES = message(batch())
HALF = {name: torch.full_like(value, 0.5) for name, value in VALUES.items()}
MECHANISMS: dict[str, AnyMechanism] = {
    "noise": Mechanism(0.5),
    "mixed": Mechanism(0.5, keep=0.3),
    "mixed by entry": Mechanism(0.0, keep=HALF),
    "clipped": Mechanism(0.5, clip=0.4),
    "clipped and mixed": Mechanism(0.1, keep=0.7, clip=0.4),
    "rounded": RoundingMechanism(0.5),
}


@pytest.mark.parametrize("name", [*MECHANISMS, *ALL])
def test_it_is_mean_and_variance_of_the_decrease(name: str) -> None:
    mechanism = MECHANISMS.get(name) or planned(name)
    sent = draws(lambda generator: mechanism.apply(VALUES, generator), 600)
    gains = sum((v * sent[n]).reshape(600, -1).sum(1) for n, v in VALUES.items())
    assert isinstance(gains, torch.Tensor)
    found = utility(VALUES, mechanism)
    assert_mean(gains, found.first)
    assert_mean((gains - found.first).square(), -found.second)


def planned(name: str) -> AnyMechanism:
    defense = ALL[name]()
    return defense.plan(defense.observe(message, batch(), seeded())[1])


def test_nothing_is_lost_without_a_defense() -> None:
    found = utility(VALUES, Mechanism(0.0))
    assert found.first == pytest.approx(float(row(VALUES).square().sum()))
    assert str(found.second) == "0.0"


def test_noise_leaves_the_mean_alone() -> None:
    """U1 does not depend on Σ; U2 = -Σ g_i² Σ_ii."""
    bare, noisy = utility(VALUES, Mechanism(0.0)), utility(VALUES, Mechanism(2.0))
    assert noisy.first == bare.first
    assert noisy.second == pytest.approx(-4 * float(row(VALUES).square().sum()))


def test_pruning_costs_what_is_pruned() -> None:
    keep = {name: (value.abs() > 1).double() for name, value in VALUES.items()}
    found = utility(VALUES, Mechanism(0.0, keep=keep))
    assert found.first == pytest.approx(float((row(VALUES).square() * row(keep)).sum()))
    assert found.second == 0.0


def test_sums_of_many_small_entries_do_not_lose_digits() -> None:
    """A float32 sum of 10⁶ equal numbers is off by 1e-4 or so; float64 is not."""
    values = {"w": torch.full((1_000_000,), 0.1)}
    found = utility(values, Mechanism(1.0))
    assert found.first == pytest.approx(1e4, rel=1e-7)


def test_bad_values() -> None:
    with pytest.raises(NonFiniteError, match=r"`values` should be finite.*in `w`"):
        utility({"w": torch.tensor([float("nan")])}, Mechanism(1.0))
    with pytest.raises(ValueError, match=r"`std` should have the names of `values`"):
        utility({"v": torch.ones(1)}, Mechanism({"w": torch.ones(1)}))
