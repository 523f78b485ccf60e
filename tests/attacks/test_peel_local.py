"""FedAvg's updates are peeled where the head is seen, and left alone elsewhere."""

import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from gradveil import GradientNoise, GradientPruning, NoDefense, Rounding, load_dataset
from gradveil.attacks import InvertingGradients, Peel, Watch, observe
from gradveil.attacks._attack import INTERRUPTED
from gradveil.attacks._targets import Run
from gradveil.messages import LocalSteps
from gradveil.models import build_model
from gradveil.scoring import score

from .local_nets import CASES, conv_net
from .small import LOSS, observed, seeded, smooth_images

QUICK = Peel(steps=150, image_steps=200)


@pytest.mark.parametrize(
    "name",
    [
        "uneven mini-batches, momentum",
        *(pytest.param(name, marks=pytest.mark.slow) for name in list(CASES)[:-1]),
    ],
)
def test_images_come_back_and_are_certain(name):
    batch = smooth_images(4, 1, 8, 8)
    observation = observed(conv_net(), batch, labels="known", local=CASES[name])
    found = QUICK.solve(Run(observation, batch[1], seeded(), Watch(None)))
    assert found is not None
    assert found.is_certain
    assert float(score(found, batch, ssim=False).psnr.min()) > 35
    assert found.loss < 1e-4


@pytest.mark.slow
def test_the_attack_ends_with_them_well_above_the_descent(monkeypatch):
    batch = smooth_images(3, 1, 8, 8)
    observation = observed(conv_net(), batch, labels="known", local=LocalSteps(0.1, 3))
    attack = InvertingGradients(75, total_variation=1e-3, peel=QUICK)
    alone = replace(attack, peel=None)(observation, seeded())
    monkeypatch.setattr(InvertingGradients, "_descend", lambda *_: pytest.fail("not needed"))
    found, again = (attack(observation, seeded()) for _ in range(2))
    psnr, before = (float(score(r, batch, ssim=False).psnr.mean()) for r in (found, alone))
    assert psnr > before + 10
    assert torch.equal(found.inputs, again.inputs)


def with_norm() -> nn.Module:
    """A trainable layer that is not linear acts after the first linear one."""
    return nn.Sequential(*conv_net()[:4], nn.LayerNorm(20), nn.LeakyReLU(), nn.Linear(20, 10))


@pytest.mark.parametrize(
    "case",
    [
        {"defense": GradientNoise(0.01)},
        {"defense": GradientPruning(0.9)},
        {"defense": Rounding(1e-3)},
        {"local": LocalSteps(0.1, 5)},
        {"local": LocalSteps(0.1, 1, batch_size=2)},
    ],
    ids=["noise", "pruning", "rounding", "too many visits", "not all visited"],
)
def test_it_steps_aside(case):
    batch = smooth_images(4, 1, 8, 8)
    observation = observed(conv_net(), batch, **{"local": LocalSteps(0.1, 2), **case})
    assert QUICK.solve(Run(observation, batch[1], seeded(), Watch(None))) is None


def test_other_layers_that_are_trained_after_the_first_linear_one_stop_it():
    batch = smooth_images(4, 1, 8, 8)
    observation = observed(with_norm(), batch, local=LocalSteps(0.1, 2))
    assert QUICK.solve(Run(observation, batch[1], seeded(), Watch(None))) is None


@pytest.mark.slow
def test_wrong_labels_are_never_certain():
    batch = smooth_images(3, 1, 8, 8)
    observation = observed(conv_net(), batch, labels="known", local=LocalSteps(0.1, 2))
    hasty = replace(QUICK, steps=50)
    found = hasty.solve(Run(observation, (batch[1] + 1) % 10, seeded(), Watch(None)))
    assert found is None or not found.is_certain


def test_no_time_is_no_guess_and_ctrl_c_says_so(monkeypatch):
    batch = smooth_images(3, 1, 8, 8)
    observation = observed(conv_net(), batch, labels="known", local=LocalSteps(0.1, 2))
    assert QUICK.solve(Run(observation, batch[1], seeded(), Watch(0.0))) is None

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("gradveil.attacks._peel.least_squares", stop)
    found = QUICK.solve(Run(observation, batch[1], seeded(), Watch(None)))
    assert found is not None
    assert found.status == "interrupted"
    assert not found.is_certain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "images", "local"),
    [
        (2004, 4, LocalSteps(0.1, 4)),
        (2008, 4, LocalSteps(0.1, 4, batch_size=2)),
        (2016, 8, LocalSteps(0.1, 2)),
    ],
)
def test_the_papers_cnn(first, images, local):
    data = load_dataset("mnist")
    batch = data.batch(first, images)
    observation = observe(
        build_model("simple-conv-net", seed=0).eval(), LOSS, batch, NoDefense(), num_classes=10,
        input_range=data.range, local=local,
    )  # fmt: skip
    found = Peel().solve(Run(observation, batch[1], seeded(), Watch(None)))
    assert found is not None
    assert found.is_certain
    assert float(score(found, batch, normalization=data, ssim=False).psnr.min()) > 60


@pytest.mark.slow
def test_one_image_that_does_not_show_is_not_certain(monkeypatch):
    """A trained model is so sure of some examples that they are hardly in the message."""
    batch = smooth_images(4, 1, 8, 8)
    observation = observed(conv_net(), batch, labels="known", local=LocalSteps(0.1, 2))
    invert = Peel.invert

    def missing_one(self, *given):
        inputs, misfits, status = invert(self, *given)
        return inputs, torch.cat([misfits[:-1], misfits.new_ones(1)]), status

    monkeypatch.setattr(Peel, "invert", missing_one)
    found = replace(QUICK, steps=25).solve(Run(observation, batch[1], seeded(), Watch(None)))
    assert found is not None
    assert not found.is_certain


@pytest.mark.slow
def test_a_message_that_is_not_explained_is_not_certain(monkeypatch):
    monkeypatch.setattr(Run, "misfit", lambda *_: 0.058)
    monkeypatch.setattr(Run, "random_misfit", lambda *_: 0.9)
    batch = smooth_images(4, 1, 8, 8)
    observation = observed(conv_net(), batch, labels="known", local=LocalSteps(0.1, 2))
    found = replace(QUICK, steps=25).solve(Run(observation, batch[1], seeded(), Watch(None)))
    assert found is not None
    assert not found.is_certain


def test_many_unknowns_are_left_alone():
    """Their Jacobian would take gigabytes, and a step longer than any time budget."""
    batch = smooth_images(8, 1, 8, 8)
    wide = nn.Sequential(*conv_net()[:3], nn.Linear(conv_net()[3].in_features, 400), nn.LeakyReLU())
    wide.append(nn.Linear(400, 10))
    observation = observed(wide, batch, labels="known", local=LocalSteps(0.1, 2))
    begin = time.monotonic()
    assert QUICK.solve(Run(observation, batch[1], seeded(), Watch(None))) is None
    assert time.monotonic() - begin < 30


def test_ctrl_c_in_a_closed_form_ends_the_attack(monkeypatch):
    """The descent used to run after it, and the result said that it had finished."""
    batch = smooth_images(3, 1, 8, 8)
    observation = observed(conv_net(), batch, labels="known", local=LocalSteps(0.1, 2))
    monkeypatch.setattr(Peel, "_pass", _interrupt)
    monkeypatch.setattr(InvertingGradients, "_descend", lambda *_: pytest.fail("not asked for"))
    attack = InvertingGradients(75, peel=QUICK)
    assert attack(observation, seeded()).status == INTERRUPTED


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
