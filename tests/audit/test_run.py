import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import gradveil
from gradveil import _runner
from gradveil.attacks import identify_trials
from gradveil.audit import AuditResult, _result
from gradveil.audit.measure import Laboratory
from gradveil.audit.measure._training import make_pool, trained_model
from gradveil.catalog import build_defense
from gradveil.federated import evaluate
from gradveil.privacy import epsilon_on_grid
from tests.audit.small import make_subject

from .short import PUBLIC, SHORT, draw, model, small


def counted(monkeypatch):
    """The names of the cells that are run in this process."""
    names, execute = [], _runner._execute

    def wrapped(cell, holds):
        names.append(cell.name)
        return execute(cell, holds)

    monkeypatch.setattr(_runner, "_execute", wrapped)
    return names


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return small(folder=tmp_path_factory.mktemp("store"))


def test_every_defense_has_a_curve_and_every_level_an_answer(usual):
    frontier = usual.frontier
    (curve,) = frontier.curves
    assert curve.name == "noise"
    assert curve.amount_name == "scale"
    assert len(curve.points) >= 3
    amounts = [point.amount for point in curve.points]
    assert amounts == sorted(amounts)
    for point in curve.points:
        assert point.defense == f"gradient-noise(scale={point.amount})"
        assert point.leaks[0].round == 0
        assert point.loss.low <= point.loss.mean <= point.loss.high
        assert point.bound > 0
        assert point.epsilon is None
    assert [len(answer.goals) for answer in frontier.answers] == [1, 1, 1]
    assert frontier.answers[2].reached is False
    assert "ε" in frontier.answers[2].sentence


def test_the_undefended_message_is_attacked_through_the_training(usual):
    rounds = [leak.round for leak in usual.frontier.undefended.leaks]
    assert rounds == [0, 3, 6] == list(usual.frontier.moments)
    assert usual.frontier.undefended.extra_loss.mean == 0
    assert usual.frontier.undefended.leaks[0].gain is not None


def test_more_noise_hides_and_costs_more(usual):
    points = usual.frontier.curves[0].points
    told = [point.leaks[0].told_apart.rate.mean for point in points]
    assert told[0] > told[-1]
    assert points[-1].loss.mean > points[0].loss.mean
    bounds = [point.bound for point in points]
    assert bounds == sorted(bounds)


def test_answers_are_recommended_after_all_moments(usual):
    points = {p.defense: p for c in usual.frontier.curves for p in c.points}
    for answer in usual.frontier.answers:
        if answer.reached:
            assert [leak.round for leak in points[answer.defense].leaks] == [0, 3, 6]


def test_the_result_survives_json(usual):
    assert AuditResult.from_json(usual.to_json()) == usual


def test_details_of_the_answers_are_there(usual):
    names = [one.name for one in usual.defenses]
    assert names[0] == "no defense"
    assert {one.defense for one in usual.defenses} >= {
        answer.defense for answer in usual.frontier.answers if answer.defense
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An audit that nobody disturbed, and its folder."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return small(["identified<=50%"], folder=folder, strengths=2), folder


def test_a_second_audit_costs_nothing_and_a_changed_model_does(whole, monkeypatch):
    first, folder = whole
    counts = counted(monkeypatch)
    again = small(["identified<=50%"], folder=folder, strengths=2)
    assert counts == []
    assert dataclasses.replace(again, setup=first.setup) == first
    changed = model()
    with torch.no_grad():
        next(changed.parameters()).add_(1e-3)
    assert small(folder=folder, network=changed, time_budget=0.0).stopped
    assert "attack" in counts


def test_what_was_kept_with_other_fields_is_measured_again(monkeypatch):
    subject = make_subject(model(), cross_entropy, draw(4, 0), batches=1, name="d")
    before = Laboratory(subject).named
    assert before == Laboratory(subject).named
    more = [("more", int)]
    for kind in (_result.Detail, _result.RunResult):
        wider = dataclasses.make_dataclass(
            kind.__name__, more, bases=(kind,), frozen=True, kw_only=True
        )
        with monkeypatch.context() as patch:
            patch.setattr(_result, kind.__name__, wider)
            named = Laboratory(subject).named
        assert {name for name in named if named[name] != before[name]} == {"gradveil"}


@pytest.mark.slow
def test_processes_give_the_same_bytes(tmp_path):
    results = [
        small(["identified<=50%"], folder=tmp_path / str(jobs), strengths=2, jobs=jobs)
        for jobs in (1, 2)
    ]
    assert results[0].frontier == results[1].frontier
    assert computed(tmp_path / "1") == computed(tmp_path / "2")


def computed(folder):
    """What was measured, without seconds: details hold a ratio of them, attacks say how long."""
    kept = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return {name: _timeless(cell) for name, cell in kept.items()}


def _timeless(value):
    if isinstance(value, dict):
        left = ("seconds", "time_ratio")
        return {key: _timeless(part) for key, part in value.items() if key not in left}
    return [_timeless(part) for part in value] if isinstance(value, list) else value


SCRIPT = """
import sys
from tests.audit.short import small
small(["identified<=50%"], folder=sys.argv[1], strengths=2)
"""


def test_a_killed_audit_goes_on(tmp_path, monkeypatch, whole):
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], env=environment, cwd=root
    )
    try:
        for _ in range(600):
            if finished(tmp_path) >= 4:
                break
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = finished(tmp_path)
    assert before >= 4
    counts = counted(monkeypatch)
    result = small(["identified<=50%"], folder=tmp_path, strengths=2)
    assert counts
    assert result.stopped is None
    assert result.frontier == whole[0].frontier
    assert computed(tmp_path) == computed(whole[1])
    assert finished(tmp_path) > before


