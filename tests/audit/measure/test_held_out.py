"""A goal that was reached on the audited images is reached on others, within its interval."""

import pytest
from torch.nn.functional import cross_entropy

from gradveil.attacks import ThreatModel
from gradveil.audit import Federation, Goal, Settings, Subject, run
from gradveil.audit.measure._attacks import run_attacks
from gradveil.audit.measure._guess import blind_guess, error_share
from gradveil.catalog import build_attack, build_defense
from gradveil.data import load_dataset
from gradveil.models import build_fitting_model
from tests.audit.small import make_subject

STEPS, FIRST, OTHERS = 40, 0, 400


def shares(defense: str, attack: str, start: int):
    """The error left on two batches of four digits."""
    data = load_dataset("mnist")
    model = build_fitting_model("simple-conv-net", data.inputs.shape[1:], data.num_classes, 0)
    subject = make_subject(
        model, cross_entropy, data.batch(start, 8), batches=2, public=data.batch(1000, 2000),
        normalization=data, local=None, name="mnist",
    )  # fmt: skip
    guess = blind_guess(subject, labels_known=True)
    (result,), _ = run_attacks(
        subject, build_defense(defense), {attack: build_attack(attack)},
        ThreatModel(mechanism="known"), 1, 0, guess,
    )  # fmt: skip
    return error_share(result, guess)


@pytest.mark.slow
def test_an_error_is_left_on_images_that_were_not_audited():
    data = load_dataset("mnist")
    model = build_fitting_model("simple-conv-net", data.inputs.shape[1:], data.num_classes, 0)
    subject = Subject(
        model, cross_entropy, data.batch(FIRST, 8), data.batch(1000, 2000), normalization=data
    )
    settings = Settings(
        ["gradient-noise"], goals=["error>=60%"], steps=STEPS, strengths=3, training_seeds=2
    )
    result = run(subject, Federation(batch_size=4, rounds=2), settings)
    (answer,) = result.frontier.answers
    assert answer.reached
    point = next(p for _, p in result.frontier.points() if p.defense == answer.defense)
    assert Goal.parse("error>=60%").is_reached(point)
    other = shares(answer.defense, point.leaks[0].attack, OTHERS)
    assert other.mean >= point.leaks[0].error.low
    assert other.high >= 0.6
