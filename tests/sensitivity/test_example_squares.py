"""E g_{b,i}² over examples, against one backward pass for each example."""

import pytest
import torch
from torch import Tensor, nn

from gradveil import GradientMessage, LocalUpdateMessage, measure
from gradveil.sensitivity import Exact, _estimators
from gradveil.sensitivity._measure import example_squares
from tests.sensitivity.oracles import Squares, assert_same_squares
from tests.zoo import COUPLED, Case, named

pytestmark = pytest.mark.usefixtures("global_rng_watch")


def one_by_one(case: Case, inputs: Tensor) -> Squares:
    """The mean over examples of the squared gradient of a batch of that example alone."""
    model, targets = case.model(), case.targets()
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for index in range(len(inputs)):
        loss = case.loss()(model(inputs[index : index + 1]), targets[index : index + 1])
        gradients = torch.autograd.grad(loss, [*parameters.values()], materialize_grads=True)
        for square, gradient in zip(total.values(), gradients, strict=True):
            square += gradient.square()
    return {name: square / len(inputs) for name, square in total.items()}


@pytest.mark.parametrize(
    "name", ["mlp", "conv_net", "batch_norm_eval", "recurrent", "scalar", "unused"]
)
def test_equals_one_backward_pass_for_each_example(name: str) -> None:
    case = named(name)
    found = measure(case.message(), case.inputs(), Exact(), examples=True)
    assert_same_squares(found.known_squared_example_values, one_by_one(case, case.inputs()))


def test_of_a_sum_it_is_the_sum() -> None:
    """The curvature of Σ_b ℓ_b is Σ_b that of ℓ_b; the mean of a batch has the mean."""
    case = named("sum_reduction")
    found = example_squares(case.message(), case.inputs(), case.message()(case.inputs()))
    mean = one_by_one(case, case.inputs())
    assert_same_squares(found, {n: len(case.inputs()) * h for n, h in mean.items()})


def test_in_chunks_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    case = named("mlp")
    values = case.message()(case.inputs())
    whole = example_squares(case.message(), case.inputs(), values)
    monkeypatch.setattr(_estimators, "ROOM", 4)
    assert_same_squares(example_squares(case.message(), case.inputs(), values), whole)


def test_it_is_the_curvature_of_a_linear_model_with_gaussian_noise() -> None:
    """For ½(w·x - y)² with unit noise on y, E g_i² at the true weights is H_ii = E x_i²."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(20_000, 3, generator=generator, dtype=torch.float64)
    inputs = inputs * torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    model = linear(3).double()
    noise = torch.randn(20_000, 1, generator=generator, dtype=torch.float64)
    targets = model(inputs).detach() + noise
    message = GradientMessage(model, half_squares, targets)
    found = example_squares(message, inputs, message(inputs))["weight"]
    torch.testing.assert_close(found[0], inputs.square().mean(0), rtol=0.05, atol=0)


def linear(size: int) -> nn.Linear:
    with torch.random.fork_rng():
        return nn.Linear(size, 1, bias=False)


def half_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs - targets).square().sum(1).mean()


def test_squares_too_small_for_float32_stay_above_0() -> None:
    model = linear(2)
    message = GradientMessage(model, lambda o, y: 1e-25 * o.mean(), torch.zeros(2))
    inputs = torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    found = example_squares(message, inputs, message(inputs))["weight"]
    assert found.dtype == torch.float32
    assert float(found[0, 0]) > 0
    assert float(found[0, 1]) == 0


def test_not_measured_unless_asked_for() -> None:
    case = named("mlp")
    assert measure(case.message(), case.inputs(), Exact()).squared_example_values is None


@pytest.mark.parametrize("case", COUPLED[:1], ids=str)
def test_examples_that_interact_are_refused(case: Case) -> None:
    with pytest.raises(ValueError, match=r"should be a sum over examples.*match='utility'"):
        measure(case.message(), case.inputs(), examples=True)


def test_local_updates_are_refused() -> None:
    case = named("mlp")
    update = LocalUpdateMessage(case.model(), case.loss(), case.targets(), lr=0.1, steps=2)
    with pytest.raises(ValueError, match=r"Found a LocalUpdateMessage whose examples interact"):
        measure(update, case.inputs(), examples=True)
