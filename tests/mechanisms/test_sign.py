import pytest
import torch

from gradveil.attacks._matching import read
from gradveil.mechanisms import SignMechanism
from tests.attacks.likelihood import log_likelihood

VALUES = {"w": torch.tensor([0.26, -3.0, 0.0]), "s": torch.tensor(-1e-9)}


def test_signs_are_sent() -> None:
    sent = SignMechanism(0.5).apply(VALUES)
    assert sent["w"].tolist() == [0.5, -0.5, 0.0]
    assert float(sent["s"]) == -0.5


def test_theory_reads_a_deterministic_map() -> None:
    mechanism = SignMechanism()
    assert torch.equal(mechanism.mean(VALUES)["w"], mechanism.apply(VALUES)["w"])
    assert not bool(mechanism.variance(VALUES)["w"].any())
    assert bool(mechanism.information(VALUES)["w"].isinf().all())


def test_the_reading_holds_the_values() -> None:
    mechanism = SignMechanism(0.5)
    reading = read(mechanism, mechanism.apply(VALUES))
    values = torch.cat([value.flatten() for value in VALUES.values()])
    assert bool(((reading.low <= values) & (values <= reading.high)).all())
    assert reading.low[:3].tolist() == [0.0, -torch.inf, 0.0]
    assert reading.high[:3].tolist() == [torch.inf, 0.0, 0.0]


def test_wrong_signs_are_impossible_but_for_rounding_errors() -> None:
    mechanism = SignMechanism()
    sent = mechanism.apply(VALUES)
    assert float(log_likelihood(mechanism, VALUES, sent)) == 0
    near = {"w": torch.tensor([0.3, -2.0, 1e-8]), "s": torch.tensor(-5.0)}
    assert float(log_likelihood(mechanism, near, sent)) > -1
    wrong = {"w": torch.tensor([-0.01, -2.0, 0.0]), "s": torch.tensor(-5.0)}
    assert float(log_likelihood(mechanism, wrong, sent)) < -1e5


def test_bad_steps() -> None:
    with pytest.raises(ValueError, match="step"):
        SignMechanism(0.0)
