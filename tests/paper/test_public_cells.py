"""Plans from public examples in cells: the same for all batches and clients, and made again."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, Public
from gradveil._random import named_stream
from gradveil.catalog import build_defense
from gradveil.defenses import NoDefense
from gradveil.shapes import Request
from paper.cells import dataset, model, planned_defense, public_moments
from paper.trainings import federation
from tests.paper.test_cells import ATTACK, MNIST, TRAINING, run

EXAMPLES = {"start": 100, "examples": 16, "refresh": 2}
DEFENSE = "optimal-clamped-noise(scale=0.1)"


def std_at(defense, start, size=2):
    inputs, targets = dataset("mnist").batch(start, size)
    message = GradientMessage(model(MNIST), cross_entropy, targets)
    generator = torch.Generator().manual_seed(start)
    return defense.respond(message, inputs, generator).mechanism.std


def test_a_plan_from_public_examples_is_the_same_for_all_batches_and_of_the_scale_asked_for():
    settings = {**ATTACK, "defense": DEFENSE, "public": EXAMPLES}
    plans = [std_at(planned_defense(settings), start) for start in (0, 40)]
    twice = {**settings, "defense": "optimal-clamped-noise(scale=0.2)"}
    other = std_at(planned_defense(twice), 0)
    for name, std in plans[0].items():
        assert torch.equal(std, plans[1][name])
        assert torch.allclose(2 * std, other[name])
    own = build_defense("optimal-clamped-noise(scale=0.1, source='private')")
    assert not torch.equal(*(std_at(own, start)["fc_layers.1.weight"] for start in (0, 40)))


def test_the_plan_is_that_of_public():
    made = planned_defense({**ATTACK, "defense": DEFENSE, "public": EXAMPLES})
    assert isinstance(made.source, Public)
    inputs, targets = dataset("mnist").batch(100, 2)
    own = replace(build_defense(DEFENSE), source=Public(dataset("mnist").batch(100, 16)))
    message = GradientMessage(model(MNIST), cross_entropy, targets)
    stream = named_stream("studies", 0, "public moments", 0)
    own.source.given(Request(own.needs, message.parameters, message, inputs, stream))
    expected = std_at(own, 0)
    for name, std in std_at(made, 0).items():
        assert torch.equal(std, expected[name])


def test_batches_of_public_data_make_the_plan_of_plain_means():
    public = {"start": 100, "size": 2, "batches": 2}
    planned = planned_defense({**ATTACK, "defense": DEFENSE, "public": public}).planned
    moments = public_moments(model(MNIST), dataset("mnist"), public, 1.0)
    expected = build_defense(DEFENSE).plan(moments).std
    assert all(torch.equal(std, expected[name]) for name, std in planned.std.items())


@pytest.mark.parametrize("public", [None, {}])
def test_without_public_data_the_defense_plans_for_itself(public):
    defense = planned_defense({**ATTACK, "defense": "no-defense", "public": public})
    assert isinstance(defense, NoDefense)


def test_clients_share_one_plan_which_is_made_again_after_some_rounds():
    settings = {**TRAINING, "rounds": 4, "defense": DEFENSE, "public": EXAMPLES}
    run_ = federation(settings)
    [shared] = {id(client.defense): client.defense for client in run_.clients.values()}.values()
    source = shared.source
    assert isinstance(source, Public)
    made = []
    make = source._made
    source._made = lambda *given: made.append(len(run_.rounds)) or make(*given)
    run_.run(4)
    assert made == [0, 2]


def test_training_keeps_the_noise_of_public_plans():
    levels = run("training", **TRAINING, defense=DEFENSE, public=EXAMPLES)["levels"]
    assert all(first == again for first, again in levels.values())  # one plan for both rounds
    own = run("training", **TRAINING, defense="optimal-clamped-noise(scale=0.1, source='private')")[
        "levels"
    ]
    assert all(first != again for first, again in own.values())


def test_an_attacker_knows_the_plan_and_nothing_is_told_apart_behind_much_noise():
    settings = {**MNIST, "start": 0, "size": 2, "examples": 200, "candidates": 5, "seed": 0}
    options = {"one_class": True, "trials": 4, "public": EXAMPLES}
    found = [
        run("identification", **settings, **options, defense=f"optimal-noise(scale={scale})")
        for scale in (1e-4, 100.0)
    ]
    assert found[0]["right"] == [True] * 4
    assert max(found[1]["bits"]) < 0.1
