"""Text from gradients: exact without a defense, and never with a wrong claim of it."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import GradientNoise, GradientPruning, NoDefense
from gradveil.attacks import (
    InvertingGradients,
    Observation,
    SpanCheck,
    ThreatModel,
    TokenRows,
    observe,
)
from gradveil.attacks._span_check import distances, first_inputs, linear_inputs, span_of
from gradveil.attacks._token_rows import likely_tokens, row_scores
from gradveil.defenses import Defense
from gradveil.models import next_token_loss
from gradveil.scoring import score_tokens
from tests.text import CLASSES, generator, message_of, sequences, transformer

TOKENS = 60


def observed(
    causal: bool, ids: Tensor, defense: Defense, model: nn.Module | None = None
) -> Observation:
    model = transformer(causal, width=32, tokens=TOKENS) if model is None else model
    targets = ids if causal else torch.arange(len(ids)) % CLASSES
    return observe(
        model,
        next_token_loss if causal else cross_entropy,
        (ids, targets),
        defense,
        threat=ThreatModel(mechanism="known"),
        num_classes=TOKENS if causal else CLASSES,
        generator=generator(3),
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_text_is_exact_without_a_defense(causal, count):
    ids = sequences(count, 5, tokens=TOKENS, seed=count)
    found = SpanCheck()(observed(causal, ids, NoDefense()), generator())
    assert score_tokens(found, ids).summary()["accuracy"] == 1
    assert found.loss < 1e-6


def test_little_noise_does_not_hide_a_sentence_and_much_does():
    ids = sequences(1, 5, tokens=TOKENS)
    little, much = (
        SpanCheck(sweeps=2, width=6)(observed(True, ids, GradientNoise(s)), generator())
        for s in (1e-4, 10.0)
    )
    assert score_tokens(little, ids).summary()["accuracy"] == 1
    assert score_tokens(much, ids).summary()["accuracy"] < 0.7


def test_pruning_does_not_hide_a_sentence():
    ids = sequences(1, 5, tokens=TOKENS)
    found = SpanCheck()(observed(False, ids, GradientPruning(0.9)), generator())
    assert score_tokens(found, ids).summary()["accuracy"] == 1


def test_a_language_model_tells_nobody_its_targets():
    ids = sequences(2, tokens=TOKENS)
    observation = observed(True, ids, NoDefense())
    assert observation.labels is None
    assert observation.label_counts is None
    assert observation.targets_are_inputs


def test_the_bag_of_tokens_is_exact_without_a_defense():
    ids = sequences(3, 5, tokens=TOKENS)
    found = TokenRows()(observed(False, ids, NoDefense()))
    assert set(found.inputs.flatten().tolist()) == set(ids.flatten().tolist())


def test_inputs_lie_in_the_span_and_others_do_not():
    ids = sequences(2, 5, tokens=TOKENS)
    message = message_of(False, ids, transformer(False, width=32, tokens=TOKENS).double())
    sent = message(ids)
    for each in linear_inputs(message, ids)[:4]:
        span = span_of(each, sent, ids.numel(), {})
        assert len(span) == ids.numel()
        assert float(distances(span, each.inputs).max()) < 1e-6
        other = torch.randn(each.inputs.shape, generator=generator(), dtype=torch.float64)
        assert float(distances(span, other).min()) > 0.3


def test_first_inputs_are_those_of_a_token_in_its_place():
    ids = sequences(2, 5, tokens=TOKENS)
    message = message_of(True, ids, transformer(True, tokens=TOKENS))
    table = first_inputs(message, 5, TOKENS)
    wanted = linear_inputs(message, ids)[0].inputs
    torch.testing.assert_close(table[ids, torch.arange(5)], wanted)


def test_rows_of_noise_alone_have_scores_of_mean_0_and_deviation_1():
    std = torch.full((4000, 16), 0.3)
    noise = std * torch.randn(4000, 16, generator=generator())
    for scores in (row_scores(noise, std), row_scores(noise, None)):
        assert abs(float(scores.median())) < 0.3
    known = row_scores(noise, std)
    assert float(known.std()) == pytest.approx(1, abs=0.1)
    assert len(likely_tokens(known, 50)) <= 5


def test_a_used_row_stands_out_of_noise():
    gradient = 0.1 * torch.randn(100, 32, generator=generator())
    gradient[7] += 1.0
    for std in (torch.full((100, 32), 0.1), None):
        assert likely_tokens(row_scores(gradient, std), 4).tolist()[0] == 7


def test_attacks_on_numbers_refuse_tokens_and_the_reverse():
    ids = sequences(1, tokens=TOKENS)
    with pytest.raises(ValueError, match="should be of inputs that are numbers"):
        InvertingGradients(steps=1)(observed(False, ids, NoDefense()), generator())
    plain = observe(
        nn.Linear(3, 2), cross_entropy, (torch.ones(1, 3), torch.tensor([0])), NoDefense(),
        num_classes=2,
    )  # fmt: skip
    for attack in (SpanCheck(), TokenRows()):
        with pytest.raises(ValueError, match="should be of inputs that are tokens"):
            attack(plain, generator())


def test_the_time_budget_ends_the_search():
    ids = sequences(2, tokens=TOKENS)
    observation = observed(False, ids, GradientNoise(1.0))
    assert SpanCheck(time_budget=0.0)(observation, generator()).status == "time budget"
