"""No tensor of examples × parameters is made where layers allow it."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradveil import GradientMessage
from gradveil.messages import ClippedMessage, _clipped
from tests.zoo import MeanToken

from .oracle import shapes


class Largest(TorchDispatchMode):
    """The most numbers that one result of an operation has in memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                size = leaf.untyped_storage().nbytes() // leaf.element_size()
                self.numbers = max(self.numbers, size)
        return result


EXAMPLES, WIDTH = 32, 256
MODELS = {  # with the numbers of the weights, or of the patches of the inputs
    "linear": (lambda: nn.Linear(WIDTH, WIDTH), (EXAMPLES, WIDTH), WIDTH**2),
    "sequences": (
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), MeanToken()),
        (EXAMPLES, 8, WIDTH),
        WIDTH**2,
    ),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(64, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        (EXAMPLES, 64, 4, 4),
        EXAMPLES * 4 * 64 * 9,
    ),
}


@pytest.mark.parametrize("kind", ["rows and columns", "entries"])
@pytest.mark.parametrize("name", MODELS)
def test_the_largest_tensor_is_that_of_weights_or_activations(name: str, kind: str, monkeypatch):
    monkeypatch.setattr(_clipped._isolated, "_check_no_modes", lambda: None)  # that of `Largest`
    build, shape, most = MODELS[name]
    model = build()
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    targets = torch.zeros(EXAMPLES, dtype=torch.int64)
    message = GradientMessage(model, cross_entropy, targets)
    factors = shapes(message.parameters)[kind].factors
    clipped = ClippedMessage(message, 1.0, factors)
    clipped.values(inputs)  # what is tested once per model is not counted
    with Largest() as largest:
        clipped.values(inputs)
    weights = max(p.numel() for p in model.parameters())
    if kind == "entries" and name != "linear":  # here a gradient for each example is needed
        assert largest.numbers == EXAMPLES * weights
    else:
        assert largest.numbers <= most < EXAMPLES * weights / 10
