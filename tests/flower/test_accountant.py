"""Our account behind Flower's protocol, and inside of Flower's private strategy."""

import pytest
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyAccountant,
    PrivacyConfig,
    SamplingMethod,
)
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from gradveil.flower import ClientAccountant
from gradveil.privacy import delta_after, epsilon_after

EVENT = GaussianPrivacyEvent(noise_multiplier=4.0, sample_size=10, population_size=100)


def make(
    sampling: SamplingMethod = SamplingMethod.NO_AMPLIFICATION,
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
    most: float | None = None,
) -> ClientAccountant:
    return ClientAccountant(PrivacyConfig(1e-5, 100, relation, sampling, most))


@pytest.mark.parametrize(
    ("sampling", "rate"), [(SamplingMethod.NO_AMPLIFICATION, 1.0), (SamplingMethod.POISSON, 0.1)]
)
def test_its_numbers_are_those_of_the_account(sampling, rate):
    accountant: PrivacyAccountant = make(sampling)
    assert accountant.get_privacy_spent().epsilon == 0.0
    accountant.compose(EVENT, count=9)
    accountant.compose(EVENT)
    spent = accountant.get_privacy_spent()
    assert spent.epsilon == epsilon_after(4.0, rate, 10, 1e-5)
    assert (spent.delta, spent.num_releases) == (1e-5, 10)
    assert accountant.get_delta(1.0) == delta_after(4.0, rate, 10, 1.0)


def test_a_limit_is_seen_before_it_is_passed():
    accountant = make(most=epsilon_after(4.0, 1.0, 3, 1e-5))
    accountant.compose(EVENT, count=2)
    assert not accountant.would_exceed(EVENT)
    assert accountant.would_exceed(EVENT, count=2)
    assert accountant.num_releases == 2
    with pytest.raises(ValueError, match="`max_epsilon` should be given"):
        make().would_exceed(EVENT)


def test_it_continues_from_its_state():
    accountant, again = make(), make()
    again.load_state_dict(accountant.state_dict())
    assert again.num_releases == 0
    accountant.compose(EVENT, count=5)
    again.load_state_dict(accountant.state_dict())
    assert again.get_privacy_spent() == accountant.get_privacy_spent()


def test_flowers_strategy_takes_it():
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), noise_multiplier=4.0, clipping_norm=1.0, num_sampled_clients=10, accountant=make()
    )
    strategy._compose_release(EVENT)
    spent = strategy.privacy_spent()
    assert spent is not None
    assert spent.epsilon == epsilon_after(4.0, 1.0, 1, 1e-5)


def test_what_it_cannot_account_for_is_refused():
    with pytest.raises(ValueError, match="Found without-replacement and replace-one"):
        make(SamplingMethod.WITHOUT_REPLACEMENT, NeighboringRelation.REPLACE_ONE)
    accountant = make()
    accountant.compose(EVENT)
    with pytest.raises(ValueError, match="should be like the releases before it"):
        accountant.compose(GaussianPrivacyEvent(3.0, 10, 100))
    with pytest.raises(ValueError, match="should be of 100 clients"):
        accountant.compose(GaussianPrivacyEvent(4.0, 10, 90))
    assert accountant.num_releases == 1
