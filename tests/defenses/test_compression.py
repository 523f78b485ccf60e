"""Laplace noise, signs and QSGD: the mechanism is tested by itself, here what they plan."""

import pytest
import torch

from gradveil.defenses import QSGD, LaplaceNoise, SignCompression
from gradveil.mechanisms import LaplaceMechanism, QuantisationMechanism, SignMechanism

from .small_rivals import gradient, images, seeded


def test_they_plan_their_mechanisms_without_looking() -> None:
    for defense, kind in (
        (LaplaceNoise(0.3), LaplaceMechanism),
        (SignCompression(0.5), SignMechanism),
        (QSGD(4), QuantisationMechanism),
    ):
        assert not defense.about.private
        _, moments = defense.observe(gradient(), images(), seeded())
        assert isinstance(defense.plan(moments), kind)


def test_laplace_noise_has_its_scale_everywhere() -> None:
    plain, sent = gradient()(images()), LaplaceNoise(0.3)(gradient(), images(), seeded())
    residual = torch.cat([(sent[n] - plain[n]).flatten() for n in plain])
    assert float(residual.std()) == pytest.approx(0.3, rel=0.2)
    assert float(residual.abs().mean()) == pytest.approx(0.3 / 2**0.5, rel=0.15)


def test_signs_are_those_of_the_message_and_of_what_an_attacker_looks_at() -> None:
    defense, message = SignCompression(0.5), gradient()
    sent = defense(message, images())
    looked_at = defense.prepared(message)(images())
    for name, value in message(images()).items():
        assert torch.equal(sent[name], 0.5 * value.sign())
        assert torch.equal(looked_at[name].sign(), value.sign())
        assert float(looked_at[name].abs().mean()) == pytest.approx(0.5)


def test_a_tensor_of_zeros_has_no_sign() -> None:
    defense = SignCompression()
    zero = defense.prepared(lambda inputs: {"w": 0 * inputs.sum(0)})(images())
    assert not bool(zero["w"].any())


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: LaplaceNoise(-1.0), "scale"),
        (lambda: LaplaceNoise(1e30), "scale"),
        (lambda: SignCompression(0.0), "step"),
        (lambda: QSGD(0), "levels"),
    ],
)
def test_bad_options(make: type, name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}`"):
        make()
