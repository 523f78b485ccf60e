"""Every attack can be stopped by Ctrl-C or a time budget, says so, and tells how far it is."""

from dataclasses import replace

import pytest
import torch

from gradveil import GradientPruning, NoDefense
from gradveil.attacks import (
    CAFE,
    DLG,
    IDLG,
    Adaptive,
    GradInversion,
    InvertingGradients,
    Peel,
)
from gradveil.models import build_model

from .small import LOSS, RANGE, seeded
from .small import smooth_images as waves
from .tiny import conv_net, observed, smooth_images

UNAWARE = InvertingGradients.strong(steps=20, restarts=1)
ATTACKS = {
    "inverting gradients": InvertingGradients(steps=20),
    "strong": UNAWARE,
    "peeling": InvertingGradients(steps=20, peel=Peel()),
    "adaptive": Adaptive(UNAWARE),
    "grad inversion": GradInversion(steps=20, rounds=4),
    "dlg": DLG(steps=60),
    "idlg": IDLG(steps=60),
}


def with_changes(name, **changes):
    return replace(ATTACKS[name], **changes)


def observation_for(name):
    defense = GradientPruning(0.3) if name == "adaptive" else None
    return observed(
        conv_net(1, (5, 5)), smooth_images(2, 1, (5, 5)), [0, 1], defense, mechanism="known"
    )


class CtrlC:
    """Interrupts after some calls."""

    def __init__(self, after):
        self.left = after

    def __call__(self, step, steps, cost):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("after", [0, 25])
def test_ctrl_c_returns_the_best_so_far(name, after):
    found = with_changes(name, progress=CtrlC(after))(observation_for(name), seeded())
    assert found.inputs.shape == (2, 1, 5, 5)
    assert bool(torch.isfinite(found.inputs).all())
    assert found.status in ("interrupted", "finished")
    if after == 0:
        assert found.status == "interrupted"


@pytest.mark.parametrize("name", ATTACKS)
def test_a_spent_budget_is_said(name):
    found = with_changes(name, time_budget=0.0)(observation_for(name), seeded())
    assert found.status == "time budget"
    assert found.inputs.shape == (2, 1, 5, 5)


def test_cafe_is_stopped_and_tells_its_progress():
    data = waves(9, 1, 8, 8)
    model = build_model(
        "gradveil.attacks:VerticalNet", allow_imports=True,
        input_shape=(1, 8, 8), num_classes=10, workers=2,
        channels=4, hidden=16,
    )  # fmt: skip
    observation = CAFE.observe(
        model, LOSS, data, NoDefense(), num_classes=10, batch_size=8, iterations=20,
        input_range=RANGE, generator=seeded(),
    )  # fmt: skip
    told = []
    CAFE(steps=40, progress=lambda *now: told.append(now))(observation, seeded())
    assert told
    assert CAFE(steps=40, progress=CtrlC(0))(observation, seeded()).status == "interrupted"
    assert CAFE(time_budget=0.0)(observation, seeded()).status == "time budget"
