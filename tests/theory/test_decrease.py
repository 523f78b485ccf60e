"""The expected decrease of the loss in a step: quadratic losses, PyTorch's Adam, closed forms."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gradveil import Moments
from gradveil.mechanisms import AnyMechanism, Mechanism, RoundingMechanism
from gradveil.theory import expected_decrease
from tests.mechanisms.statistics import assert_mean, draws

from .oracles import normal, seeded

SIZE, RATE = 40, 0.3
VALUES = {"w": normal(SIZE, seed=1)}
CURVATURES = {"w": normal(SIZE, seed=2).square() + 0.1}
NOISE = {"w": normal(SIZE, seed=3).abs() + 0.2}
MOMENTS = replace(Moments.of_values(VALUES, 5), squared_example_values=CURVATURES)
MECHANISMS: dict[str, AnyMechanism] = {
    "noise": Mechanism(0.5),
    "noise by entry": Mechanism(NOISE),
    "mixed": Mechanism(0.5, keep=0.3),
    "clipped": Mechanism(NOISE, clip=0.4),
    "nothing": Mechanism(0.0),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_it_is_what_steps_on_a_quadratic_loss_gain(name: str) -> None:
    """L(θ) = ½ Σ h_i θ_i² at g = hθ; the part ½ η² Σ h_i E[y_i]² is left out by definition."""
    mechanism, h, g = MECHANISMS[name], CURVATURES["w"], VALUES["w"]
    start = g / h
    sent = draws(lambda generator: mechanism.apply(VALUES, generator), 4000)["w"]
    after = start - RATE * sent
    gains = 0.5 * (h * start.square()).sum() - 0.5 * (h * after.square()).sum(1)
    own = 0.5 * RATE**2 * (h * mechanism.mean(VALUES)["w"].square()).sum()
    assert_mean(gains + own, expected_decrease(MOMENTS, mechanism, RATE))


@pytest.mark.parametrize("scale", [0.2, 1.0, 5.0])
def test_adam_gains_what_it_says(scale: float) -> None:
    """PyTorch's Adam on one gradient with fresh noise in each step; ½ η² h is next to nothing."""
    lr, steps, g = 1e-4, 2500, VALUES["w"]
    parameter = torch.nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))
    adam, generator = torch.optim.Adam([parameter], lr=lr), seeded()
    mechanism = Mechanism({"w": scale * NOISE["w"]})
    for _ in range(steps):
        parameter.grad = mechanism.apply(VALUES, generator)["w"]
        adam.step()
    gained = -float((g * parameter.detach()).sum()) / steps
    expected = expected_decrease(MOMENTS, mechanism, lr, "adam")
    assert gained == pytest.approx(expected, rel=0.06)
    assert expected == pytest.approx(lr * adam_gain(g, scale * NOISE["w"]), rel=1e-2)


def adam_gain(values: Tensor, std: Tensor) -> float:
    """Σ g_i² / √(g_i² + Σ_ii)."""
    return float((values.square() / (values.square() + std.square()).sqrt()).sum())


def test_noise_costs_by_the_curvature_alone_with_sgd() -> None:
    bare = expected_decrease(MOMENTS, Mechanism(0.0), RATE)
    noisy = expected_decrease(MOMENTS, Mechanism(NOISE), RATE)
    cost = 0.5 * RATE**2 * float((CURVATURES["w"] * NOISE["w"].square()).sum())
    assert bare - noisy == pytest.approx(cost, rel=1e-12)
    assert bare == pytest.approx(RATE * float(VALUES["w"].square().sum()), rel=1e-12)


def test_without_a_defense_adam_takes_signs() -> None:
    expected = RATE * float(VALUES["w"].abs().sum())
    assert expected_decrease(MOMENTS, Mechanism(0.0), RATE, "adam") == pytest.approx(expected)


def test_more_noise_never_gains_more() -> None:
    for optimizer in ("sgd", "adam"):
        gains = [
            expected_decrease(MOMENTS, Mechanism(scale), 0.01, optimizer)
            for scale in (0.0, 1e-3, 0.1, 1.0, 10.0)
        ]
        assert gains == sorted(gains, reverse=True), optimizer


def test_what_adam_never_gets_takes_no_step() -> None:
    keep = {"w": (torch.arange(SIZE) < 10).double()}
    found = expected_decrease(MOMENTS, Mechanism(0.0, keep=keep), RATE, "adam")
    assert found == pytest.approx(RATE * float(VALUES["w"][:10].abs().sum()))


def test_rounding_has_one_too() -> None:
    assert expected_decrease(MOMENTS, RoundingMechanism(0.1), RATE) > 0


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"`lr` should be.*Found `lr = 0"):
        expected_decrease(MOMENTS, Mechanism(1.0), 0.0)
    with pytest.raises(ValueError, match=r"`optimizer` should be one of \['sgd', 'adam'\]"):
        expected_decrease(MOMENTS, Mechanism(1.0), 0.1, "momentum")
    with pytest.raises(ValueError, match=r"squared gradients of single examples.*examples=True"):
        expected_decrease(Moments.of_values(VALUES, 5), Mechanism(1.0), 0.1)
