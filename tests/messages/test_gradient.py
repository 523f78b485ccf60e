from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import grad, jvp
from torch.nn import functional as F

from gradveil import GradientMessage, LocalUpdateMessage, measure
from gradveil._tensors import Tensors
from tests.messages.compare import (
    assert_same,
    assert_same_bytes,
    assert_untouched,
    backward_gradient,
)
from tests.zoo import SEPARABLE, ZOO, Case, named

pytestmark = pytest.mark.usefixtures("global_rng_watch")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", ZOO, ids=str)
def test_equals_backward(case: Case, dtype: torch.dtype) -> None:
    message, inputs = case.message(dtype), case.inputs(dtype)
    expected = backward_gradient(case.model(dtype), case.loss(dtype), inputs, case.targets(dtype))
    assert_same(message(inputs), expected)


@pytest.mark.parametrize("case", ZOO, ids=str)
def test_the_shortcut_to_the_values_gives_the_same(case: Case) -> None:
    message, inputs = case.message(), case.inputs().requires_grad_()
    with assert_untouched(message.loss.model):
        found = message.values(inputs)
    assert_same(found, {name: value.detach() for name, value in message(inputs).items()})
    assert not any(value.requires_grad for value in found.values())


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_the_shortcut_works_where_gradients_are_switched_off(context: type) -> None:
    case = named("conv_net")
    expected = case.message()(case.inputs())
    with context():
        assert_same(case.message().values(case.inputs()), expected)


def test_the_shortcut_works_for_a_loss_without_parameters() -> None:
    message = GradientMessage(named("mlp").model(), lambda o, t: torch.ones(()), None)
    assert not any(value.any() for value in message.values(named("mlp").inputs()).values())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("frozen", {"0.bias": (6,), "2.weight": (3, 6)}),
        ("tied", {"encoder.weight": (4, 4), "encoder.bias": (4,), "decoder.bias": (4,)}),
        ("no_bias", {"0.weight": (4, 5), "2.weight": (3, 4)}),
    ],
)
def test_names_and_shapes(name: str, expected: dict[str, tuple[int, ...]]) -> None:
    case = named(name)
    assert {n: tuple(g.shape) for n, g in case.message()(case.inputs()).items()} == expected


def test_scalar_parameters_have_scalar_gradients() -> None:
    case = named("scalar")
    gradient = case.message()(case.inputs())
    assert gradient["log_temperature"].shape == ()
    assert float(gradient["log_temperature"]) != 0


def test_unused_parameters_have_gradient_zero() -> None:
    case = named("unused")
    gradient = case.message()(case.inputs())
    assert not gradient["idle.weight"].any()
    assert gradient["used.0.weight"].any()


def test_is_differentiable_in_the_inputs() -> None:
    case = named("mlp")
    inputs = case.inputs().requires_grad_()
    sum(value.square().sum() for value in case.message()(inputs).values()).backward()
    assert inputs.grad is not None
    assert inputs.grad.abs().min() > 0


def _twice(case: Case, local: bool) -> Callable[[Tensor], Tensors]:
    if not local:
        return case.message()
    return LocalUpdateMessage(case.model(), case.loss(), case.targets(), lr=0.1, steps=3)


@pytest.mark.parametrize("local", [False, True], ids=["gradient", "update"])
@pytest.mark.parametrize("name", ["mlp", "conv_net", "no_bias", "frozen", "transformer"])
def test_autograd_and_transforms_find_the_same_derivatives(name: str, local: bool) -> None:
    case = named(name)
    message, inputs = _twice(case, local), case.inputs()
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype)
    along = jvp(message, (inputs,), (direction,))[1]
    with forward_ad.dual_level():
        dual = message(forward_ad.make_dual(inputs, direction))
        found = {name: forward_ad.unpack_dual(value).tangent for name, value in dual.items()}
    assert_same(found, along)

    def cost(inputs: Tensor) -> Tensor:
        return sum((value.square().sum() for value in message(inputs).values()), torch.zeros(()))

    leaf = inputs.clone().requires_grad_()
    plain = torch.autograd.grad(cost(leaf), leaf)[0]
    assert_same({"inputs": plain}, {"inputs": grad(cost)(inputs)})


def test_a_gradient_of_constants_is_a_constant() -> None:
    case = named("mlp")
    with assert_untouched(model := case.model()):
        found = GradientMessage(model, case.loss(), case.targets())(case.inputs())
    assert not any(value.requires_grad for value in found.values())


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_works_where_gradients_are_switched_off(context: type) -> None:
    case = named("transformer")
    expected = case.message()(case.inputs())
    with context():
        found = case.message()(case.inputs())
    assert_same(found, expected)
    assert not any(value.requires_grad for value in found.values())


def test_a_weighted_mean_divides_by_the_weights_of_the_batch() -> None:
    case = named("weighted")
    losses = nn.CrossEntropyLoss(weight=case.loss_fn.weight, reduction="none")
    total = case.loss_fn.weight[case.targets()].sum()
    message = GradientMessage(case.model(), lambda o, t: losses(o, t).sum() / total, case.targets())
    assert_same(case.message()(case.inputs()), message(case.inputs()))


