"""Tangents swept through the graph of the input gradient against forward-mode differentiation."""

import pytest
import torch
from torch import nn

from gradveil import GradientMessage
from gradveil.messages import ConvUse, LinearUse, ScaleUse
from gradveil.sensitivity import directional_derivatives
from gradveil.sensitivity._structured import TangentGraph, layout_of
from tests.zoo import SEPARABLE, Case, named


def directional_derivative(message, inputs, direction) -> dict[str, torch.Tensor]:
    return {n: t[0] for n, t in directional_derivatives(message, inputs, direction[None]).items()}


def swept_derivative(graph: TangentGraph, direction: torch.Tensor) -> dict[str, torch.Tensor]:
    """∂_v g of every parameter, put together from the tangents of the layers."""
    tangents = graph.sweep(direction)
    found = {name: torch.zeros_like(value) for name, value in graph.gradients()}
    found.update(tangents.others)
    for use, a, signal in zip(graph.uses, tangents.inputs, tangents.signals, strict=True):
        moved = use.products(signal, use.a.detach()) + use.products(use.signal, a)
        found[use.weight] = moved.sum(0)
        if use.bias is not None:
            found[use.bias] = use.sums(signal).sum(0)
    return found


@pytest.mark.parametrize("case", SEPARABLE, ids=lambda case: case.name)
def test_values_and_derivatives_equal_forward_mode(case: Case):
    message, inputs = case.message(), case.inputs()
    graph = TangentGraph(message, inputs)
    direction = torch.randn(
        inputs.shape, generator=torch.Generator().manual_seed(3), dtype=inputs.dtype
    )
    values, found = message(inputs), dict(graph.gradients())
    derivatives = directional_derivative(message, inputs, direction)
    swept = swept_derivative(graph, direction)
    for name, value in values.items():
        if name in found:
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(swept[name], derivatives[name], rtol=1e-8, atol=1e-10)
        else:
            assert not value.any()
            assert not derivatives[name].any()


@pytest.mark.parametrize(
    "geometry",
    [{"stride": 2, "padding": 1}, {"dilation": 2, "groups": 2}, {"padding": "same"}],
    ids=["strided", "grouped and dilated", "padding by name"],
)
def test_convolutions_of_every_geometry(geometry: dict):
    inputs = torch.randn(3, 2, 9, generator=torch.Generator().manual_seed(0)).double()
    with torch.random.fork_rng(devices=[]):
        layer = nn.Conv1d(2, 4, 3, **geometry)
        width = layer(inputs.float()).flatten(1).shape[1]
        model = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(width, 3)).double()
    message = GradientMessage(model, nn.functional.cross_entropy, torch.tensor([0, 1, 2]))
    direction = inputs.flip(0)
    derivatives = directional_derivative(message, inputs, direction)
    swept = swept_derivative(TangentGraph(message, inputs), direction)
    for name, derivative in derivatives.items():
        torch.testing.assert_close(swept[name], derivative, rtol=1e-9, atol=1e-11)


def test_known_layers_are_recognised():
    kinds = {type(use) for use in graph_of("batch_norm").uses}
    assert kinds == {ConvUse, ScaleUse, LinearUse}


def graph_of(name: str) -> TangentGraph:
    case = next(c for c in SEPARABLE if name in c.name)
    return TangentGraph(case.message(), case.inputs())


@pytest.mark.parametrize("name", ["tied", "recurrent"])
def test_parameters_used_twice_count_all_their_uses_together(name: str):
    case = next(c for c in SEPARABLE if name in c.name)
    graph = TangentGraph(case.message(), case.inputs())
    assert graph.others
    used = [n for use in graph.uses for n in (use.weight, use.bias) if n]
    assert not set(used) & set(graph.others)
    assert len(used) == len(set(used))


class SequenceFirst(nn.Module):
    """Examples on the second axis, as many positions as examples: shapes alone cannot tell."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.tokens(x.transpose(0, 1))).mean(0))


def sequence_first() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return SequenceFirst().double()


def test_layers_with_another_first_axis_are_found():
    model = sequence_first()
    inputs = torch.randn(4, 4, 2, generator=torch.Generator().manual_seed(0)).double()
    message = GradientMessage(model, nn.functional.cross_entropy, torch.tensor([0, 1, 2, 0]))
    layout = layout_of(message, inputs)
    assert layout.opaque == {"tokens.weight", "tokens.bias"}
    assert layout.known_share == pytest.approx(15 / 27)


def test_one_example_says_nothing_of_a_batch():
    model = sequence_first()
    inputs = torch.randn(4, 1, 2, generator=torch.Generator().manual_seed(0)).double()
    targets = torch.tensor([0, 1, 2, 0])
    message = GradientMessage(model, nn.functional.cross_entropy, targets)
    assert not layout_of(message.of(targets[:1]), inputs[:1]).opaque
    assert layout_of(message, inputs).opaque == {"tokens.weight", "tokens.bias"}


def test_ordinary_models_are_known_entirely():
    case = named("mlp")
    assert layout_of(case.message(), case.inputs()).known_share == 1
