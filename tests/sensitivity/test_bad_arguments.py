"""Errors name the argument, what was found and what to do."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradveil import GradientMessage, NonFiniteError, measure
from gradveil.sensitivity import Exact, PerExample, Sketch
from gradveil.sensitivity._measure import NAMED
from tests.zoo import named

pytestmark = pytest.mark.usefixtures("global_rng_watch")

CASE = named("mlp")
EVERY_NAME = pytest.mark.parametrize("estimator", sorted(NAMED))


def with_entry(value: float) -> Tensor:
    inputs = CASE.inputs()
    inputs[1, 2] = value
    return inputs


@EVERY_NAME
@pytest.mark.parametrize(
    ("inputs", "error", "found"),
    [
        (CASE.inputs().long(), TypeError, "`inputs.dtype = torch.int64`"),
        (CASE.inputs().numpy(), TypeError, "be a torch.Tensor. Found ndarray."),
        (CASE.inputs()[:0], ValueError, "`inputs.shape = (0, 5)`"),
        (torch.tensor(1.0), ValueError, "`inputs.shape = ()`"),
        (with_entry(float("nan")), NonFiniteError, "Found 1 of 20 entries NaN or infinite"),
        (with_entry(float("inf")), NonFiniteError, "Found 1 of 20 entries NaN or infinite"),
        (CASE.inputs()[:3], ValueError, "`inputs.shape = (3, 5)` and `targets.shape = (4,)`"),
    ],
    ids=["integer", "numpy", "empty", "0-d", "nan", "infinite", "fewer"],
)
def test_inputs(inputs: Any, error: type[Exception], found: str, estimator: str) -> None:
    with pytest.raises(error, match="Parameter `inputs` should.*" + re.escape(found)):
        measure(CASE.message(), inputs, estimator)


class RootOfWeights(nn.Module):
    """NaN as soon as a weight is negative."""

    def __init__(self) -> None:
        super().__init__()
        self.good = nn.Parameter(torch.ones(5, 3, dtype=torch.float64))
        self.bad = nn.Parameter(torch.full((3,), -1.0, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.good + self.bad.sqrt()


@EVERY_NAME
def test_a_gradient_that_is_not_finite(estimator: str) -> None:
    """Named by parameter; and never blamed on examples that interact."""
    message = GradientMessage(RootOfWeights(), CASE.loss(), CASE.targets(), separable=True)
    pattern = r"`message\(inputs\)` should be finite. Found 15 of 15 entries.*`good`.*skip"
    with pytest.raises(NonFiniteError, match=pattern):
        measure(message, CASE.inputs(), estimator)


@pytest.mark.parametrize("estimator", [Exact(), Sketch()], ids=repr)
def test_a_sensitivity_that_is_not_finite(estimator: Any) -> None:
    """√x has a finite value and no finite slope at 0."""
    with pytest.raises(NonFiniteError, match=r"`squared_sensitivities` should be finite.*`root`"):
        measure(lambda x: {"root": x.sqrt().sum(0)}, torch.zeros(2, 3), estimator)


@pytest.mark.parametrize(
    ("estimator", "error", "found"),
    [
        ("exakt", ValueError, "Found `estimator = 'exakt'`"),
        ("", ValueError, "Found `estimator = ''`"),
        (3, TypeError, "Found int (3)"),
        (None, TypeError, "Found NoneType (None)"),
        (Sketch, TypeError, "Found type (<class"),
    ],
    ids=repr,
)
def test_estimator(estimator: Any, error: type[Exception], found: str) -> None:
    with pytest.raises(error, match="Parameter `estimator` should.*" + re.escape(found)):
        measure(CASE.message(), CASE.inputs(), estimator)


@pytest.mark.parametrize("make", [Sketch, PerExample])
@pytest.mark.parametrize("probes", [0, -1, 2.5, "ten", True, None])
def test_probes(make: Any, probes: Any) -> None:
    pattern = f"Parameter `probes` should be an integer of at least 1. Found `probes = {probes!r}`"
    with pytest.raises(ValueError, match=re.escape(pattern)):
        make(probes=probes)


@pytest.mark.parametrize(
    ("clip", "error"),
    [
        (0.0, ValueError),
        (-1.0, ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        ("1", TypeError),
        (True, TypeError),
    ],
)
def test_clip(clip: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"Parameter `clip` should be a.* number.*Found.*{clip}"):
        measure(CASE.message(), CASE.inputs(), Exact(), clip=clip)


@pytest.mark.parametrize("generator", [0, "cpu"])
def test_generator(generator: Any) -> None:
    pattern = r"Parameter `generator` should be a torch.Generator. Found .*manual_seed"
    with pytest.raises(TypeError, match=pattern):
        measure(CASE.message(), CASE.inputs(), Sketch(), generator=generator)
