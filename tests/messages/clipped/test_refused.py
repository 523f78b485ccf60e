"""Models, losses and arguments that cannot be clipped example by example, and why."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from gradveil import GradientMessage, ModelError
from gradveil._tensors import Tensors
from gradveil.messages import ClippedMessage, ClippedUpdate
from tests.zoo import named

REASONS = {
    "batch_norm_train": r"the layer `1` \(BatchNorm2d\) mixes the examples.*model.eval\(\)",
    "batch_norm_no_statistics": r"the layer `1` \(BatchNorm2d\) mixes",
    "contrastive": r"a mean or a sum over examples.*compares examples",
    "pairs": r"should take a single example.*not enough values to unpack",
    "centred": r"outputs for one example change with another example",
    "two_heads": r"a model that returns tuple for 1 example",
    "weighted": r"a mean or a sum over examples.*class weights in a mean",
}


@pytest.mark.parametrize("name", REASONS)
def test_what_mixes_examples_is_refused_with_the_reason(name: str):
    case = named(name)
    with pytest.raises(ValueError, match=REASONS[name]) as error:
        ClippedMessage(case.message(), 1.0).values(case.inputs())
    assert "unit='client'" in str(error.value)


def test_the_same_models_are_clipped_as_a_whole():
    for name in REASONS:
        case = named(name)
        values = ClippedUpdate(case.message(), 1e-9).values(case.inputs())
        length = torch.cat([v.reshape(-1) for v in values.values()]).norm()
        assert float(length) == pytest.approx(1e-9, rel=1e-6)


class WeakMixing(nn.Module):
    """A layer that lets a ten-thousandth of the other examples through."""

    def __init__(self, direction: int) -> None:
        super().__init__()
        self.layer, self.direction = nn.Linear(3, 2), direction

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return h + 1e-4 * h.roll(self.direction, 0).cumsum(0)


@pytest.mark.parametrize("direction", [0, 1])
def test_weak_mixing_in_one_direction_is_noticed(direction: int):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    message = GradientMessage(WeakMixing(direction), mse_loss, torch.zeros(5, 2))
    with pytest.raises(ValueError, match="change with another example"):
        ClippedMessage(message, 1.0).values(x)


class ScaledByTheLargest(nn.Module):
    """One example of the batch decides on all of them: whichever is the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x / x.abs().max())


@pytest.mark.parametrize("largest", range(5))
def test_mixing_by_a_single_example_is_noticed_wherever_it_is(largest: int):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    x[largest] *= 10
    message = GradientMessage(ScaledByTheLargest(), mse_loss, torch.zeros(5, 2))
    with pytest.raises(ValueError, match="change with another example"):
        ClippedMessage(message, 1.0).values(x)


def test_what_is_declared_not_to_separate_is_refused():
    case = named("mlp")
    with pytest.raises(ValueError, match="declared not to be"):
        ClippedMessage(case.message(separable=False), 1.0).values(case.inputs())


def test_whether_a_model_is_refused_does_not_depend_on_the_data():
    message = GradientMessage(WeakMixing(1), mse_loss, torch.zeros(2, 2))
    for inputs in (torch.ones(2, 3), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])):
        with pytest.raises(ValueError, match="change with another example"):
            ClippedMessage(message, 1.0).values(inputs)


@pytest.mark.parametrize("targets", [[0, 1], torch.tensor([0])])
def test_targets_of_another_kind(targets: object):
    message = GradientMessage(nn.Linear(3, 2), cross_entropy, targets)
    with pytest.raises(ValueError, match=r"(one row for each of the 2 examples|one example for)"):
        ClippedMessage(message, 1.0).values(torch.ones(2, 3))


@pytest.mark.parametrize("clip", [0.0, -1.0, float("nan"), float("inf"), 1e30])
def test_clips_that_are_none(clip: float):
    for make in (lambda: ClippedMessage(named("mlp").message(), clip),
                 lambda: ClippedUpdate(named("mlp").message(), clip)):  # fmt: skip
        with pytest.raises(ValueError, match="Parameter `clip` should be"):
            make()


def test_other_messages_are_clipped_as_a_whole():
    with pytest.raises(TypeError, match=r"GradientMessage.*unit='client'"):
        ClippedMessage(named("mlp").local_update(), 1.0)


def test_factors_of_another_model():
    case = named("mlp")
    message = ClippedMessage(case.message(), 1.0, {"w": (torch.ones(1),)})
    with pytest.raises(ValueError, match="`factors` should have the parameters"):
        message.values(case.inputs())


def test_a_model_that_fails_is_explained():
    case = named("mlp")
    with pytest.raises(ModelError, match="should accept inputs of shape"):
        ClippedMessage(case.message(), 1.0).values(case.inputs()[:, :3])


class Between(nn.Module):
    """Two layers, and something of their own between them."""

    def __init__(self, between: Callable[[Tensor], Tensor], **own: Tensor) -> None:
        super().__init__()
        self.first, self.second, self.between = nn.Linear(3, 3), nn.Linear(3, 2), between
        for name, tensor in own.items():
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(torch.tanh(self.first(x))))


def sent(model: nn.Module) -> tuple[Tensors, Tensors]:
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    message = GradientMessage(model, cross_entropy, torch.tensor([0, 1]))
    return ClippedMessage(message, 1e4, batch_size=2).values(x), message(x)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_bias_that_is_broadcast_is_clipped(shape: tuple[int, ...]):
    model = Between(lambda h: nn.functional.linear(h, model.weight, model.bias))
    model.weight, model.bias = (nn.Parameter(torch.randn(s)) for s in ((3, 3), shape))
    for found, value in zip(*(values.values() for values in sent(model)), strict=True):
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-6)


def test_torchs_own_loss_under_autocast_is_clipped():
    with torch.autocast("cpu", torch.bfloat16):
        found, values = sent(Between(torch.sin))
    torch.testing.assert_close(found["second.bias"], values["second.bias"], rtol=0.05, atol=0.01)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_buffer_that_is_not_finite_is_no_mixing(number: float):
    model = Between(lambda h: h * model.scale, scale=torch.tensor([1.0, number, 1.0]))
    with pytest.raises(ValueError, match=r"should be finite.*buffers"):
        sent(model)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_scripted_part_is_named():
    with pytest.raises(TypeError, match="Pass the original module"):
        sent(Between(torch.jit.script(nn.Linear(3, 3))))


@pytest.mark.filterwarnings("ignore")
def test_an_operation_that_cannot_be_recorded_is_named():
    model = Between(lambda h: torch.cond(h.sum() > 1e9, lambda q: q * 2, lambda q: -q, (h,)))
    with pytest.raises(ModelError, match=r"`torch\.cond`"):
        sent(model)
