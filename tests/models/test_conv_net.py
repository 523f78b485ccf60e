import pytest
import torch
from torch import nn

from gradveil.models import ConvNet


@pytest.mark.parametrize(("width", "expected"), [(64, 2_904_970), (16, 187_114)])
def test_number_of_parameters(width: int, expected: int) -> None:
    assert sum(parameter.numel() for parameter in ConvNet(width).parameters()) == expected


def test_arrangement() -> None:
    model = ConvNet(width=2)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert [conv.out_channels for conv in convolutions] == [2, 4, 4, 8, 8, 8, 8, 8]
    assert sum(isinstance(m, nn.BatchNorm2d) for m in model.modules()) == 8
    assert sum(isinstance(m, nn.MaxPool2d) for m in model.modules()) == 2
    assert [m.in_features for m in model.modules() if isinstance(m, nn.Linear)] == [36 * 2]


@pytest.mark.parametrize("size", [28, 32])
def test_logits_shape(size: int) -> None:
    model = ConvNet(width=2, num_classes=7, num_channels=1).eval()
    assert model(torch.zeros(3, 1, size, size)).shape == (3, 7)


def test_eval_mode_treats_examples_alone() -> None:
    model = ConvNet(width=2).eval()
    inputs = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(inputs)[:1], model(inputs[:1]))
