"""The clipped gradient is that of Opacus, where that is installed."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, PrivateNoise
from gradveil.models import build_model
from tests.messages.compare import assert_same


@pytest.mark.parametrize("name", ["simple-conv-net", "sequences"])
@pytest.mark.parametrize("clip", [0.5, 5.0])
def test_the_clipped_sum_equals_that_of_opacus(name: str, clip: float):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it imports warns
        opacus = pytest.importorskip("opacus")
    torch.manual_seed(0)
    if name == "simple-conv-net":
        model, inputs = build_model(name), torch.randn(8, 1, 28, 28)
    else:
        model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Flatten(),
                              nn.Linear(48, 10))  # fmt: skip
        inputs = torch.randn(8, 3, 6)
    targets = torch.randint(10, (8,))
    own = PrivateNoise(1.0, clip, batch_size=8).respond(
        GradientMessage(model, cross_entropy, targets), inputs
    )
    assert_same(own.values, _opacus_mean(opacus, model, inputs, targets, clip), tolerance=1e-3)


def _opacus_mean(opacus, model, inputs, targets, clip) -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hooked = opacus.GradSampleModule(model.train())
        optimizer = opacus.optimizers.DPOptimizer(
            torch.optim.SGD(hooked.parameters(), lr=0.1),
            noise_multiplier=0.0,
            max_grad_norm=clip,
            expected_batch_size=len(inputs),
        )
        cross_entropy(hooked(inputs), targets).backward()
        optimizer.pre_step()
    return {n.removeprefix("_module."): p.grad for n, p in hooked.named_parameters()}
