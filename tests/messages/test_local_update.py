import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.messages.compare import assert_same, assert_same_bytes, backward_gradient
from tests.zoo import SEPARABLE, Case, named

pytestmark = pytest.mark.usefixtures("global_rng_watch")

MODELS_WITH_TENSOR_TARGETS = [case for case in SEPARABLE if isinstance(case.targets(), Tensor)]


def sgd_change(
    case: Case, steps: int, lr: float, momentum: float, batch_size: int | None
) -> dict[str, Tensor]:
    """The weight change that a real `torch.optim.SGD` makes over a real list of mini-batches."""
    model, inputs, targets = case.model(), case.inputs(), case.targets()
    start = copy.deepcopy(dict(model.named_parameters()))
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    size = batch_size or len(inputs)
    batches = list(zip(inputs.split(size), targets.split(size), strict=True))
    for batch, labels in itertools.islice(itertools.cycle(batches), steps):
        optimiser.zero_grad()
        case.loss()(model(batch), labels).backward()
        optimiser.step()
    return {
        name: (p - start[name]).detach() for name, p in model.named_parameters() if p.requires_grad
    }


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    ("steps", "batch_size"),
    [(1, None), (3, None), (2, 2), (5, 3), (7, 1), (1, 100)],
)
def test_equals_an_sgd_loop(steps: int, batch_size: int | None, momentum: float) -> None:
    """Also where batches are unequal (4 = 3 + 1) and where there are more steps than batches."""
    options: dict[str, Any] = {"steps": steps, "lr": 0.3}
    options |= {"momentum": momentum, "batch_size": batch_size}
    case = named("mlp")
    assert_same(case.local_update(**options)(case.inputs()), sgd_change(case, **options))


@pytest.mark.parametrize("case", MODELS_WITH_TENSOR_TARGETS, ids=str)
def test_equals_an_sgd_loop_for_every_model(case: Case) -> None:
    options: dict[str, Any] = {"steps": 3, "lr": 0.1, "momentum": 0.5, "batch_size": 2}
    assert_same(case.local_update(**options)(case.inputs()), sgd_change(case, **options))


def test_one_step_is_the_gradient_times_the_rate() -> None:
    case = named("conv_net")
    gradient = backward_gradient(case.model(), case.loss(), case.inputs(), case.targets())
    expected = {name: -0.1 * value for name, value in gradient.items()}
    assert_same(case.local_update(lr=0.1, steps=1)(case.inputs()), expected)


def test_float32() -> None:
    case, float32 = named("mlp"), torch.float32
    found = case.local_update(float32)(case.inputs(float32))
    expected = sgd_change(case, steps=2, lr=0.1, momentum=0.0, batch_size=None)
    assert_same(found, {name: value.float() for name, value in expected.items()})


def test_is_differentiable_in_the_inputs() -> None:
    case = named("mlp")
    inputs = case.inputs().requires_grad_()
    change = case.local_update(steps=3, batch_size=2)(inputs)
    sum(value.square().sum() for value in change.values()).backward()
    assert inputs.grad is not None
    assert inputs.grad.abs().min() > 0


def test_dropout_draws_the_same_masks_at_every_call() -> None:
    case = named("dropout_train")
    message = case.local_update(steps=3, batch_size=3, seed=5)
    assert_same_bytes(message(case.inputs()), message(case.inputs()))
    other = case.local_update(steps=3, batch_size=3, seed=6)(case.inputs())
    assert not torch.equal(other["3.weight"], message(case.inputs())["3.weight"])


def test_unused_parameters_do_not_change() -> None:
    case = named("unused")
    assert not case.local_update()(case.inputs())["idle.weight"].any()
