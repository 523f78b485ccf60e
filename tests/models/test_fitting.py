"""Named models take the sizes of the data."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradveil.models import build_fitting_model, build_model, count_outputs, default_model

SHAPES = [(1, 28, 28), (3, 28, 28), (3, 32, 32), (1, 8, 8), (6,), (4, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_default_fits(shape: tuple[int, ...]) -> None:
    model = build_fitting_model(None, shape, num_classes=7)
    assert count_outputs(model, cross_entropy, torch.zeros(2, *shape), torch.tensor([0, 6])) == 7


def test_the_defaults() -> None:
    names = ["simple-conv-net", "simple-conv-net", "conv-net", "mlp", "mlp", "mlp"]
    assert [default_model(shape) for shape in SHAPES] == names


@pytest.mark.parametrize("text", ["conv-net(4)", "conv-net(width=4)"])
def test_options_in_the_text_go_first(text: str) -> None:
    """By position, too; what they leave open is that of the data."""
    model = build_fitting_model(text, (1, 32, 32), num_classes=3)
    same = build_model("conv-net", width=4, num_channels=1, num_classes=3)
    shapes = [p.shape for p in model.parameters()]
    assert shapes == [p.shape for p in same.parameters()]


def test_a_model_of_images_refuses_tables() -> None:
    with pytest.raises(ValueError, match=r"of shape \(6,\)\. Found `simple-conv-net`.*Use `mlp`"):
        build_fitting_model("simple-conv-net", (6,), num_classes=3)


def test_a_model_of_other_images() -> None:
    model = build_fitting_model("simple-conv-net", (3, 32, 32), num_classes=3)
    with pytest.raises(ValueError, match=r"should accept inputs of shape \(2, 3, 32, 32\)"):
        count_outputs(model, cross_entropy, torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]))


def test_too_few_outputs() -> None:
    model = build_model("mlp(sizes=[6, 2])")
    with pytest.raises(ValueError, match=r"labels from 0 to 1.*Found labels from 0 to 5"):
        count_outputs(model, cross_entropy, torch.zeros(1, 6), torch.tensor([0, 5]))


def test_an_own_factory_stays_as_it_is() -> None:
    path = "gradveil.models:SimpleConvNet"
    model = build_fitting_model(path, (6,), num_classes=3, allow_imports=[path])
    assert sum(p.numel() for p in model.parameters()) == sum(
        p.numel() for p in build_model("simple-conv-net").parameters()
    )
