"""A goal that was reached on the audited images is reached on others, within its interval."""

import pytest
from torch.nn.functional import cross_entropy

from gradveil.attacks import ThreatModel, Watch
from gradveil.auditing import Goal, Training, make_subject, recommend
from gradveil.auditing._attack_runs import AttackRuns, named
from gradveil.auditing._meter import Meter
from gradveil.auditing._recommend._measuring._points import _share
from gradveil.auditing._undefended import blind_guess
from gradveil.catalog import build_attack, build_defense
from gradveil.data import load_dataset
from gradveil.models import build_fitting_model

STEPS, FIRST, OTHERS = 40, 0, 400


def shares(defense: str, attack: str, start: int):
    """The error left on two batches of four digits."""
    data = load_dataset("mnist")
    model = build_fitting_model("simple-conv-net", data.inputs.shape[1:], data.num_classes, 0)
    subject = make_subject(
        model, cross_entropy, data.batch(start, 8), batches=2, public=data.batch(1000, 2000),
        normalization=data, local=None, name="mnist",
    )  # fmt: skip
    attackers = named([build_attack(attack)])
    runs = AttackRuns(
        subject, {"": build_defense(defense)}, attackers, ThreatModel(mechanism="known"), 1, 0,
        Watch(None), Meter(1.0, None),
    )  # fmt: skip
    (result,) = runs.run().results("", attackers)
    return _share(result, blind_guess(subject, labels_known=True))


@pytest.mark.slow
def test_an_error_is_left_on_images_that_were_not_audited():
    data = load_dataset("mnist")
    model = build_fitting_model("simple-conv-net", data.inputs.shape[1:], data.num_classes, 0)
    result = recommend(
        model, cross_entropy, data.batch(FIRST, 8), ["gradient-noise"], goals=["error>=60%"],
        public=data.batch(1000, 2000), normalization=data, batches=2, steps=STEPS, strengths=3,
        training=Training(rounds=2, seeds=2),
    )  # fmt: skip
    (answer,) = result.frontier.answers
    assert answer.reached
    point = next(p for _, p in result.frontier.points() if p.defense == answer.defense)
    assert Goal.parse("error>=60%").is_reached(point)
    other = shares(answer.defense, point.leaks[0].attack, OTHERS)
    assert other.mean >= point.leaks[0].error.low
    assert other.high >= 0.6
