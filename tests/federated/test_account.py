"""Runs with a privacy account: ε after each round, an end before the budget, resumed counts."""

from pathlib import Path

import pytest
from torch.nn.functional import cross_entropy

from gradveil import GradientNoise, PrivateNoise
from gradveil.federated import Client, FederatedRun, TrainingHistory
from gradveil.privacy import BudgetError, PrivacyAccount, epsilon_on_grid

from .small import client, examples, server

NOISE = PrivateNoise(4.0, clip=1.0)


def account(**changes: object) -> PrivacyAccount:
    options = {"noise_multiplier": 4.0, "sample_rate": 1.0, "delta": 1e-5, **changes}
    return PrivacyAccount(**options)  # type: ignore[arg-type]


def run(defense: PrivateNoise, **options: object) -> FederatedRun:
    clients = [client(i, defense, sample_rate=1.0) for i in range(3)]
    return FederatedRun(server(), clients, cross_entropy, **options)  # type: ignore[arg-type]


def epsilon(rounds: int) -> float:
    return epsilon_on_grid(4.0, 1.0, rounds, 1e-5)


def test_each_round_has_its_epsilon():
    history = run(NOISE, account=account()).run(3)
    assert [row.epsilon for row in history.rounds] == [epsilon(1), epsilon(2), epsilon(3)]
    assert history.privacy is not None
    assert history.privacy["delta"] == 1e-5
    assert history.privacy["sampling"] == "none: every example in every step"
    assert history.stopped is None
    assert TrainingHistory.from_json(history.to_json()) == history
    assert f",{epsilon(3)!r}" in history.to_csv()


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_an_account_of_one_more_or_less_needs_a_public_rate(sampling: str):
    relation = {"poisson": "zero-out", "shuffle": "replace-one"}[sampling]
    own, private = server(), PrivateNoise(4.0, clip=1.0)
    clients = [Client(0, *examples(8), private, batch_size=4, seed=0, sampling=sampling)]
    with pytest.raises(ValueError, match=rf"Client 0 .* have one about neighbours='{relation}'"):
        FederatedRun(own, clients, cross_entropy, account=account())
    FederatedRun(own, clients, cross_entropy, account=account(neighbours=relation))
    clients = [Client(0, *examples(8), private, batch_size=4, seed=0, sample_rate=0.3)]
    FederatedRun(own, clients, cross_entropy, account=account())


@pytest.mark.parametrize(
    ("expected", "claimed", "defense", "options"),
    [
        ("clip and noise each example", {}, GradientNoise(1.0), {}),
        ("clip and noise each example", {}, PrivateNoise(4.0, 1.0, unit="client"), {}),
        ("clip and noise each client", {"unit": "client"}, PrivateNoise(4.0, 1.0), {}),
        ("noise_multiplier >= 4", {}, PrivateNoise(3.9, 1.0), {"sample_rate": 0.3}),
        ("on a grid", {}, PrivateNoise(4.0, 1.0, grid=False), {"sample_rate": 0.3}),
        ("a rate of 0.3 at most", {"sample_rate": 0.3}, PrivateNoise(4.0, 1.0), {}),
        (
            "'replace-one'",
            {"neighbours": "zero-out"},
            PrivateNoise(4.0, 1.0),
            {"sampling": "shuffle"},
        ),
    ],
)
def test_an_account_claims_no_more_than_clients_do(expected, claimed, defense, options):
    clients = [Client(0, *examples(8), defense, batch_size=4, seed=0, **options)]
    claims = {"noise_multiplier": 4.0, "sample_rate": 1.0, "delta": 1e-5} | claimed
    with pytest.raises(ValueError, match=expected):
        FederatedRun(server(), clients, cross_entropy, account=PrivacyAccount(**claims))


def test_without_an_account_nothing_is_claimed():
    history = run(NOISE).run(1)
    assert (history.rounds[0].epsilon, history.privacy, history.stopped) == (None, None, None)


