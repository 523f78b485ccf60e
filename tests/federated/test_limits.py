"""A server chooses what the client's own code lets it choose."""

from typing import Any

import pytest

from gradveil import GradientNoise, NoDefense, OptimalNoise
from gradveil.federated import Limits, LocalSteps, RefusedError
from gradveil.shapes import ModelSource

LIMITS = Limits(
    [
        "optimal-noise(0.01, cap=10.0)",
        "optimal-noise(0.1, source=model-source(refresh_every=5))",
        "gradient-pruning(ratio=0.9, noise=gradient-noise(0.01))",
    ],
    batch_size=(8, 64),
    local_steps=(1, 5),
    local_lr=(0.001, 0.1),
)
OWN = {
    "defense": NoDefense(),
    "batch_size": 16,
    "local": LocalSteps(lr=0.01, steps=2, batch_size=4),
}


@pytest.mark.parametrize(
    "asked",
    [
        "optimal-noise(0.01, cap=10.0)",
        "optimal-noise(cap=10.0, scale=0.5)",
        "optimal-noise(0.2, source=model-source(refresh_every=5))",
        "optimal-noise(scale=0.1, source=model-source(5))",
        "gradient-pruning(0.99, noise=gradient-noise(1))",
    ],
)
def test_as_much_or_more_is_allowed(asked: str) -> None:
    LIMITS.defense(asked)


@pytest.mark.parametrize(
    "asked",
    [
        "no-defense",
        "optimal-noise(0.0099, cap=10.0)",
        "optimal-noise(0.01)",
        "optimal-noise(0.01, cap=10.1)",
        "optimal-noise(0.01, cap=10.0, floor=0.0)",
        "optimal-noise(True, cap=10.0)",
        "optimal-noise(1e999, cap=10.0)",
        "optimal-noise(scale=0.01, scale=0.02, cap=10.0)",
        "optimal-noise(target_error=5.0, cap=10.0)",
        "gradient-noise(0.1)",
        "optimal-noise(0.05, source=model-source(refresh_every=5))",
        "optimal-noise(0.2, source=model-source(refresh_every=500))",
        "optimal-noise(0.2, source='private')",
        "gradient-pruning(0.99)",
        "gradient-pruning(0.99, noise=gradient-noise(0.001))",
        "gradveil:GradientNoise(scale=1.0)",
        "os:system(command='touch x')",
        "optimal-noise(",
        "",
        3,
        None,
    ],
)
def test_less_or_else_is_refused(asked: Any) -> None:
    with pytest.raises(RefusedError, match="within this client's limits"):
        LIMITS.defense(asked)


def test_own_settings_hold_where_nothing_is_asked() -> None:
    assert LIMITS.settings({"server-round": 3, "lr": 0.5}, OWN) == OWN
    assert Limits().settings({}, OWN) is not None


def test_all_that_may_be_asked_for() -> None:
    config = {
        "defense": "optimal-noise(1.0, cap=10.0)",
        "batch-size": 64,
        "local-steps": 5,
        "local-lr": 0.1,
    }
    assert LIMITS.settings(config, OWN) == {
        "defense": OptimalNoise(1.0, cap=10.0),
        "batch_size": 64,
        "local": LocalSteps(lr=0.1, steps=5, batch_size=4),
    }


@pytest.mark.parametrize(
    "config",
    [
        {"batch-size": 7},
        {"batch-size": 65},
        {"batch-size": 8.0},
        {"batch-size": True},
        {"batch-size": "8"},
        {"local-steps": 0},
        {"local-steps": 6},
        {"local-lr": 0.2},
        {"local-lr": -0.01},
        {"local-lr": float("nan")},
        {"defense": "no-defense"},
        {"seed": 0},
        {"scale": 1.0},
        {"ratio": 0.0},
        {"clip": 1.0},
        {"noise": "no-defense"},
        {"local-batch-size": 1},
        {"local-momentum": 0.9},
    ],
    ids=str,
)
def test_what_is_outside_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="Nothing was sent"):
        LIMITS.settings(config, OWN)


@pytest.mark.parametrize(
    "config",
    [{"defense": "optimal-noise(9.0)"}, {"batch-size": 16}, {"local-steps": 2}, {"local-lr": 0.01}],
    ids=str,
)
def test_without_a_bound_there_is_no_say(config: dict[str, Any]) -> None:
    with pytest.raises(RefusedError):
        Limits().settings(config, OWN)


def test_gradients_do_not_become_updates() -> None:
    with pytest.raises(RefusedError, match="gradients only"):
        LIMITS.settings({"local-steps": 2}, {**OWN, "local": None})


def test_the_clients_own_code_may_list_its_own_classes() -> None:
    own = "gradveil.defenses:GradientNoise(scale=0.1)"
    assert Limits([own]).defense(own.replace("0.1", "0.3")) == GradientNoise(0.3)
    with pytest.raises(RefusedError):
        Limits([own]).defense("gradveil.defenses:OptimalNoise(scale=0.3)")
    asked = LIMITS.defense("optimal-noise(0.1, source=model-source(refresh_every=5))")
    assert isinstance(asked.source, ModelSource)


@pytest.mark.parametrize("bad", [(2, 1), (0, 4), (1,), 5, (1, float("inf")), ("a", "b")], ids=str)
def test_bad_bounds(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"Parameter `batch_size` should be \(least, most\)"):
        Limits(batch_size=bad)


def test_bad_defenses() -> None:
    with pytest.raises(TypeError, match="should be a list of specifications"):
        Limits("optimal-noise(0.1)")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Did you mean `optimal-noise`"):
        Limits(["optimal-nois(0.1)"])
