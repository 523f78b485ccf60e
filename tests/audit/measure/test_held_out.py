"""A goal that was reached on the audited images is reached on others, within its interval."""

import pytest
from torch.nn.functional import cross_entropy

from gradveil.audit import Federation, Goal, Settings, Subject, run
from gradveil.audit.measure import Laboratory
from gradveil.audit.measure._attacks import beside_guess, run_attacks
from gradveil.catalog import build_defense
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
    laboratory = Laboratory(subject, settings=Settings(attacks=[attack]))
    (result,), _ = run_attacks(laboratory, build_defense(defense))
    return beside_guess(result, laboratory.guess)[0]


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
