"""A multi-layer perceptron, for tests and tabular data."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from ._conv_nets import build_activation


class MLP(nn.Module):
    """Linear layers of the given sizes with an activation between them; inputs are flattened.

    Args:
        sizes: Number of inputs, of each hidden layer's units, and of logits.
        activation: `"tanh"` (smooth, hence good for tests of derivatives), `"relu"`,
            `"leaky_relu"`, `"gelu"`, `"sigmoid"` or `"softplus"`.

    >>> import torch
    >>> MLP([4, 8, 3])(torch.zeros(5, 2, 2)).shape
    torch.Size([5, 3])
    """

    def __init__(self, sizes: Sequence[int], activation: str = "tanh") -> None:
        super().__init__()
        whole = isinstance(sizes, (list, tuple)) and all(type(size) is int for size in sizes)
        if not whole or len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(
                "Parameter `sizes` should hold at least two positive sizes, the number of inputs "
                f"first and of logits last. Found `sizes={sizes}`. Try `[784, 32, 10]`."
            )
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), build_activation(activation)]
        self.layers = nn.Sequential(*layers[:-1])  # no activation on the logits

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layers(inputs)
        return logits
