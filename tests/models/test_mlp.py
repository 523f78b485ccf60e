import pytest
import torch
from torch import nn

from gradveil.models import MLP


def test_layers() -> None:
    kinds = [type(layer) for layer in MLP([4, 8, 8, 3], activation="relu").layers]
    assert kinds == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]


def test_flattens_its_inputs() -> None:
    model = MLP([12, 3])
    inputs = torch.randn(5, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(inputs), model(inputs.flatten(1)))


@pytest.mark.parametrize("sizes", [[], [4], [4, 0], [-1, 2]])
def test_refuses_sizes(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match=r"Parameter `sizes` should hold at least two positive"):
        MLP(sizes)


def test_unknown_activation_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"`activation = 'leaky-relu'`.*Did you mean `leaky_relu`"):
        MLP([4, 3], activation="leaky-relu")
