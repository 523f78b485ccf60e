"""Errors name the argument, what was found and what to do."""

import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradveil import GradientMessage, LocalUpdateMessage
from tests.zoo import named

pytestmark = pytest.mark.usefixtures("global_rng_watch")

LABELS = torch.tensor([0, 1, 2, 0])
MESSAGES = [GradientMessage, partial(LocalUpdateMessage, lr=0.1, steps=2)]
each_message = pytest.mark.parametrize("make", MESSAGES, ids=["gradient", "local-update"])


def frozen() -> nn.Module:
    return named("mlp").model().requires_grad_(False)


@each_message
@pytest.mark.parametrize(
    ("model", "error", "found"),
    [
        (nn.ReLU(), ValueError, "at least one parameter with `requires_grad=True`. Found none."),
        (frozen(), ValueError, "at least one parameter with `requires_grad=True`. Found none."),
        (lambda x: x, TypeError, "should be a torch.nn.Module. Found function."),
        (None, TypeError, "should be a torch.nn.Module. Found NoneType."),
        (nn.Linear, TypeError, "should be a torch.nn.Module. Found type."),
    ],
)
def test_model(make: Any, model: Any, error: type[Exception], found: str) -> None:
    with pytest.raises(error, match=re.escape("Parameter `model` ") + ".*" + re.escape(found)):
        make(model, F.cross_entropy, LABELS)


@each_message
@pytest.mark.parametrize(
    ("loss_fn", "found"),
    [
        (partial(F.cross_entropy, reduction="none"), "(4,)"),
        (nn.CrossEntropyLoss(reduction="none"), "(4,)"),
        (lambda outputs, targets: outputs, "(4, 3)"),
        (lambda outputs, targets: 1.5, "float"),
    ],
    ids=["partial", "module", "outputs", "number"],
)
def test_loss(make: Any, loss_fn: Any, found: str) -> None:
    message = make(named("mlp").model(torch.float32), loss_fn, LABELS)
    pattern = f"Parameter `loss_fn` should return one number.*{re.escape(found)}.*reduction"
    with pytest.raises(ValueError, match=pattern):
        message(torch.ones(4, 5))


@each_message
@pytest.mark.parametrize(
    ("inputs", "error", "found"),
    [
        (torch.ones(4, 5, dtype=torch.long), TypeError, "`inputs.dtype = torch.int64`"),
        (torch.ones(4, 5, dtype=torch.bool), TypeError, "`inputs.dtype = torch.bool`"),
        ([[1.0] * 5] * 4, TypeError, " be a torch.Tensor. Found list."),
        (None, TypeError, " be a torch.Tensor. Found NoneType."),
        (torch.ones(0, 5), ValueError, "non-empty batch"),
        (torch.tensor(1.0), ValueError, "one example for each of the `targets`"),
        (torch.ones(3, 5), ValueError, "`inputs.shape = (3, 5)` and `targets.shape = (4,)`"),
        (torch.ones(5, 5), ValueError, "`inputs.shape = (5, 5)` and `targets.shape = (4,)`"),
    ],
    ids=["integer", "boolean", "list", "none", "empty", "0-d", "fewer", "more"],
)
def test_inputs(make: Any, inputs: Any, error: type[Exception], found: str) -> None:
    message = make(named("mlp").model(torch.float32), F.cross_entropy, LABELS)
    with pytest.raises(error, match="Parameter `inputs` should.*" + re.escape(found)):
        message(inputs)


@pytest.mark.parametrize(
    ("options", "error", "found"),
    [
        ({"lr": 0.0}, ValueError, "`lr` should be a finite number above 0. Found `lr = 0.0`"),
        ({"lr": -0.1}, ValueError, "`lr` should be a finite number above 0. Found `lr = -0.1`"),
        ({"lr": float("nan")}, ValueError, "Found `lr = nan`"),
        ({"lr": float("inf")}, ValueError, "Found `lr = inf`"),
        ({"lr": "0.1"}, TypeError, "`lr` should be a number. Found str ('0.1')"),
        ({"steps": 0}, ValueError, "`steps` should be an integer of at least 1. Found `steps = 0`"),
        ({"steps": 1.5}, ValueError, "Found `steps = 1.5`"),
        ({"steps": True}, ValueError, "Found `steps = True`"),
        ({"batch_size": 0}, ValueError, "`batch_size` should be an integer of at least 1."),
        ({"batch_size": -2}, ValueError, "Found `batch_size = -2`"),
        ({"momentum": -0.1}, ValueError, "Found `momentum = -0.1`"),
        ({"momentum": 1.0}, ValueError, "`momentum` should be in [0, 1). Found `momentum = 1.0`"),
        ({"momentum": float("nan")}, ValueError, "Found `momentum = nan`"),
        ({"momentum": None}, TypeError, "`momentum` should be a number. Found NoneType"),
    ],
    ids=str,
)
def test_local_steps(options: dict[str, Any], error: type[Exception], found: str) -> None:
    with pytest.raises(error, match="Parameter .*" + re.escape(found)):
        named("mlp").local_update(**options)


def test_targets_of_a_local_update_must_be_a_tensor() -> None:
    model = named("mlp").model()
    with pytest.raises(TypeError, match=r"Parameter `targets` should be a torch.Tensor.*list"):
        LocalUpdateMessage(model, F.cross_entropy, [0, 1, 2, 0], lr=0.1, steps=1)


def test_separable_declared_for_a_model_that_draws() -> None:
    """Examples taken one by one would get other masks than in the batch."""
    case = named("dropout_train")
    message = case.message(separable=True)
    with pytest.raises(ValueError, match="Parameter `model` should draw no random numbers"):
        message.example_gradient(case.inputs()[0], torch.ones(3, dtype=torch.float64))