class TestFollowsItsModel:
    """The message is of the model as it is at the call, not as it was when the message was made."""

    def check(self, model: nn.Module, message: GradientMessage) -> None:
        case = named("mlp")
        expected = backward_gradient(model, case.loss(), case.inputs(), case.targets())
        assert_same(message(case.inputs()), expected)

    def make(self) -> tuple[nn.Module, GradientMessage]:
        case, model = named("mlp"), named("mlp").model()
        return model, GradientMessage(model, case.loss(), case.targets())

    def test_after_an_optimiser_step(self) -> None:
        model, message = self.make()
        named("mlp").loss()(model(named("mlp").inputs()), named("mlp").targets()).backward()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        self.check(model, message)

    def test_after_its_data_was_replaced(self) -> None:
        model, message = self.make()
        flat = nn.utils.parameters_to_vector(model.parameters())
        nn.utils.vector_to_parameters(flat.detach() * 1.5, model.parameters())
        self.check(model, message)

    def test_after_a_layer_was_frozen(self) -> None:
        model, message = self.make()
        model[0].requires_grad_(False)
        assert message.parameters.keys() == {"2.weight", "2.bias"}
        self.check(model, message)


def test_targets_may_be_anything_the_loss_takes() -> None:
    case = named("two_heads")
    targets = {"labels": case.targets(), "weight": 0.5}
    message = GradientMessage(
        case.model(),
        lambda o, t: F.cross_entropy(o[0], t["labels"]) + t["weight"] * o[1].square().mean(),
        targets,
    )
    assert message(case.inputs()).keys() == dict(case.model().named_parameters()).keys()


def test_dropout_draws_the_same_mask_at_every_call_and_another_for_another_seed() -> None:
    case = named("dropout_train")
    message, inputs = case.message(seed=3), case.inputs()
    assert_same_bytes(message(inputs), message(inputs))
    assert_same_bytes(message(inputs), case.message(seed=3)(inputs))
    other = case.message(seed=4)(inputs)
    assert not torch.equal(message(inputs)["0.weight"], other["0.weight"])


def test_the_seed_is_the_one_that_manual_seed_takes() -> None:
    case = named("dropout_train")
    expected = backward_gradient(case.model(), case.loss(), case.inputs(), case.targets(), seed=3)
    assert_same(case.message(seed=3)(case.inputs()), expected)


class ShiftsItsInput(nn.Module):
    """Changes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            self.layer = nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        inputs -= 0.5
        return self.layer(inputs)


@pytest.mark.parametrize("tracked", [False, True])
def test_a_model_that_changes_its_input_gets_a_copy(tracked: bool) -> None:
    case, model = named("mlp"), ShiftsItsInput().double()
    before = case.inputs()
    inputs = before.clone().requires_grad_(tracked)
    message = GradientMessage(model, case.loss(), case.targets())
    expected = GradientMessage(model.layer, case.loss(), case.targets())(before - 0.5)
    expected = {f"layer.{name}": value for name, value in expected.items()}
    for _ in range(2):
        found = {name: value.detach() for name, value in message(inputs).items()}
        assert_same(found, expected)
    measured = measure(message, inputs.detach())
    assert_same(dict(measured.squared_values), {n: v.square() for n, v in expected.items()})
    assert torch.equal(inputs.detach(), before)


def test_is_differentiable_in_soft_targets() -> None:
    case = named("mlp")
    generator = torch.Generator().manual_seed(0)
    soft = torch.rand(len(case.inputs()), 3, generator=generator, dtype=torch.float64)
    soft = soft.requires_grad_()

    model, inputs = case.model(), case.inputs()

    def cost(targets: Tensor) -> Tensor:
        message = GradientMessage(model, F.cross_entropy, targets)
        return sum((v.square().sum() for v in message(inputs).values()), torch.zeros(()))

    found = torch.autograd.grad(cost(soft), soft)[0]
    assert_same({"targets": found}, {"targets": grad(cost)(soft.detach())})


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("case", SEPARABLE, ids=lambda case: case.name)
def test_parts_add_up_to_the_message(case: Case, size: int):
    message, inputs = case.message(), case.inputs()
    parts = [(part(own), len(own)) for part, own in message.parts(inputs, size)]
    assert sum(count for _, count in parts) == len(inputs)
    assert max(count for _, count in parts) <= size
    for name, value in message(inputs).items():
        total = sum(part[name] for part, _ in parts)
        torch.testing.assert_close(total, value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("with_buffers", [False, True])
def test_values_are_the_gradient_and_leave_the_model_alone(with_buffers: bool) -> None:
    """A client's shortcut calls the module itself where it has no buffers to keep."""
    with torch.random.fork_rng():
        layers = [nn.Linear(5, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 3)]
    model = nn.Sequential(*layers, *([nn.BatchNorm1d(3)] if with_buffers else []))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.linspace(-1, 1 + number, parameter.numel()).view_as(parameter))
    next(model.parameters()).requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    inputs = torch.linspace(-1, 2, 20).view(4, 5)
    message = GradientMessage(model, F.cross_entropy, torch.tensor([0, 1, 2, 0]), seed=3)
    with torch.no_grad():
        values = message.values(inputs)
    expected = message(inputs)
    assert values.keys() == expected.keys()
    for name, value in values.items():
        assert torch.equal(value, expected[name])
        assert not value.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    moved = message.at({name: 2 * p for name, p in message.parameters.items()})
    assert all(torch.equal(moved.values(inputs)[n], moved(inputs)[n]) for n in values)
