"""A federation says what it is, and refuses numbers that make no sense."""

import pytest

from gradveil.federated import Federation, LocalSteps


def test_the_usual_optimizer_is_that_of_what_is_sent():
    assert (Federation().optimizer, Federation().lr, Federation().sends) == (
        "adam",
        1e-3,
        "gradient",
    )
    averaged = Federation(local=LocalSteps(lr=0.1, steps=2))
    assert (averaged.optimizer, averaged.lr, averaged.sends) == ("sgd", 1.0, "update")
    assert Federation(optimizer="sgd", lr=0.1).lr == 0.1


@pytest.mark.parametrize(
    "wrong",
    [
        {"clients": 0},
        {"fraction": 0.0},
        {"batch_size": 0},
        {"rounds": -1},
        {"local": (0.1, 2)},
        {"optimizer": "adma"},
        {"lr": 0.0},
        {"lr": 1e30},
        {"aggregation": "none"},
    ],
)
def test_a_wrong_number_is_named(wrong):
    (name,) = wrong
    with pytest.raises((ValueError, TypeError), match=f"`{name}`"):
        Federation(**wrong)
