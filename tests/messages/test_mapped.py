import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage
from gradveil.messages import MappedMessage, values_of


def test_inputs_and_values_are_changed_on_the_way() -> None:
    message = MappedMessage(
        lambda x: {"w": x.sum(0)}, lambda x: x + 1, lambda v: {n: 2 * t for n, t in v.items()}
    )
    inputs = torch.ones(3, 2, requires_grad=True)
    assert message(inputs)["w"].tolist() == [12.0, 12.0]
    assert values_of(message, inputs)["w"].requires_grad is False
    (slope,) = torch.autograd.grad(message(inputs)["w"].sum(), inputs)
    assert bool((slope == 2).all())


def test_it_has_the_parameters_and_targets_of_its_message() -> None:
    inner = GradientMessage(nn.Linear(2, 2), cross_entropy, torch.tensor([0]))
    mapped = MappedMessage(inner)
    assert mapped.parameters.keys() == {"weight", "bias"}
    assert mapped.targets is inner.targets
    assert mapped.loss is inner.loss
    with pytest.raises(AttributeError, match="no attribute `reduction`"):
        _ = mapped.reduction
    with pytest.raises(TypeError, match="message"):
        MappedMessage(3)  # type: ignore[arg-type]
