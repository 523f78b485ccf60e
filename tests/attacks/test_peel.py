"""Peeling solves the last layers exactly where nothing hides them, and gives way elsewhere."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from gradveil import GradientNoise, GradientPruning, NoDefense, Rounding, load_dataset
from gradveil._random import named_stream
from gradveil.attacks import InvertingGradients, Peel, Reconstruction, observe
from gradveil.attacks._descent import Watch
from gradveil.attacks._peel import LocalHead, head_of
from gradveil.attacks._refine import Finish
from gradveil.attacks._targets import Run
from gradveil.messages import LocalSteps
from gradveil.models import build_model
from gradveil.scoring import score

from .small import LOSS, observed, seeded, smooth_images


def two_linear_layers(bias: bool = True) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.LeakyReLU(), nn.Flatten(),
            nn.Linear(6 * 64, 16, bias=bias), nn.LeakyReLU(), nn.Linear(16, 10),
        ).eval()  # fmt: skip


QUICK = Peel(steps=400, image_steps=150)


@pytest.mark.slow
@pytest.mark.parametrize("bias", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_images_of_one_label_come_back(bias):
    inputs = smooth_images(3, 1, 8, 8)[0]
    batch = inputs, torch.tensor([4, 4, 4])
    observation = observed(two_linear_layers(bias), batch, labels="known")
    found = QUICK(observation, seeded())
    assert float(score(found, batch, ssim=False).psnr.min()) > 35
    assert found.status == "finished"


def test_a_message_that_hides_the_head_is_an_error_that_names_another_attack():
    observation = observed(
        two_linear_layers(), smooth_images(3, 1, 8, 8), defense=GradientNoise(0.01)
    )
    with pytest.raises(ValueError, match=r"does not determine .* Use `InvertingGradients`"):
        QUICK(observation, seeded())


def test_a_head_that_is_not_solved_is_a_guess_in_range_with_an_honest_loss():
    batch = smooth_images(3, 1, 8, 8)
    observation = observed(two_linear_layers(), batch, labels="known")
    wrong = replace(observation, labels=(batch[1] + 1) % 10)
    found = Peel(steps=20, image_steps=5, rounds=1)(wrong, seeded())
    assert found.inputs.shape == batch[0].shape
    assert found.inputs.min() >= 0
    assert found.inputs.max() <= 1
    assert found.loss > 0.1
    assert QUICK.configured(time_budget=0.0)(observation, seeded()).status == "time budget"


def test_the_heads_equations_hold_at_the_truth():
    batch = smooth_images(3, 1, 8, 8)
    model = two_linear_layers()
    head = head_of(observed(model, batch), seeded())
    assert head is not None
    assert head.later == ["5.weight", "5.bias"]
    head.twin.set_width(1e-9)
    hidden = model[:3](batch[0]).detach().double()
    outputs = hidden @ model[3].weight.detach().double().T + model[3].bias.detach().double()
    equations = LocalHead(head, batch[1])
    places = hidden @ equations.basis.T
    equations.measure(places)
    assert float(equations.residuals(equations.start(places)).square().sum()) < 1e-10
    assert float(equations.residuals(equations.start(1.1 * places)).square().sum()) > 1e-4
    torch.testing.assert_close(equations.outputs(places), outputs, rtol=1e-3, atol=1e-4)
    features = head.features(outputs, batch[1])[0]
    torch.testing.assert_close(features, hidden, rtol=1e-3, atol=1e-4)


def test_the_noise_of_features_is_read_off_the_message():
    """The layer's gradient shows the noise, and Δ what it makes of each example's features."""
    batch, model, std = smooth_images(3, 1, 8, 8), two_linear_layers(), 2e-4
    hidden = model[:3](batch[0]).detach().double()
    outputs = hidden @ model[3].weight.detach().double().T + model[3].bias.detach().double()
    ratios = []
    for draw in range(4):
        observation = observed(model, batch, defense=GradientNoise(std), seed=draw)
        head = head_of(observation, seeded())
        assert head is not None
        assert head.noise == pytest.approx(std, rel=0.05)
        head.sharpen()
        features, noise = head.features(outputs, batch[1])
        ratios.append((features - hidden).square().sum(1) / noise)
    assert float(torch.stack(ratios).mean()) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    "defense", [pytest.param(Rounding(1e-3), marks=pytest.mark.slow), GradientNoise(3e-4)]
)
def test_a_little_noise_makes_peeling_rough_and_not_sure(monkeypatch, defense):
    seen = spied(monkeypatch)
    batch = smooth_images(3, 1, 8, 8)
    observation = observed(two_linear_layers(), batch, labels="known", defense=defense)
    attack = InvertingGradients(200, total_variation=1e-3, peel=QUICK)
    found = attack(observation, seeded())
    (guess,) = seen
    assert guess is not None
    assert not guess.is_certain
    alone = replace(attack, peel=None)(observation, seeded())
    costs = [own_cost(attack, observation, r) for r in (found, alone, guess)]
    assert costs[0] <= min(costs[1:]) * (1 + 1e-5)
    assert float(score(guess, batch, ssim=False).psnr.min()) > 25


@pytest.mark.parametrize(
    "case",
    [
        {"defense": GradientNoise(0.01)},
        {"defense": GradientPruning(0.9)},
        {"local": LocalSteps(0.1, 6)},
    ],
    ids=["noise", "pruning", "local steps"],
)
def test_where_the_rank_is_hidden_there_is_no_head(case):
    assert (
        head_of(observed(two_linear_layers(), smooth_images(3, 1, 8, 8), **case), seeded()) is None
    )


def test_a_message_of_which_a_whole_tensor_is_missing_has_no_head():
    observation = observed(two_linear_layers(), smooth_images(3, 1, 8, 8))
    assert head_of(observation, seeded()) is not None
    sent = {**observation.sent, "5.bias": torch.zeros(10)}
    assert head_of(replace(observation, sent=sent), seeded()) is None


def test_as_many_images_as_units_are_too_many():
    observation = observed(two_linear_layers(), smooth_images(16, 1, 8, 8))
    assert head_of(observation, seeded()) is None


class _Around(nn.Module):
    """Information passes the linear layer by."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, inputs):
        return self.layer(inputs.flatten(1)) + inputs.flatten(1)[:, :10]