def finished(folder):
    return len([*folder.glob("[!.]*.json")])


@pytest.mark.usefixtures("unmeasured")
def test_a_time_budget_ends_with_what_there_is(tmp_path):
    goals = ["loss<=+50%"]
    result = small(goals, folder=tmp_path, time_budget=0.0, strengths=1)
    assert result.stopped == "time budget"
    assert "goes on" in " ".join(result.notes)
    assert small(goals, folder=tmp_path, strengths=1).stopped is None


@pytest.mark.usefixtures("unmeasured")
def test_epsilon_is_solved_by_the_accountant():
    result = small(["epsilon<=8"], ["private-noise"], rounds=20, strengths=1)
    (answer,) = result.frontier.answers
    assert answer.reached
    z = build_defense(answer.defense).noise_multiplier
    assert epsilon_on_grid(z, 1.0, 20, 1e-5) <= 8
    assert epsilon_on_grid(0.99 * z, 1.0, 20, 1e-5) > 8
    assert "any attacker" in answer.not_promised


@pytest.mark.slow
def test_identified_is_reached_on_examples_that_were_not_audited():
    (answer,) = small(["identified<=50%"]).frontier.answers
    assert answer.reached
    report = identify_trials(
        model(), cross_entropy, draw(300, 77), build_defense(answer.defense), num_classes=3,
        candidates=32, batch_size=2, trials=200, per_draw=20,
        generator=torch.Generator().manual_seed(5),
    )  # fmt: skip
    assert report.rate.low <= 0.5


@pytest.mark.slow
def test_the_loss_goal_is_reached_on_trainings_with_other_seeds():
    result = small(["loss<=+30%"])
    (answer,) = result.frontier.answers
    assert answer.reached
    extra = _extra(answer.defense)
    point = next(p for _, p in result.frontier.points() if p.defense == answer.defense)
    assert point.extra_loss.high <= 0.3
    spread = point.extra_loss.high - point.extra_loss.low
    assert extra <= 0.3 + spread


def _extra(defense):
    subject = make_subject(
        model(), cross_entropy, draw(2, 1), batches=1, public=PUBLIC, normalization=None,
        local=None, name="data",
    )  # fmt: skip
    losses = []
    for built in (build_defense(defense), gradveil.NoDefense()):
        models = [trained_model(subject, built, SHORT, seed, 6) for seed in range(10, 16)]
        held_out = make_pool(subject, 2).held_out
        losses.append(sum(evaluate(one, cross_entropy, *held_out).loss for one in models))
    return losses[0] / losses[1] - 1


def test_an_impossible_pair_of_goals_is_answered_so():
    (answer,) = small(["identified<=5%", "loss<=+0.001%"]).frontier.answers
    assert not answer.reached
    assert "reaches identified<=5% and loss<=+0.001%" in answer.sentence
    assert "where 5% identified is asked" in answer.sentence


@pytest.mark.slow
@pytest.mark.usefixtures("unmeasured")
def test_a_defense_at_a_given_strength_is_one_point():
    result = small(["loss<=+50%"], ["gradient-noise(scale=0.001)", "sign-compression"])
    assert [len(curve.points) for curve in result.frontier.curves] == [1, 1]


def test_wrong_goals_and_numbers_are_named():
    with pytest.raises(ValueError, match="A goal should read"):
        small(["psnr=15"])
    with pytest.raises(ValueError, match="strengths"):
        small(strengths=0)
