"""`backward`: the one call of a training loop."""

import pytest
import torch
from torch import Tensor, nn

from gradveil import ClampedNoise, GradientMessage, GradientNoise, NoDefense, OptimalNoise
from gradveil.sensitivity import Exact
from tests.zoo import Case, named

CASES = [named(name) for name in ("mlp", "conv_net", "scalar", "tied", "frozen", "unused")]

every_case = pytest.mark.parametrize("case", CASES, ids=str)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@every_case
def test_without_a_defense_it_is_backward(case: Case) -> None:
    ours, torchs = case.model(), case.model()
    NoDefense().backward(ours, case.loss(), case.inputs(), case.targets())
    case.loss()(torchs(case.inputs()), case.targets()).backward()
    for name, found in gradients(torchs).items():
        torch.testing.assert_close(gradients(ours)[name], found)


@every_case
def test_it_fills_what_the_defense_sends(case: Case) -> None:
    model, defense = case.model(), OptimalNoise(0.1, source="private")
    returned = defense.backward(model, case.loss(), case.inputs(), case.targets(), seeded())
    message = GradientMessage(case.model(), case.loss(), case.targets())
    sent = defense(message, case.inputs(), seeded())
    assert gradients(model).keys() == sent.keys() == returned.keys()
    for name, value in sent.items():
        assert torch.equal(gradients(model)[name], value)
        assert torch.equal(returned[name], value)


@every_case
def test_it_accumulates_like_backward(case: Case) -> None:
    model, generator = case.model(), seeded()
    sent = [
        GradientNoise(0.1).backward(model, case.loss(), case.inputs(), case.targets(), generator)
        for _ in range(3)
    ]
    for name, found in gradients(model).items():
        torch.testing.assert_close(found, sent[0][name] + sent[1][name] + sent[2][name])


def test_frozen_parameters_are_untouched() -> None:
    case = named("frozen")
    model = case.model()
    GradientNoise(0.1).backward(model, case.loss(), case.inputs(), case.targets())
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {"0.weight", "2.bias"}
    assert gradients(model).keys() == {n for n, _ in model.named_parameters()} - frozen


@every_case
def test_the_model_is_not_changed_otherwise(case: Case) -> None:
    model = case.model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    OptimalNoise(0.1, source="private").backward(model, case.loss(), case.inputs(), case.targets())
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


def test_gradients_are_the_users_to_change() -> None:
    """What was returned, and may be sent later, does not change with `.grad`."""
    case = named("mlp")
    model = case.model()
    sent = NoDefense().backward(model, case.loss(), case.inputs(), case.targets())
    for gradient in gradients(model).values():
        gradient.zero_()
    assert all(float(value.abs().sum()) > 0 for value in sent.values())


def test_gradients_carry_no_graph_even_if_the_inputs_do() -> None:
    case = named("mlp")
    model, inputs = case.model(), case.inputs().requires_grad_()
    for defense in (NoDefense(), OptimalNoise(0.1, source="private")):
        for _ in range(2):
            defense.backward(model, case.loss(), inputs, case.targets())
            assert not any(gradient.requires_grad for gradient in gradients(model).values())
    assert inputs.grad is None


def test_an_optimizer_steps_along_what_was_sent() -> None:
    case = named("mlp")
    model = case.model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    sent = ClampedNoise(0.1, clip=0.05).backward(model, case.loss(), case.inputs(), case.targets())
    optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), before[name] - 0.5 * sent[name])


class Counting:
    """An estimator that counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, message: object, inputs: Tensor, generator: torch.Generator) -> object:
        self.calls += 1
        return Exact()(message, inputs, generator)  # type: ignore[arg-type]


def test_only_defenses_that_need_sensitivities_measure_them() -> None:
    case, spy = named("mlp"), Counting()
    GradientNoise(0.1, estimator=spy)(case.message(), case.inputs())  # type: ignore[arg-type]
    ClampedNoise(0.1, estimator=spy)(case.message(), case.inputs())  # type: ignore[arg-type]
    assert spy.calls == 0
    OptimalNoise(0.1, estimator=spy, source="private")(case.message(), case.inputs())  # type: ignore[arg-type]
    GradientNoise(target_error=1.0, estimator=spy, source="private")(case.message(), case.inputs())  # type: ignore[arg-type]
    assert spy.calls == 2
