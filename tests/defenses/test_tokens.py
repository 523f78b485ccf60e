"""Defenses of models of tokens: no row of a table goes bare, used or not."""

import pytest
import torch

from gradveil import (
    ClampedNoise,
    GradientNoise,
    GradientPruning,
    OptimalClampedNoise,
    OptimalNoise,
    PrivateNoise,
    Public,
    reconstruction_bound,
)
from gradveil.defenses import Defense
from tests.text import CLASSES, TOKENS, generator, message_of, sequences, transformer

IDS = sequences(3)
USED = torch.zeros(TOKENS, dtype=torch.bool).index_fill(0, IDS.flatten(), True)


def public(causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    ids = sequences(12, seed=5)
    return ids, ids if causal else torch.arange(12) % CLASSES


PLANNED = {
    "gradient noise": lambda causal: GradientNoise(0.1),
    "optimal noise": lambda causal: OptimalNoise(0.1),
    "dp-sgd": lambda causal: ClampedNoise(0.1, 1.0),
    "optimal dp-sgd": lambda causal: OptimalClampedNoise(0.1, 1.0),
    "private noise": lambda causal: PrivateNoise(1.0, 0.5),
    "public target": lambda causal: OptimalNoise(target_error=0.5, source=Public(public(causal))),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", sorted(PLANNED))
def test_all_rows_of_the_table_have_the_same_noise(name, causal):
    defense: Defense = PLANNED[name](causal)
    response = defense.respond(message_of(causal, IDS), IDS, generator())
    for std in response.mechanism.std.values():
        assert bool((std > 0).all())
    levels = response.mechanism.std["embed.weight"]
    torch.testing.assert_close(levels, levels[:1].expand_as(levels))
    noise = response.sent["embed.weight"] - response.values["embed.weight"]
    assert bool((noise[~USED] != 0).all())
    assert float((noise[~USED] / levels[~USED]).std()) == pytest.approx(1, abs=0.25)


@pytest.mark.parametrize("causal", [False, True])
def test_a_private_plan_leaves_no_row_bare(causal):
    defense = OptimalNoise(0.1, source="private")
    levels = defense.respond(message_of(causal, IDS), IDS, generator()).mechanism.std
    assert all(bool((std > 0).all()) for std in levels.values())


def test_a_plan_from_the_model_reads_no_id():
    other = sequences(3, seed=9)
    plans = [
        OptimalNoise(0.1).respond(message_of(True, ids), ids, generator()).mechanism.std
        for ids in (IDS, other)
    ]
    torch.testing.assert_close(*plans, rtol=0, atol=0)


@pytest.mark.parametrize(
    "defense",
    [
        OptimalNoise(0.1),
        OptimalNoise(0.1, source="private"),
        ClampedNoise(0.1, 1.0),
        GradientPruning(0.5),
    ],
    ids=["model", "private", "clamped", "pruned"],
)
def test_a_table_with_sparse_gradients_is_like_any_other(defense):
    models = transformer(False), transformer(False)
    models[1].embed.sparse = True
    plain, sparse = (defense(message_of(False, IDS, m), IDS, generator()) for m in models)
    torch.testing.assert_close(sparse, plain)


def test_examples_are_clipped_one_by_one():
    model = transformer(False)
    message = message_of(False, IDS, model)
    clip = 0.05
    clipped = PrivateNoise(1e-6, clip, grid=False).respond(message, IDS, generator()).values
    summed = {name: torch.zeros_like(value) for name, value in clipped.items()}
    for example, target in zip(IDS, message.targets, strict=True):
        alone = message.of(target[None])(example[None])
        norm = torch.cat([g.flatten() for g in alone.values()]).norm()
        for name, g in alone.items():
            summed[name] += g * min(1.0, clip / float(norm)) / len(IDS)
    torch.testing.assert_close(clipped, summed, rtol=1e-4, atol=1e-7)


def test_backward_and_accumulation_take_ids():
    model, targets = transformer(False), torch.arange(3) % CLASSES
    loss_fn = torch.nn.functional.cross_entropy
    sent = GradientNoise(0.1).backward(model, loss_fn, IDS, targets, generator())
    assert bool((sent["embed.weight"][~USED] != 0).all())
    with GradientNoise(0.1).accumulate(model, loss_fn, generator()) as step:
        step.add(IDS[:2], targets[:2])
        step.add(IDS[2:], targets[2:])
    assert bool((step.sent["embed.weight"] != 0).all())


def test_the_bound_is_on_embeddings_and_says_that_it_is_no_guarantee():
    message = message_of(False, IDS, transformer(False, width=4))
    mechanism = GradientNoise(0.1).respond(message, IDS, generator()).mechanism
    bound = reconstruction_bound(message, IDS, mechanism, generator=generator())
    assert bound.per_entry > 0
    assert "tokens" in bound.reason
    assert not bound.holds


def test_clipped_messages_of_tokens_have_no_bound():
    defense = PrivateNoise(1.0, 0.5)
    message = message_of(False, IDS)
    mechanism = defense.respond(message, IDS, generator()).mechanism
    with pytest.raises(TypeError, match="TokenGradient"):
        reconstruction_bound(defense.prepared(message), IDS, mechanism)


def test_a_client_s_whole_update_is_clipped_for_tokens_too():
    message = message_of(False, IDS)
    values = PrivateNoise(1.0, 0.01, unit="client").respond(message, IDS, generator()).values
    norm = torch.cat([value.flatten() for value in values.values()]).norm()
    assert float(norm) == pytest.approx(0.01, rel=1e-3)
