"""What was found wrong by somebody who tried to refute the audit over strengths."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil._fingerprint import state_of
from gradveil.attacks import INTERRUPTED, Adaptive
from gradveil.audit import Goal
from gradveil.audit._answer import Wish, solve_wishes
from gradveil.audit.measure._attacks import best_mix
from gradveil.audit.measure._cells import extra_loss, paired_loss
from gradveil.audit.measure._laboratory import fingerprint
from tests.audit.small import make_subject

from .answer.made_up import KnownSearch, leak, noise_axis, point
from .short import PRIVATE, PUBLIC, model, small


def key(network=None, loss=cross_entropy, **options):
    given = {"batches": 1, "public": PUBLIC, "normalization": None, "local": None, "name": "d"}
    network = model() if network is None else network
    return fingerprint(make_subject(network, loss, PRIVATE, **{**given, **options}))


def scaled(factor):
    return lambda outputs, targets: factor * cross_entropy(outputs, targets)


class Loss:
    def __init__(self, factor):
        self._factor = factor

    def __call__(self, outputs, targets):
        return self._factor * cross_entropy(outputs, targets)

    def method(self, outputs, targets):
        return self(outputs, targets)


class Gain(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self._gain = gain

    def forward(self, x):
        return self._gain * x


class Hidden(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.register_buffer("hidden", torch.tensor(float(gain)), persistent=False)

    def forward(self, x):
        return self.hidden * x


def test_the_key_holds_what_a_loss_and_a_model_depend_on():
    losses = [
        cross_entropy, scaled(1), scaled(5), Loss(1), Loss(5), Loss(1).method, Loss(5).method,
        lambda o, t, w=1: w * cross_entropy(o, t), lambda o, t, w=5: w * cross_entropy(o, t),
    ]  # fmt: skip
    assert len({key(loss=loss) for loss in losses}) == len(losses)
    assert key(loss=scaled(5)) == key(loss=scaled(5))
    for kind in (Gain, Hidden):
        assert key(nn.Sequential(kind(1.0), model())) != key(nn.Sequential(kind(9.0), model()))
        assert key(nn.Sequential(kind(9.0), model())) == key(nn.Sequential(kind(9.0), model()))
    assert key() == key(name="other") == key(model())


def test_a_state_does_not_depend_on_the_order_of_a_set_and_ends():
    assert state_of({"b", "a"}) == state_of({"a", "b"})
    circle: list[object] = [1]
    circle.append(circle)
    assert state_of(circle) == state_of(circle)


@pytest.mark.slow
def test_a_model_that_is_changed_after_an_audit_does_not_spoil_the_next():
    first = model()
    before = small(["loss<=+90%"], strengths=1, network=first).frontier.loss_before
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()
    assert small(["loss<=+90%"], strengths=1).frontier.loss_before == before


def test_an_interrupted_attack_is_not_stored_as_done(monkeypatch, tmp_path):
    attack = Adaptive.__call__

    def interrupted(*arguments):
        return replace(attack(*arguments), status=INTERRUPTED)

    monkeypatch.setattr(Adaptive, "__call__", interrupted)
    assert small(["loss<=+50%"], strengths=1, folder=tmp_path).stopped == "interrupted"
    monkeypatch.undo()
    whole = small(["loss<=+50%"], strengths=1, folder=tmp_path)
    assert whole.stopped is None
    assert whole.frontier.undefended.leaks[0].examples == 2


def test_a_moment_that_was_not_attacked_is_not_reached():
    one = point("d", 0.95, 0.1, later=[(2, 0.95)])
    unknown = type(one.leaks[0])(4, "", None, None, None)
    lacking = type(one)(one.defense, None, (*one.leaks, unknown), one.loss, None)
    assert Goal("error", 0.9).is_reached(one)
    assert not Goal("error", 0.9).is_reached(lacking)


def test_what_stops_before_later_moments_recommends_nothing():
    class Stopped(KnownSearch):
        def measure(self, what, wanted, moments=(0,)):
            super().measure(what, wanted, moments[:1])

    axis = noise_axis()
    search = Stopped({"noise": (lambda s: 1 / (1 + math.exp(-4 * s)), lambda s: 0.1)})
    search.measure("", [(axis, s) for s in axis.start])
    wish = Wish("", (Goal("error", 0.8),))
    solve_wishes(search, [axis], [wish], True)
    assert wish.best is None


def test_goals_on_attacks_that_cannot_judge_are_not_reached():
    axis = noise_axis()
    search = KnownSearch({"noise": (lambda s: 1.0, lambda s: 0.1)})
    search.measure("", [(axis, s) for s in axis.start])
    blind, cost = Wish("", (Goal("psnr", 15.0),)), Wish("", (Goal("loss", 0.5),))
    solve_wishes(search, [axis], [blind, cost], can_judge=False)
    assert not blind.judged
    assert blind.best is None
    assert cost.best is not None


def test_one_copy_among_many_is_not_nothing():
    one = point("d", 0.99, 0.1)
    copied = type(one)(one.defense, None, (leak(0.99, copies=1),), one.loss, None)
    assert Goal("error", 0.9).is_reached(one)
    assert not Goal("error", 0.9).is_reached(copied)
    assert not Goal("psnr", 30.0).is_reached(copied)


def test_the_best_mix_against_a_search_over_weights():
    own = torch.Generator().manual_seed(0)
    rebuilt, guess, truth = torch.rand(3, 2, 40, generator=own)
    weights = torch.linspace(0, 1, 2001).double()
    errors = [((guess + w * (rebuilt - guess) - truth) ** 2).mean() for w in weights]
    found = best_mix(rebuilt, guess, truth)
    assert sum(found) / 2 == pytest.approx(float(min(errors)), rel=1e-5)
    assert best_mix(guess, guess, truth) == pytest.approx(((guess - truth) ** 2).mean(1).tolist())
    assert max(best_mix(truth, guess, truth)) < 1e-12


def test_negative_losses_have_a_sensible_extra_loss():
    extra = extra_loss({"losses": [-9.0, -9.0]}, {"losses": [-10.0, -10.0]})
    assert extra.mean == pytest.approx(0.1)


def test_losses_are_compared_within_their_seeds():
    """How trainings of other batches differ says nothing of a defense."""
    free, trained = {"losses": [1.0, 2.0, 3.0]}, {"losses": [1.1, 2.2, 3.3]}
    assert paired_loss(free, free).low == paired_loss(free, free).high == 2.0
    found = paired_loss(trained, free)
    assert found.mean == pytest.approx(2.2)
    assert found.high - found.low < 0.6  # and not 2, as those of the batches
    assert math.isinf(paired_loss({"losses": [math.inf, 2.0, 3.0]}, free).mean)


@pytest.mark.parametrize("limit", [math.nan, math.inf, -1.0])
def test_limits_are_numbers(limit):
    with pytest.raises(ValueError, match="A goal should read"):
        Goal("error", limit)


def test_epsilon_of_nothing_and_absolute_losses_are_refused():
    for text in ("epsilon<=0", "loss<=5"):
        with pytest.raises(ValueError, match="A goal should read"):
            Goal.parse(text)
    assert Goal.parse("loss<=+500%").limit == 5
