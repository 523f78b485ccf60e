"""The tests of the estimators reject wrong ones."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from gradveil.messages import Message
from gradveil.sensitivity import (
    Estimator,
    Exact,
    Measurement,
    PerExample,
    Sketch,
    directional_derivatives,
)
from tests.sensitivity.statistics import assert_within_standard_errors, variances
from tests.zoo import named

pytestmark = pytest.mark.usefixtures("global_rng_watch")

PROBES = 1000


@dataclass(frozen=True)
class Scaled:
    """An estimator whose result is multiplied by a factor."""

    estimator: Estimator
    factor: float

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        found = self.estimator(message, inputs, generator)
        squares = found.squared_sensitivities.items()
        return Measurement(found.values, {name: self.factor * square for name, square in squares})


@dataclass(frozen=True)
class ByHand:
    """Sketch with its own way to draw directions and its own power of the derivatives."""

    draw: Callable[[tuple[int, ...], torch.Generator], Tensor]
    power: Callable[[Tensor], Tensor] = torch.square

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        directions = self.draw((PROBES, *inputs.shape), generator)
        found = directional_derivatives(message, inputs, directions)
        powers = {name: self.power(derivative) for name, derivative in found.items()}
        return Measurement(message(inputs), {n: power.mean(0) for n, power in powers.items()})


@dataclass(frozen=True)
class Levelled:
    """One level for each layer where every entry has its own."""

    estimator: Estimator

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        found = self.estimator(message, inputs, generator)
        squares = found.squared_sensitivities.items()
        means = {n: torch.full_like(square, float(square.mean())) for n, square in squares}
        return Measurement(found.values, means)


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.empty(shape, dtype=torch.float64).normal_(generator=generator)


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """E[v vᵀ] = I/3."""
    return torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=generator)


def one_for_all_examples(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """The cross terms between examples no longer have mean zero."""
    return normal((shape[0], 1, *shape[2:]), generator).expand(shape).clone()


RIGHT = {
    "sketch": Sketch(PROBES),
    "per example": PerExample(PROBES),
    "by hand": ByHand(normal),
}
WRONG = {
    "times 3/2": Scaled(Sketch(PROBES), 3 / 2),
    "times 2/3": Scaled(Sketch(PROBES), 2 / 3),
    "per example, times 3/2": Scaled(PerExample(PROBES), 3 / 2),
    "per example, times 2/3": Scaled(PerExample(PROBES), 2 / 3),
    "mean over examples instead of the sum": Scaled(PerExample(PROBES), 1 / 4),
    "absolute value instead of the square": ByHand(normal, torch.abs),
    "uniform directions": ByHand(uniform),
    "one direction for all examples": ByHand(one_for_all_examples),
    "one level for each layer": Levelled(Sketch(PROBES)),
}


def check(estimator: Estimator) -> None:
    case, generator = named("mlp"), torch.Generator().manual_seed(0)
    message, inputs = case.message(), case.inputs()
    exact = Exact()(message, inputs, generator).squared_sensitivities
    inner = getattr(estimator, "estimator", estimator)
    errors = variances(inner, message, inputs, PROBES)
    assert_within_standard_errors(estimator(message, inputs, generator), exact, errors)


@pytest.mark.parametrize("name", RIGHT)
def test_right_ones_pass(name: str) -> None:
    check(RIGHT[name])


@pytest.mark.parametrize("name", WRONG)
def test_wrong_ones_are_rejected(name: str) -> None:
    with pytest.raises(AssertionError, match="standard errors off or more"):
        check(WRONG[name])


def test_a_sensitivity_where_there_is_none_is_rejected() -> None:
    one = {"a": torch.tensor([1.0, 1.0])}
    found = Measurement(one, {"a": torch.tensor([1.0, 0.1])})
    with pytest.raises(AssertionError):
        assert_within_standard_errors(found, {"a": torch.tensor([1.0, 0.0])}, one)
