"""A message knows whether examples enter it as a sum."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradveil import GradientMessage
from gradveil.messages import Message, separates
from tests.messages.compare import assert_same
from tests.zoo import SEPARABLE, ZOO, Case, contrastive_loss, named

pytestmark = pytest.mark.usefixtures("global_rng_watch")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", ZOO, ids=str)
def test_is_found_out(case: Case, dtype: torch.dtype) -> None:
    assert separates(case.message(dtype), case.inputs(dtype)) is case.separable


@pytest.mark.parametrize("case", SEPARABLE, ids=str)
def test_parts_of_the_examples_add_up(case: Case) -> None:
    message, inputs = case.message(), case.inputs()
    deltas = message.output_gradient(inputs)
    parts = [message.example_gradient(x, d) for x, d in zip(inputs, deltas, strict=True)]
    total = {name: sum(part[name] for part in parts) for name in parts[0]}
    assert_same(total, message(inputs))


@pytest.mark.parametrize("declared", [True, False])
def test_what_the_user_declares_counts(declared: bool) -> None:
    for case in (named("mlp"), named("contrastive"), named("batch_norm_train")):
        message = case.message(separable=declared)
        assert separates(message, case.inputs()) is declared


def test_a_switch_to_training_mode_is_noticed() -> None:
    case, model = named("batch_norm_eval"), named("batch_norm_eval").model()
    message = GradientMessage(model, case.loss(), case.targets())
    assert separates(message, case.inputs())
    model.train()
    assert not separates(message, case.inputs())


def test_training_mode_alone_couples_nothing() -> None:
    case = named("layer_norm")
    message = GradientMessage(case.model().train(), case.loss(), case.targets())
    assert separates(message, case.inputs())


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.5])
def test_dropout_couples_if_it_drops_anything(rate: float) -> None:
    """At a rate of 0.02 the two examples that are looked at lose nothing: drawing is enough."""
    case = named("mlp")
    for layer in (nn.Dropout(rate), Functional(rate)):
        model = nn.Sequential(layer, case.model()).train()
        message = GradientMessage(model, case.loss(), case.targets())
        assert separates(message, case.inputs()) is (rate == 0.0)


class Functional(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return F.dropout(inputs, self.rate, self.training) if self.rate else inputs


def test_a_batch_in_the_second_dimension_is_noticed() -> None:
    """Attention with `batch_first=False` reads the examples of a batch as one sequence."""
    case = named("transformer")
    model = case.model()[0]
    model.self_attn.batch_first = False
    message = GradientMessage(model, F.mse_loss, torch.zeros(case.shape, dtype=torch.float64))
    assert not separates(message, case.inputs())


def test_a_local_update_is_never_a_sum() -> None:
    case = named("mlp")
    assert not separates(case.local_update(steps=1), case.inputs())


def test_any_callable_is_a_message() -> None:
    def message(inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"mean": inputs.mean(0)}

    assert isinstance(message, Message)
    assert not separates(message, torch.ones(2, 3))


def test_a_contrastive_loss_of_one_example_is_a_sum_of_one() -> None:
    case = named("contrastive")
    message = GradientMessage(case.model(), contrastive_loss, None)
    assert separates(message, case.inputs()[:1])
    assert not separates(message, case.inputs())


def test_a_mistake_at_the_first_look_is_not_remembered() -> None:
    """Inputs of another dtype, or weights that are NaN for a while, say nothing of the layers."""
    case, model = named("mlp"), named("mlp").model()
    message = GradientMessage(model, case.loss(), case.targets())
    assert not separates(message, case.inputs(torch.float32))
    assert separates(message, case.inputs())


class Centred(nn.Module):
    """Mixes examples without saying so."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            self.layer = nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(inputs)
        return hidden - 0.9 * hidden.mean(0)


def test_a_batch_of_one_says_nothing_of_larger_ones() -> None:
    model, targets = Centred(), torch.tensor([0, 1, 2, 0])
    inputs = torch.linspace(-1, 1, 12).view(4, 3).sin()
    one = GradientMessage(model, nn.functional.cross_entropy, targets[:1])
    assert one.separates(inputs[:1])
    assert not GradientMessage(model, nn.functional.cross_entropy, targets).separates(inputs)
