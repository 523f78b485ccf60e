import pytest
import torch

from gradveil.models import SimpleConvNet


def test_number_of_parameters_is_the_papers() -> None:
    assert sum(parameter.numel() for parameter in SimpleConvNet().parameters()) == 119_530


def test_parameter_names_and_shapes_are_the_papers() -> None:
    shapes = {name: tuple(value.shape) for name, value in SimpleConvNet().named_parameters()}
    assert shapes == {
        "conv_layers.0.weight": (32, 1, 3, 3),
        "conv_layers.0.bias": (32,),
        "conv_layers.3.weight": (64, 32, 3, 3),
        "conv_layers.3.bias": (64,),
        "fc_layers.1.weight": (32, 3136),
        "fc_layers.1.bias": (32,),
        "fc_layers.3.weight": (10, 32),
        "fc_layers.3.bias": (10,),
    }


def test_activations_are_leaky() -> None:
    leaky = [m for m in SimpleConvNet().modules() if isinstance(m, torch.nn.LeakyReLU)]
    assert len(leaky) == 3


@pytest.mark.parametrize(("num_classes", "num_channels"), [(10, 1), (3, 2)])
def test_logits_shape(num_classes: int, num_channels: int) -> None:
    model = SimpleConvNet(num_classes, num_channels)
    assert model(torch.zeros(5, num_channels, 28, 28)).shape == (5, num_classes)
