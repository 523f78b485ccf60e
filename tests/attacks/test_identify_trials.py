import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradveil import ClampedNoise, GradientNoise, NoDefense, OptimalNoise, PrivateNoise, Rounding
from gradveil.attacks import Identify, Observation, ThreatModel, identify_trials, observe
from gradveil.attacks._identify import Draw, IdentificationReport, Population, Trial
from gradveil.defenses import Defense, LaplaceNoise
from gradveil.messages import LocalSteps
from tests.attacks.likelihood import log_likelihood
from tests.attacks.tiny import generator


def examples() -> tuple[Tensor, Tensor]:
    images = torch.randn(60, 8, generator=generator(1))
    return images, torch.arange(60) % 3


def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))


def tried(defense: Defense, **options: object) -> IdentificationReport:
    settings = {"num_classes": 3, "candidates": 16, "trials": 12, "generator": generator(2)}
    return identify_trials(model(), F.cross_entropy, examples(), defense, **{**settings, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("local", [None, LocalSteps(lr=0.1, steps=2)])
def test_an_undefended_message_tells_everything(local: LocalSteps | None) -> None:
    report = tried(NoDefense(), batch_size=3, local=local)
    assert report.rate.mean == 1
    assert report.rate.low == pytest.approx(0.025 ** (1 / 12))
    assert {trial.rank for trial in report.trials} == {1}
    assert report.bits.mean == pytest.approx(4)
    assert report.error.mean == pytest.approx(0, abs=1e-9)
    assert report.prior_error.mean > 0.3


@pytest.mark.parametrize("per_draw", [1, 5])
def test_loud_isotropic_noise_tells_nothing(per_draw: int) -> None:
    report = tried(GradientNoise(1e4), trials=20, per_draw=per_draw)
    assert len(report.trials) == 20
    assert len({trial.draw for trial in report.trials}) == 20 / per_draw
    assert report.rate.low < 1 / 16
    assert report.bits.mean == pytest.approx(0, abs=1e-3)
    assert report.error.mean == pytest.approx(report.prior_error.mean, rel=1e-2)


def test_a_plan_from_the_private_batch_tells_who_it_was_at_any_noise() -> None:
    report = tried(OptimalNoise(1e4, source="private"), per_draw=6)
    assert report.rate.low > 0.3
    assert report.bits.mean > 1


def test_a_plan_from_the_model_tells_no_more_than_its_noise() -> None:
    report = tried(OptimalNoise(1e4), trials=20, per_draw=10)
    assert report.rate.low < 1 / 16
    assert report.bits.mean == pytest.approx(0, abs=1e-3)


def test_everything_rounded_to_0_is_chance() -> None:
    report = tried(Rounding(1e6))
    assert report.bits.mean == pytest.approx(0)
    assert {trial.rank for trial in report.trials} == {8.5}


def test_candidates_of_all_classes() -> None:
    report = tried(GradientNoise(0.01), candidates=40, one_class=False, batch_size=4)
    assert report.rate.mean == 1
    with pytest.raises(ValueError, match="at least 40 examples of one class"):
        tried(NoDefense(), candidates=40)
    with pytest.raises(ValueError, match="at least 61 examples"):
        tried(NoDefense(), candidates=60, one_class=False, batch_size=2)


def test_the_same_seed_gives_the_same_report() -> None:
    assert tried(OptimalNoise(1.0, source="private"), trials=3) == tried(
        OptimalNoise(1.0, source="private"), trials=3
    )


IMAGES, LABELS = examples()
POPULATION = Population(IMAGES.double(), LABELS, 6, 3, one_class=True)


def drawn(defense: Defense, local: LocalSteps | None = None) -> tuple[Draw, list[Observation]]:
    draw = POPULATION.draw(4, generator(2))
    noise, net = generator(3), model().double()
    return draw, [
        observe(
            net, F.cross_entropy, POPULATION.batch(draw, trial), defense, num_classes=3,
            local=local, threat=ThreatModel(mechanism="known"), generator=noise,
        )
        for trial in range(4)
    ]  # fmt: skip


DEFENSES = {
    "noise": GradientNoise(0.05),
    "noise with clamping": ClampedNoise(0.05, clip=0.02),
    "plan from the model": OptimalNoise(0.05),
    "examples are clipped first": PrivateNoise(0.5, clip=1.0),
    "no normal noise": LaplaceNoise(0.05),
    "no noise": NoDefense(),
}


@pytest.mark.parametrize("name", DEFENSES)
def test_all_pairs_have_their_likelihood(name: str) -> None:
    """Against one message and one likelihood for each pair."""
    draw, messages = drawn(DEFENSES[name])
    candidates, rest = POPULATION.at(draw.candidates), POPULATION.at(draw.rest)
    found = Identify(candidates, rest).many(messages, generator(3))
    for one, message in zip(found, messages, strict=True):
        row = []
        for index in range(6):
            own = [part[index : index + 1] for part in candidates]
            inputs, targets = (torch.cat(p) for p in zip(own, rest, strict=True))
            values = message.message(targets)(inputs)
            row.append(log_likelihood(message.mechanism, values, message.sent))
        posterior = torch.stack(row).softmax(0)
        torch.testing.assert_close(one.posterior, posterior, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("local", [None, LocalSteps(lr=0.1, steps=2)])
def test_clients_send_the_message_of_their_own_batch(local: LocalSteps | None) -> None:
    draw, messages = drawn(NoDefense(), local)
    for trial, message in enumerate(messages):
        inputs, targets = POPULATION.batch(draw, trial)
        for name, value in message.plain_message(targets)(inputs).items():
            torch.testing.assert_close(message.sent[name], value)


def test_all_defenses_meet_the_same_candidates_and_each_draws_its_own_noise() -> None:
    quiet, loud = (tried(GradientNoise(scale), per_draw=4) for scale in (1e-6, 1.0))
    for one, other in zip(quiet.trials, loud.trials, strict=True):
        assert one.prior_error == other.prior_error
    assert quiet.bits.mean > loud.bits.mean
    first, second, *_ = drawn(GradientNoise(1.0))[1]
    assert float((first.sent["0.weight"] - second.sent["0.weight"]).std()) > 1


def test_intervals_of_a_known_report() -> None:
    trials = [Trial(k, 1.0 + k % 2, k % 2 == 0, 2.0, 0.5, 1.0) for k in range(10)]
    report = IdentificationReport(4, tuple(trials))
    assert report.rate.mean == 0.5
    assert report.rate.low == pytest.approx(0.187086, abs=1e-5)
    assert report.rate.low < 0.5 < report.rate.high
    assert (report.bits.mean, report.bits.low, report.error.mean) == (2.0, 2.0, 0.5)
    assert math.isclose(report.prior_error.mean, 1.0)


def test_settings_that_make_no_sense() -> None:
    for name in ("candidates", "batch_size", "trials", "per_draw"):
        with pytest.raises(ValueError, match=f"`{name}` should be"):
            tried(NoDefense(), **{name: 0})


def test_the_rate_of_trials_that_share_draws_is_as_uncertain_as_the_draws() -> None:
    """A third of the draws has a rate of ½, the others 1: Clopper-Pearson holds 5/6 in 74 %."""
    held = 0
    for seed in range(60):
        chance = torch.rand(8, 9, generator=generator(seed))
        first = chance[:, 1:] < torch.where(chance[:, :1] < 1 / 3, 0.5, 1.0)
        trials = [
            Trial(draw, 1.0, bool(one), 0.0, 0.0, 0.0) for draw in range(8) for one in first[draw]
        ]
        rate = IdentificationReport(2, tuple(trials)).rate
        held += rate.low <= 5 / 6 <= rate.high
    assert held >= 54