def test_a_run_ends_before_the_round_that_its_budget_forbids():
    budget = (epsilon(3) + epsilon(4)) / 2
    started = run(NOISE, account=account(budget=budget), held_out=examples(8), evaluate_every=100)
    history = started.run(10)
    assert len(history.rounds) == 3
    assert history.rounds[-1].epsilon == epsilon(3) < budget
    assert history.rounds[-1].accuracy is not None  # it is the last, and evaluated
    assert history.stopped is not None
    assert f"after 3 rounds ε is {epsilon(3):.4g} at δ = 1e-05 (one example more or" in (
        history.stopped
    )
    with pytest.raises(BudgetError):
        started.step()
    assert len(started.rounds) == 3


def test_a_budget_below_one_round_sends_nothing():
    started = run(NOISE, account=account(budget=epsilon(1) / 2))
    assert started.run(5).rounds == ()
    assert [each.state_dict()["step"] for each in started.clients.values()] == [0, 0, 0]


def resumed(folder: Path, seed: int | None, kept: int) -> FederatedRun:
    """A run that was killed in round `kept + 2`, one round of it after the last checkpoint."""

    def fresh() -> FederatedRun:
        clients = [client(i, NOISE, seed=seed, sample_rate=1.0) for i in range(2)]
        return FederatedRun(server(), clients, cross_entropy, account=account())

    def kill(metrics: object) -> None:
        if len(killed.rounds) == kept + 1:
            raise KeyboardInterrupt

    killed = fresh()
    with pytest.raises(KeyboardInterrupt):
        killed.run(10, folder=folder, checkpoint_every=kept, on_round=kill)
    again = fresh()
    again.resume(folder)
    return again


def test_a_resumed_run_counts_what_was_released_twice(tmp_path):
    again = resumed(tmp_path, None, 2)
    assert len(again.rounds) == 2
    assert again.account is not None
    assert again.account.steps == 3
    assert again.step().epsilon == epsilon(4)


def test_what_was_released_before_the_first_checkpoint_counts(tmp_path):
    """Killed in round 3, with checkpoints every 8."""

    def fresh() -> FederatedRun:
        clients = [client(i, NOISE, seed=None, sample_rate=1.0) for i in range(2)]
        return FederatedRun(server(), clients, cross_entropy, account=account())

    def kill(metrics: object) -> None:
        if len(killed.rounds) == 3:
            raise KeyboardInterrupt

    killed = fresh()
    with pytest.raises(KeyboardInterrupt):
        killed.run(10, folder=tmp_path, on_round=kill)
    again = fresh()
    again.resume(tmp_path)
    assert len(again.rounds) == 0
    assert again.step().epsilon == epsilon(4)


def test_a_start_in_the_same_folder_forgets_no_release(tmp_path):
    """Killed in round 6, started again without `resume`, killed in round 2."""

    def fresh() -> FederatedRun:
        clients = [client(i, NOISE, seed=None, sample_rate=1.0) for i in range(2)]
        return FederatedRun(server(), clients, cross_entropy, account=account())

    def play(rounds: int) -> FederatedRun:
        def kill(metrics: object) -> None:
            if len(started.rounds) == rounds:
                raise KeyboardInterrupt

        started = fresh()
        with pytest.raises(KeyboardInterrupt):
            started.run(20, folder=tmp_path, checkpoint_every=4, on_round=kill)
        return started

    play(6)
    second = play(2)
    again = fresh()
    again.resume(tmp_path)
    assert again.account is not None
    assert second.account is not None
    assert again.account.steps == second.account.steps == 8


def test_with_a_seed_the_same_bytes_are_sent_again_and_count_once(tmp_path):
    again = resumed(tmp_path, 0, 2)
    assert again.account is not None
    assert again.account.steps == 2
    assert again.step().epsilon == epsilon(3)


def test_the_account_is_part_of_what_a_checkpoint_belongs_to():
    prints = {
        run(NOISE).fingerprint,
        run(NOISE, account=account()).fingerprint,
        run(NOISE, account=account(delta=1e-6)).fingerprint,
    }
    assert len(prints) == 3


def test_something_else_is_no_account():
    with pytest.raises(TypeError, match="Parameter `account` should be of type PrivacyAccount"):
        run(NOISE, account=4.0)