def test_a_layer_that_is_not_a_cut_is_no_head():
    model = build_model("tests.attacks.test_peel:_Around", allow_imports=True)
    assert head_of(observed(model, smooth_images(2, 1, 8, 8)), seeded()) is None


def test_the_model_keeps_no_hooks():
    model = two_linear_layers()
    head_of(observed(model, smooth_images(2, 1, 8, 8)), seeded())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def narrow_features(kernel: int = 2) -> nn.Module:
    """The features of a 3x8x8 image are 8 numbers a patch: fewer than its entries."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, kernel, stride=kernel), nn.BatchNorm2d(8), nn.LeakyReLU(),
            nn.Flatten(), nn.Linear(8 * (8 // kernel) ** 2, 10),
        ).eval()  # fmt: skip


def spied(monkeypatch) -> list[Reconstruction | None]:
    """What peeling says from now on."""
    seen, solve = [], Peel.solve

    def spy(self, *arguments):
        seen.append(solve(self, *arguments))
        return seen[-1]

    monkeypatch.setattr(Peel, "solve", spy)
    return seen


def test_features_that_show_little_of_an_image_are_not_inverted(monkeypatch):
    seen = spied(monkeypatch)
    monkeypatch.setattr(Peel, "_guess", lambda *_: pytest.fail("this costs time for nothing"))
    observation = observed(narrow_features(4), smooth_images(1, 3, 8, 8), labels="known")
    with_it, without = (
        InvertingGradients.strong(steps=5, peel=peel, finish=None)(observation, seeded())
        for peel in (QUICK, None)
    )
    assert seen == [None]
    assert torch.equal(with_it.inputs, without.inputs)


def own_cost(attack, observation, found) -> float:
    run = Run(observation, found.targets, seeded(), Watch(None))
    return float(attack._cost(run, attack._unit(run, named_stream("unit")))(found.inputs, 1.0))


@pytest.mark.parametrize(("seed", "finish"), [(0, None), (1, Finish(steps=1, products=5))])
def test_where_features_do_not_determine_an_image_the_less_cost_wins(monkeypatch, seed, finish):
    seen = spied(monkeypatch)
    observation = observed(narrow_features(), smooth_images(2, 3, 8, 8, seed=seed), labels="known")
    attack = InvertingGradients.strong(steps=20, restarts=1, peel=QUICK, finish=finish)
    found = attack(observation, seeded(seed))
    alone = replace(attack, peel=None)(observation, seeded(seed))
    guess = seen[0]
    assert guess is not None
    assert not guess.is_certain
    costs = [own_cost(attack, observation, r) for r in (found, alone, guess)]
    assert costs[0] <= min(costs[1:]) * (1 + 1e-5)


def test_a_descent_that_explains_more_is_kept(monkeypatch):
    """A guess that only claims to be right where nothing determines it."""
    batch = smooth_images(1, 3, 8, 8)
    observation = observed(narrow_features(), batch, labels="known")
    drawn = torch.rand(1, 3, 8, 8, generator=seeded())
    noise = Reconstruction(drawn, batch[1], 0.0, is_certain=True)
    monkeypatch.setattr(Peel, "_guess", lambda *_: noise)
    attack = InvertingGradients.strong(steps=20, finish=None)
    found = attack(observation, seeded())
    alone = replace(attack, peel=None)(observation, seeded())
    assert torch.equal(found.inputs, alone.inputs)


def test_what_explains_the_message_wins_over_what_is_smooth(monkeypatch):
    """The truth is rougher than what a descent with much total variation ends at."""
    inputs = torch.rand(1, 3, 8, 8, generator=seeded())
    observation = observed(narrow_features(), (inputs, torch.tensor([3])), labels="known")
    truth = Reconstruction(inputs, torch.tensor([3]), 0.0)
    monkeypatch.setattr(Peel, "_guess", lambda *_: truth)
    attack = InvertingGradients(steps=20, total_variation=1.0, peel=Peel())
    found = attack(observation, seeded())
    alone = replace(attack, peel=None)(observation, seeded())
    assert own_cost(attack, observation, alone) < own_cost(attack, observation, truth)
    assert torch.equal(found.inputs, inputs)


def test_an_exact_guess_is_sure_and_ends_the_attack(monkeypatch):
    seen = spied(monkeypatch)
    observation = observed(two_linear_layers(), smooth_images(3, 1, 8, 8), labels="known")
    monkeypatch.setattr(InvertingGradients, "_descend", lambda *_: pytest.fail("not needed"))
    found = InvertingGradients.strong(steps=400, peel=QUICK)(observation, seeded())
    assert seen[0].is_certain
    assert torch.equal(found.inputs, seen[0].inputs)


@pytest.mark.slow
def test_the_cifar_convnet_without_a_defense_does_not_look_more_private_than_with_noise():
    data = load_dataset("cifar10")
    model = build_model("conv-net(width=16)", seed=0)
    attack = InvertingGradients(40, total_variation=1e-2, peel=Peel())
    means = []
    for defense in (NoDefense(), GradientNoise(0.01)):
        each = []
        for start in range(2):
            batch = data.batch(start, 1)
            observation = observe(
                model, LOSS, batch, defense, num_classes=10, input_range=data.range,
                generator=seeded(start),
            )  # fmt: skip
            found = attack(observation, seeded(start))
            if defense.about.family == "none":
                alone = replace(attack, peel=None)(observation, seeded(start))
                own = [own_cost(attack, observation, r) for r in (found, alone)]
                assert own[0] <= own[1]
            each.append(float(score(found, batch, normalization=data, ssim=False).psnr.mean()))
        means.append(sum(each) / len(each))
    assert means[0] > means[1]


@pytest.mark.slow
@pytest.mark.parametrize(("images", "least"), [(4, 36.0), (16, 20.0)])
def test_the_papers_cnn(images, least):
    data = load_dataset("mnist")
    batch = data.batch(300, images)
    observation = observe(
        build_model("simple-conv-net", seed=0).eval(), LOSS, batch, NoDefense(), num_classes=10,
        input_range=data.range,
    )  # fmt: skip
    found = InvertingGradients.strong()(observation, seeded())
    assert float(score(found, batch, normalization=data, ssim=False).psnr.mean()) > least
