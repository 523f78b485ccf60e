"""The tests of the estimators reject wrong ones."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from gradveil.messages import Message
from gradveil.sensitivity import Estimator, Exact, Measurement, PerExample, Sketch
from gradveil.sensitivity._sketch import directional_derivatives
from tests.sensitivity.statistics import (
    Repetitions,
    assert_knows_its_error,
    assert_within_standard_errors,
)
from tests.zoo import named

pytestmark = pytest.mark.usefixtures("global_rng_watch")

PROBES = 1000


@dataclass(frozen=True)
class Scaled:
    """An estimator whose result is multiplied by a factor, and its standard error, too."""

    estimator: Estimator
    factor: float

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        values, squares, variances = self.estimator(message, inputs, generator)
        return Measurement(
            values,
            {name: self.factor * square for name, square in squares.items()},
            {name: self.factor**2 * variance for name, variance in (variances or {}).items()},
        )


@dataclass(frozen=True)
class ByHand:
    """Sketch with its own way to draw directions and its own power of the derivatives."""

    draw: Callable[[tuple[int, ...], torch.Generator], Tensor]
    power: Callable[[Tensor], Tensor] = torch.square

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        directions = self.draw((PROBES, *inputs.shape), generator)
        found = directional_derivatives(message, inputs, directions)
        powers = {name: self.power(derivative) for name, derivative in found.items()}
        return Measurement(
            message(inputs),
            {name: power.mean(0) for name, power in powers.items()},
            {name: power.var(0) / PROBES for name, power in powers.items()},
        )


@dataclass(frozen=True)
class Levelled:
    """One level for each layer where every entry has its own."""

    estimator: Estimator

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        values, squares, variances = self.estimator(message, inputs, generator)
        means = {n: torch.full_like(square, float(square.mean())) for n, square in squares.items()}
        return Measurement(values, means, variances)


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


def run(estimator: Estimator) -> tuple[Measurement, dict[str, Tensor]]:
    case, generator = named("mlp"), torch.Generator().manual_seed(0)
    exact = Exact()(case.message(), case.inputs(), generator).squared_sensitivities
    return estimator(case.message(), case.inputs(), generator), exact


@pytest.mark.parametrize("name", RIGHT)
def test_right_ones_pass(name: str) -> None:
    assert_within_standard_errors(*run(RIGHT[name]))


@pytest.mark.parametrize("name", WRONG)
def test_wrong_ones_are_rejected(name: str) -> None:
    found, exact = run(WRONG[name])
    with pytest.raises(AssertionError, match="standard errors off or more"):
        assert_within_standard_errors(found, exact)


def test_a_sensitivity_where_there_is_none_is_rejected() -> None:
    one = {"a": torch.tensor([1.0, 1.0])}
    found = Measurement(one, {"a": torch.tensor([1.0, 0.1])}, one)
    with pytest.raises(AssertionError):
        assert_within_standard_errors(found, {"a": torch.tensor([1.0, 0.0])})


@pytest.mark.parametrize("factor", [2 / 3, 1, 3 / 2])
def test_wrong_standard_errors_are_rejected(factor: float) -> None:
    generator = torch.Generator().manual_seed(0)
    ratios = 1 + 0.1 * torch.randn(50, 20, generator=generator)
    found = Repetitions(ratios, torch.full((50, 20), (0.1 * factor) ** 2))
    if factor == 1:
        assert_knows_its_error(found)
    else:
        with pytest.raises(AssertionError, match="of the spread"):
            assert_knows_its_error(found)
