"""The account of a run: it counts, it stops, it continues."""

import sys

import pytest

from gradveil.privacy import BudgetError, PrivacyAccount, epsilon_on_grid


def make(**changes) -> PrivacyAccount:
    return PrivacyAccount(**{"noise_multiplier": 4.0, "sample_rate": 1.0, "delta": 1e-5, **changes})


def test_it_counts_steps():
    account = make()
    assert account.epsilon() == 0.0
    account.step()
    account.step(15)
    assert account.steps == 16
    assert account.epsilon() == epsilon_on_grid(4.0, 1.0, 16, 1e-5)
    assert account.epsilon(more=9) == epsilon_on_grid(4.0, 1.0, 25, 1e-5)
    assert not account.would_exceed(10**6)


def test_no_step_beyond_the_budget_is_counted():
    limit = epsilon_on_grid(4.0, 1.0, 3, 1e-5)
    account = make(budget=limit)
    assert not account.would_exceed(3)
    account.step(3)
    assert account.would_exceed()
    with pytest.raises(BudgetError, match="should allow 1 more than 3 steps"):
        account.step()
    assert account.steps == 3
    assert account.epsilon() <= limit


def test_neighbours_and_sampling_matter_and_are_told():
    plain, replaced, sampled = make(), make(neighbours="replace-one"), make(sample_rate=0.1)
    for account in (plain, replaced, sampled):
        account.step(10)
    assert sampled.epsilon() < plain.epsilon() < replaced.epsilon()
    assert plain.sampling == "none: every example in every step"
    assert sampled.sampling == "Poisson: each example with probability 0.1, independently"
    assert make(unit="client").sampling == "none: every client in every step"


def test_it_continues_from_its_state():
    account = make(budget=9.0, unit="client")
    account.step(7)
    again = make(budget=9.0, unit="client")
    again.load_state_dict(account.state_dict())
    assert again.steps == 7
    assert again.epsilon() == account.epsilon()


@pytest.mark.parametrize(
    "changes", [{"noise_multiplier": 5.0}, {"delta": 1e-6}, {"unit": "client"}, {"budget": 1.0}]
)
def test_the_state_of_other_releases_is_refused(changes):
    state = make(**changes).state_dict()
    with pytest.raises(ValueError, match=f"Found other values of .*{next(iter(changes))}"):
        make().load_state_dict(state)
    with pytest.raises(ValueError, match=r"Found other values of .*steps"):
        make().load_state_dict(make().describe())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"noise_multiplier": -1.0}, "`noise_multiplier` should be a finite number of at least 0"),
        ({"sample_rate": 0.0}, r"`sample_rate` should be in \(0, 1\]"),
        ({"sample_rate": 10}, "For percentages, divide by 100"),
        ({"delta": 1.0}, r"`delta` should be in \(0, 1\)"),
        ({"unit": "batch"}, r"`unit` should be one of \['example', 'client'\]"),
        ({"budget": 0.0}, "`budget` should be a finite number above 0"),
        ({"neighbours": "swap"}, "`neighbours` should be one of"),
    ],
)
def test_wrong_arguments(changes, said):
    with pytest.raises(ValueError, match=said):
        make(**changes)


def test_without_opacus_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    account = make(sample_rate=0.123, noise_multiplier=1.234)
    account.step()
    with pytest.raises(ModuleNotFoundError, match=r'needs: pip install "gradveil\[privacy\]"'):
        account.epsilon()
    unsampled = make()
    unsampled.step()
    assert unsampled.epsilon() > 0  # the closed form needs scipy only
