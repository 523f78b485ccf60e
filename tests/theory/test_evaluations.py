"""Evaluations that are shared between bounds change nothing but the time."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradveil import GaussianPrior, GradientMessage
from gradveil.mechanisms import Mechanism
from gradveil.theory import (
    Bound,
    BoundCase,
    Evaluations,
    FisherInformation,
    mean_bound,
)

MECHANISMS = {
    "noise": Mechanism(0.3),
    "clamped": Mechanism(0.3, clip=0.05),
    "half of it": Mechanism(0.2, keep=0.5),
    "no noise": Mechanism(0.0),
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


class Counted(GradientMessage):
    """Counts how often it is evaluated."""

    count = 0

    def __call__(self, inputs: Tensor) -> dict[str, Tensor]:
        Counted.count += 1
        return super().__call__(inputs)

    def values(self, inputs: Tensor) -> dict[str, Tensor]:
        Counted.count += 1
        return super().values(inputs)


def messages(features: int = 20) -> list[tuple[Counted, Tensor]]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = nn.Sequential(nn.Linear(features, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    return [
        (Counted(model, F.cross_entropy, torch.tensor([0, 2])), normal(2, features, seed=seed))
        for seed in range(3)
    ]


def bound(
    pairs: list[tuple[Counted, Tensor]], mechanism: Mechanism, known: list[Evaluations] | None
) -> Bound:
    cases = [BoundCase(message, inputs, mechanism) for message, inputs in pairs]
    prior = GaussianPrior.fit(normal(40, pairs[0][1].shape[1], seed=9))
    generator = torch.Generator().manual_seed(1)
    return mean_bound(cases, prior, "trace", public_plan=True, generator=generator, known=known)


@pytest.mark.parametrize(("most", "features"), [(10**9, 3), (10**9, 20), (2000, 20), (1, 20)])
def test_bounds_are_the_same_numbers(most: int, features: int) -> None:
    pairs = messages(features)[:1]
    known = [Evaluations(message, most) for message, _ in pairs]
    for mechanism in MECHANISMS.values():
        assert bound(pairs, mechanism, known) == bound(pairs, mechanism, None)


def test_a_second_mechanism_evaluates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradveil.theory._bound.DENSE_LIMIT", 1)  # probes, as for large inputs
    pairs = messages()[:2]
    known = [Evaluations(message) for message, _ in pairs]
    bound(pairs, MECHANISMS["noise"], known)
    first = Counted.count
    again = bound(pairs, Mechanism(0.7), known)
    assert Counted.count == first > 50
    assert again == bound(pairs, Mechanism(0.7), None)


def test_other_points_and_directions_are_not_mixed_up() -> None:
    (message, inputs), (_, others), _ = messages()
    known = Evaluations(message)
    for point in (inputs, others, inputs):
        for name, value in known.values(point).items():
            torch.testing.assert_close(value, message(point)[name])
        for seed in (0, 1):
            directions = normal(2, *point.shape, seed=seed)
            for name, tangents in known.derivatives(point, directions).items():
                for tangent, direction in zip(tangents, directions, strict=True):
                    step = 1e-6 * direction
                    ends = message(point + step)[name] - message(point - step)[name]
                    torch.testing.assert_close(tangent, ends / 2e-6, rtol=1e-4, atol=1e-8)


def test_those_of_another_message_are_not_taken() -> None:
    message, inputs = messages()[0]
    other = message.of(torch.tensor([1, 1]))
    own = FisherInformation(message, inputs, Mechanism(0.1))
    given = FisherInformation(message, inputs, Mechanism(0.1), Evaluations(other))
    assert torch.equal(own.matrix(), given.matrix())


def test_squares_along_directions_are_those_of_the_matrix() -> None:
    (message, inputs), *_ = messages()
    std = {name: 0.1 + p.detach().abs() for name, p in message.parameters.items()}
    information = FisherInformation(message, inputs, Mechanism(std))
    rows = normal(5, inputs.numel(), seed=3)
    expected = ((rows @ information.matrix()) * rows).sum(1)
    torch.testing.assert_close(information.squares(rows), expected)
