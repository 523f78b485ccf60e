"""A plan's shape: its factors, its levels, and what plans made from it look like."""

import pytest
import torch

from gradveil import Moments, OptimalNoise, OptimalPruning
from gradveil.shapes import Shape

LIKE = {"w": torch.zeros(4, 3), "b": torch.zeros(4)}


def moments(like: dict[str, torch.Tensor]) -> Moments:
    ones = {name: torch.ones_like(value) for name, value in like.items()}
    return Moments(ones, ones, 5, squared_example_values=ones)


def a_shape() -> Shape:
    rows, columns = torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([[1.0, 0.5, 2.0]])
    return Shape({"w": (rows, columns), "b": (torch.tensor([1.5]),)})


def test_levels_are_the_products_of_the_factors():
    levels = a_shape().levels(LIKE)
    assert levels["w"].tolist() == [[r * c for c in (1.0, 0.5, 2.0)] for r in (1.0, 2.0, 3.0, 4.0)]
    assert levels["b"].tolist() == [1.5] * 4
    assert a_shape().numbers == 4 + 3 + 1


def test_noise_has_variances_in_this_shape():
    mechanism = OptimalNoise(0.1, least=0.0).mechanism(a_shape(), moments(LIKE))
    levels = a_shape().levels(LIKE)
    ratios = torch.cat([(mechanism.std[n].square() / levels[n]).reshape(-1) for n in LIKE])
    torch.testing.assert_close(ratios, ratios[:1].expand(16), rtol=1e-5, atol=0)
    power = sum(float(s.square().sum()) for s in mechanism.std.values()) / 16
    assert power == pytest.approx(0.01, rel=1e-5)


def test_pruning_cuts_the_largest_levels():
    keep = OptimalPruning(0.25).mechanism(a_shape(), moments(LIKE)).keep
    assert keep["w"].tolist()[3] == [0.0, 1.0, 0.0]


def test_an_isotropic_shape_takes_one_number_for_each_tensor():
    shape = Shape.isotropic(LIKE)
    assert shape.numbers == 2
    std = OptimalNoise(0.1).mechanism(shape, moments(LIKE)).std
    assert all(torch.allclose(s, torch.full_like(s, 0.1)) for s in std.values())


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_levels_that_would_switch_noise_off_are_refused(bad: float):
    with pytest.raises(ValueError, match="finite and above 0"):
        Shape({"w": (torch.tensor([[bad, 1.0, 1.0]]),)})


def test_shapes_for_another_model_are_refused():
    with pytest.raises(ValueError, match="should have the parameters"):
        a_shape().levels({"w": torch.zeros(4, 3)})
    with pytest.raises(ValueError, match="broadcast"):
        a_shape().levels({"w": torch.zeros(3, 4), "b": torch.zeros(4)})
    with pytest.raises(TypeError, match="floating point"):
        Shape({"w": (torch.tensor([1, 2]),)})
