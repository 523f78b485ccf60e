"""Squares of single examples' gradients that layers give on the way, against those by `vmap`."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage
from gradveil.models import build_model
from gradveil.sensitivity import measure_with_values
from gradveil.sensitivity._measure import auto, example_squares


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("simple-conv-net", (1, 28, 28)),
        ("conv-net(width=4)", (3, 32, 32)),
        ("mlp(sizes=[6, 8, 3])", (6,)),
        ("patch-transformer(width=16, depth=1)", (3, 32, 32)),
    ],
)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_they_equal_those_of_single_examples(
    name: str, shape: tuple[int, ...], reduction: str
) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(5, *shape, generator=generator), torch.tensor([0, 1, 2, 0, 1])
    loss_fn = nn.CrossEntropyLoss(reduction=reduction)
    message = GradientMessage(build_model(name).eval(), loss_fn, targets)
    values, moments = measure_with_values(message, inputs, generator=generator, examples=True)
    wanted = example_squares(message, inputs, values)
    for key, square in moments.known_squared_example_values.items():
        torch.testing.assert_close(
            square, wanted[key], rtol=1e-3, atol=1e-5 * float(wanted[key].max())
        )


def test_a_parameter_outside_of_known_layers_leaves_them_to_vmap() -> None:
    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.factor = nn.Parameter(torch.ones(3))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs) * self.factor.exp()

    inputs, targets = torch.ones(2, 6), torch.tensor([0, 1])
    message = GradientMessage(Scaled(), cross_entropy, targets)
    measured = auto(message, inputs, torch.Generator().manual_seed(0), squares=True)
    assert measured.example_squares is None
    values, moments = measure_with_values(message, inputs, examples=True)
    assert moments.known_squared_example_values.keys() == values.keys()
