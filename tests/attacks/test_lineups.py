"""Shared candidates against one message and one likelihood for each pair."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradveil import (
    ClampedNoise,
    GradientNoise,
    GradientPruning,
    NoDefense,
    OptimalNoise,
    PrivateNoise,
    Public,
)
from gradveil.attacks import Lineups, _identify_trials, draw_lineups
from gradveil.attacks._likelihood import log_likelihood
from gradveil.defenses import Defense, LaplaceNoise
from gradveil.messages import LocalSteps
from tests.attacks.test_identify_trials import examples, model
from tests.attacks.tiny import generator


def drawn(local: LocalSteps | None = None, **options: object) -> Lineups:
    images, labels = examples()
    settings = {"num_classes": 3, "candidates": 6, "trials": 7, "per_draw": 4, "batch_size": 3}
    return draw_lineups(
        model().double(), F.cross_entropy, (images.double(), labels), local=local,
        generator=generator(2), **{**settings, **options},
    )  # fmt: skip


def naive(lineups: Lineups, number: int, defense: Defense) -> Tensor:
    """log p of each message under each candidate, from the public mechanism of each message."""
    lineup = lineups.lineups[number]
    messages = lineups._messages(lineup, defense, generator(3))
    rows = []
    for message in messages:
        row = []
        for index in range(6):
            own = [part[index : index + 1] for part in lineup.draw.candidates]
            inputs, targets = (torch.cat(p) for p in zip(own, lineup.draw.rest or (), strict=True))
            values = message.message(targets)(inputs)
            row.append(log_likelihood(message.mechanism, values, message.sent))  # type: ignore[union-attr]
        rows.append(torch.stack(row))
    return torch.stack(rows)


def public() -> Defense:
    images, labels = examples()
    return OptimalNoise(0.05, source=Public((images[:24].double(), labels[:24])))


DEFENSES = {
    "noise": GradientNoise(0.05),
    "noise with clamping": ClampedNoise(0.05, clip=0.02),
    "plan from the model": OptimalNoise(0.05),
    "plan from public examples": public(),
    "examples are clipped first": PrivateNoise(0.5, clip=1.0),
    "no normal noise": LaplaceNoise(0.05),
    "no noise": NoDefense(),
}


@pytest.mark.parametrize("name", DEFENSES)
@pytest.mark.parametrize("kept", [True, False])
def test_all_pairs_have_their_likelihood(
    name: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kept:
        monkeypatch.setattr(_identify_trials, "MOST_KEPT", 0)
    lineups, defense = drawn(), DEFENSES[name]
    for number in (0, 1):
        lineup = lineups.lineups[number]
        assert (lineup.candidates is not None) == kept
        found = lineups._found(lineup, defense, generator(3))
        expected = naive(lineups, number, defense)
        assert len(found) == (4, 3)[number]
        for one, row in zip(found, expected, strict=True):
            posterior = row.softmax(0)
            torch.testing.assert_close(one.posterior, posterior, rtol=1e-6, atol=1e-9)
            assert torch.equal(one.inputs, lineup.draw.candidates[0])


@pytest.mark.parametrize("local", [None, LocalSteps(lr=0.1, steps=2)])
def test_clients_send_the_message_of_their_own_batch(local: LocalSteps | None) -> None:
    lineups = drawn(local)
    for lineup in lineups.lineups:
        sent = lineups._messages(lineup, NoDefense(), generator(3))
        for trial, message in enumerate(sent):
            inputs, targets = lineup.draw.batch(trial)
            for name, value in message.plain_message(targets)(inputs).items():
                torch.testing.assert_close(message.sent[name], value)


@pytest.mark.parametrize("defense", [NoDefense(), GradientPruning(0.5)])
def test_without_noise_everything_is_told(defense: Defense) -> None:
    report = drawn().report(defense, generator(4))
    assert (report.candidates, len(report.trials)) == (6, 7)
    assert [trial.draw for trial in report.trials] == [0] * 4 + [1] * 3
    assert report.rate is not None
    assert report.rate.mean == 1


def test_all_defenses_meet_the_same_candidates_and_each_draws_its_own_noise() -> None:
    lineups = drawn()
    quiet, loud, again = (
        lineups.report(GradientNoise(scale), generator(4)) for scale in (1e-6, 0.1, 0.1)
    )
    assert loud == again
    for one, other in zip(quiet.trials, loud.trials, strict=True):
        assert one.prior_error == other.prior_error
    assert quiet.bits.mean > loud.bits.mean
    first, second, *_ = lineups._messages(lineups.lineups[0], GradientNoise(1.0), generator(4))
    assert float((first.sent["0.weight"] - second.sent["0.weight"]).std()) > 1


def test_a_model_with_one_kind_of_layer_is_enough() -> None:
    linear = nn.Linear(8, 3)
    lineups = draw_lineups(
        linear, F.cross_entropy, examples(), num_classes=3, candidates=4, trials=2,
        one_class=False, generator=generator(1),
    )  # fmt: skip
    assert lineups.report(GradientNoise(1e-4), generator(2)).bits.mean == pytest.approx(2)
