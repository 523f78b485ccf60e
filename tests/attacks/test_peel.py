"""Peeling solves the last layers exactly where nothing hides them, and gives way elsewhere."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from gradveil import GradientNoise, GradientPruning, NoDefense, load_dataset
from gradveil.attacks import InvertingGradients, LocalSteps, Peel, observe, score
from gradveil.attacks._search import head_of
from gradveil.models import build_model

from .small import LOSS, observed, seeded, smooth_images


def two_linear_layers(bias: bool = True) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.LeakyReLU(), nn.Flatten(),
            nn.Linear(6 * 64, 16, bias=bias), nn.LeakyReLU(), nn.Linear(16, 10),
        ).eval()  # fmt: skip


QUICK = Peel(steps=400, image_steps=150)


@pytest.mark.parametrize("bias", [True, False])
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
    from gradveil.attacks._peel import _Equations, _features

    batch = smooth_images(3, 1, 8, 8)
    model = two_linear_layers()
    head = head_of(observed(model, batch), seeded())
    assert head is not None
    assert head.later == ["5.weight", "5.bias"]
    head.twin.set_width(1e-9)
    hidden = model[:3](batch[0]).detach().double()
    outputs = hidden @ model[3].weight.detach().double().T + model[3].bias.detach().double()
    equations = _Equations(head, batch[1])
    assert float(equations.evidence.misfit(equations(outputs))) < 1e-10
    torch.testing.assert_close(_features(head, outputs, batch[1]), hidden, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "case",
    [
        {"defense": GradientNoise(0.01)},
        {"defense": GradientPruning(0.5)},
        {"local": LocalSteps(0.1, 2)},
    ],
    ids=["noise", "pruning", "local steps"],
)
def test_where_the_rank_is_hidden_there_is_no_head(case):
    assert (
        head_of(observed(two_linear_layers(), smooth_images(3, 1, 8, 8), **case), seeded()) is None
    )


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
