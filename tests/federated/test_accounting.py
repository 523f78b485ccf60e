"""Accounts of configured runs: the multiplier for a target, the rate, and an end in time."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gradveil import PrivateNoise
from gradveil.catalog import build_defense
from gradveil.federated import (
    SEEDED,
    TrainingConfig,
    TrainingHistory,
    build_run,
    load_split,
    partition,
    privacy_statement,
    train,
)
from gradveil.federated._train import accounted
from gradveil.privacy import epsilon_on_grid

from .small import image_file

MODEL = "tests.federated.small:flat_mlp"
TARGETS = torch.arange(100) % 10


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    return image_file(tmp_path_factory.mktemp("data"))


def config(data: str = "mnist", **options: object) -> TrainingConfig:
    given = {"defense": "private-noise(clip=1.0)", "batch_size": 5, "rounds": 4, **options}
    return TrainingConfig(data=data, model=MODEL, **given)  # type: ignore[arg-type]


def multiplier(of: TrainingConfig) -> float:
    defense = build_defense(of.defense)
    assert isinstance(defense, PrivateNoise)
    return defense.noise_multiplier


@pytest.mark.parametrize("target", [0.5, 3.0])
def test_the_multiplier_for_a_target_is_the_smallest(target):
    found = multiplier(accounted(config(target_epsilon=target), TARGETS)[0])
    spent, more = (epsilon_on_grid(z, 0.2, 4, 1e-5) for z in (found, 0.997 * found))
    assert spent <= target < more


def test_what_is_settled_stays():
    once = accounted(config(target_epsilon=2.0), TARGETS)[0]
    assert accounted(once, TARGETS)[0] == once
    given = config(defense="private-noise(3.0, clip=1.0)", target_epsilon=2.0)
    assert multiplier(accounted(given, TARGETS)[0]) == 3.0
    other = config(defense="gradient-noise(0.1)")
    assert accounted(other, TARGETS)[0] is other
    assert accounted(other, TARGETS)[1] is None


def test_the_largest_rate_is_accounted_for():
    uneven = config(defense="private-noise(1.0, 1.0)", partition="dirichlet", alpha=0.3, clients=3)
    sizes = [len(part) for part in partition(TARGETS, 3, "dirichlet", alpha=0.3)]
    assert len(set(sizes)) > 1
    account = accounted(uneven, TARGETS)[1]
    assert account is not None
    assert account.sample_rate == min(1.0, 5 / min(size for size in sizes if size))


def test_units_and_neighbours():
    def told(**options: object) -> tuple[str, float, str]:
        chosen = config(defense="private-noise(1.0, 1.0)", **options)
        account = accounted(chosen, TARGETS)[1]
        assert account is not None
        return account.unit, account.sample_rate, account.neighbours

    assert told() == ("example", 0.2, "zero-out")
    assert told(batch_size=64) == ("example", 1.0, "zero-out")
    assert told(sample_rate=0.3) == ("example", 0.3, "add-remove")
    assert told(sampling="shuffle") == ("example", 1.0, "replace-one")
    assert told(local_steps=2) == ("client", 1.0, "zero-out")


def test_the_account_and_the_clients_have_one_relation(images: str):
    for options in ({}, {"sample_rate": 0.3}, {"sampling": "shuffle"}):
        defense = "private-noise(1.0, 1.0)"
        chosen = config(images, defense=defense, limit=40, held_out=0, clients=2, **options)
        run = build_run(chosen, allow_imports=True)
        assert run.account is not None
        assert {c.batches.neighbours for c in run.clients.values()} == {run.account.neighbours}


def test_a_target_needs_a_defense_that_can_meet_it():
    wrong = config(defense="gradient-noise(0.1)", target_epsilon=1.0)
    with pytest.raises(ValueError, match=r"has no such guarantee at any amount. Use private-noise"):
        accounted(wrong, TARGETS)[0]
    with pytest.raises(
        TypeError, match="`clip` of `private-noise`"
    ):  # only the multiplier is solved for
        accounted(config(defense="private-noise", target_epsilon=1.0), TARGETS)[0]


def test_a_run_to_its_target(images: str, tmp_path: Path):
    chosen = config(images, limit=100, held_out=16, clients=2, target_epsilon=2.0, secure=True)
    history = train(chosen, out=tmp_path, allow_imports=True)
    assert history.privacy is not None
    z = history.privacy["noise_multiplier"]
    assert [row.epsilon for row in history.rounds] == [
        epsilon_on_grid(z, 0.1, steps, 1e-5) for steps in (1, 2, 3, 4)
    ]
    assert all(row.examples == 10 for row in history.rounds)
    assert (history.stopped, history.privacy["simulation"]) == (None, False)
    assert history.rounds[-1].epsilon <= 2.0
    assert f"noise_multiplier={z}" in history.config["defense"]
    statement = privacy_statement(history)
    assert statement is not None
    assert "at δ = 1e-05 after 4 rounds, for each example (one example replaced by an" in statement
    assert "Poisson: each example with probability 0.1, independently" in statement


def test_a_run_ends_before_it_exceeds_its_target(images: str):
    between = (epsilon_on_grid(1.0, 0.1, 2, 1e-5) + epsilon_on_grid(1.0, 0.1, 3, 1e-5)) / 2
    chosen = config(images, limit=100, held_out=16, clients=2, target_epsilon=between)
    chosen = replace(chosen, defense="private-noise(1.0, clip=1.0)")
    history = train(chosen, allow_imports=True)
    assert len(history.rounds) == 2
    assert history.stopped is not None
    assert history.stopped.startswith("In this simulation, after 2 rounds")
    assert "(one example replaced by an empty one; how many" in history.stopped
    assert history.rounds[-1].accuracy is not None


def test_a_run_of_local_steps_is_accounted_for_by_client(images: str):
    chosen = config(images, limit=40, held_out=0, clients=2, target_epsilon=5.0, local_steps=2)
    history = train(chosen, allow_imports=True)
    assert history.privacy is not None
    assert (history.privacy["unit"], history.privacy["sample_rate"]) == ("client", 1.0)
    statement = privacy_statement(history)
    assert statement is not None
    assert "for each client (one client replaced by an empty one" in statement
    assert "clipped as a whole" in statement


def test_clients_do_as_the_account_says(images: str):
    chosen = config(images, limit=100, held_out=0, clients=2, target_epsilon=2.0)
    run = build_run(chosen, load_split(chosen), allow_imports=True)
    assert run.account is not None
    for client in run.clients.values():
        assert client.batches.rate == run.account.sample_rate == 0.1
        assert isinstance(client.defense, PrivateNoise)
        assert client.defense.noise_multiplier == run.account.noise_multiplier
        assert client.defense.batch_size == 5


def test_a_run_without_an_account_has_no_statement(images: str):
    plain = config(images, defense="gradient-noise(0.1)", limit=40, held_out=0, rounds=1)
    assert privacy_statement(train(plain, allow_imports=True)) is None


def test_a_seeded_run_is_a_simulation_in_all_that_it_leaves(images: str, tmp_path: Path):
    for secure in (False, True):
        chosen = config(images, limit=40, held_out=0, clients=2, rounds=2, target_epsilon=5.0)
        out = tmp_path / str(secure)
        history = train(replace(chosen, secure=secure), out=out, allow_imports=True)
        stored = TrainingHistory.from_json((out / "history.json").read_text())
        for told in (history, stored):
            assert told.privacy is not None
            assert told.privacy["simulation"] is told.simulation is (not secure)
            assert (privacy_statement(told) or "").startswith(SEEDED) is (not secure)
        header = (out / "rounds.csv").read_text().splitlines()[0].split(",")
        assert ("epsilon" in header, "epsilon_simulated" in header) == (secure, not secure)


@pytest.mark.parametrize("grid", [True, False])
def test_the_statement_tells_of_floating_point(grid: bool):
    account = accounted(config(defense=f"private-noise(1.0, clip=1.0, grid={grid})"), TARGETS)[1]
    assert account is not None
    assert account.grid == grid
    told = privacy_statement(TrainingHistory((), privacy=account.describe()))
    assert told is not None
    assert ("The noise is continuous" in told) == (not grid)
