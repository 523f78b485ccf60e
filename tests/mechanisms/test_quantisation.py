import itertools
import math

import pytest
import torch

from gradveil import NonFiniteError
from gradveil.attacks._likelihood import doubt_between
from gradveil.attacks._matching import read
from gradveil.mechanisms import QuantisationMechanism
from tests.attacks.likelihood import log_likelihood

from .statistics import assert_mean, draws

VALUES = {
    "w": torch.tensor([0.3, -2.0, 0.0, 1.1], dtype=torch.float64),
    "s": torch.tensor(-0.5, dtype=torch.float64),
}
MECHANISM = QuantisationMechanism(levels=3)
STEP = math.sqrt(0.09 + 4 + 1.21) / 3


def test_levels_beside_the_value_are_sent_and_the_mean_is_the_value() -> None:
    sent = draws(lambda generator: MECHANISM.apply(VALUES, generator), 3000)
    levels = sent["w"] / STEP
    torch.testing.assert_close(levels, levels.round())
    assert bool(((sent["w"] - VALUES["w"]).abs() < STEP).all())
    assert bool((sent["s"] == -0.5).all())  # the norm of a single entry is itself
    assert_mean(sent["w"], VALUES["w"])
    variance = MECHANISM.variance(VALUES)["w"]
    assert_mean((sent["w"] - VALUES["w"]).square(), variance)
    with pytest.raises(AssertionError):
        assert_mean((sent["w"] - VALUES["w"]).square(), variance * 2 / 3)


def test_the_probabilities_of_all_messages_add_up_to_1() -> None:
    """And each is that of an independent choice between two levels."""
    whole, total = (VALUES["w"].abs() / STEP).floor(), 0.0
    part = (VALUES["w"].abs() / STEP).frac()
    for up in itertools.product((0, 1), repeat=4):
        steps = torch.tensor(up)
        y = STEP * (whole + steps) * VALUES["w"].sign()
        if up[2]:  # the entry of 0 stays
            continue
        chance = torch.where(steps == 1, part, 1 - part).prod()
        found = log_likelihood(MECHANISM, VALUES, {"w": y, "s": VALUES["s"]}).exp()
        assert float(found) == pytest.approx(float(chance), rel=1e-9)
        total += float(found)
    assert total == pytest.approx(1, rel=1e-9)


def test_other_norms_and_levels_are_impossible() -> None:
    sent = MECHANISM.apply(VALUES, torch.Generator().manual_seed(0))
    other_norm = {**VALUES, "w": 1.001 * VALUES["w"]}
    other_level = {**VALUES, "w": VALUES["w"].flip(0)}  # of the same norm
    for values in (other_norm, other_level):
        assert float(log_likelihood(MECHANISM, values, sent)) < -1e6


def test_in_single_precision_the_own_message_is_possible() -> None:
    generator = torch.Generator().manual_seed(0)
    values = {"w": 1e-3 * torch.randn(50, 40, generator=generator)}
    mechanism = QuantisationMechanism(16)
    sent = mechanism.apply(values, generator)
    near = {"w": values["w"] * (1 + 1e-7) + 1e-10}
    own, again = (float(log_likelihood(mechanism, v, sent)) for v in (values, near))
    assert -2000 < own < 0
    assert again == pytest.approx(own, rel=1e-3)


def test_norm_and_noise_are_read_off_what_was_sent() -> None:
    generator = torch.Generator().manual_seed(1)
    values = {"w": torch.randn(60, 50, generator=generator).double()}
    mechanism = QuantisationMechanism(8)
    variance = float(mechanism.variance(values)["w"].mean())
    reading = read(mechanism, mechanism.apply(values, generator))
    assert float(reading.std[0]) ** 2 == pytest.approx(variance, rel=0.1)
    nothing = read(mechanism, {"w": torch.zeros(2, 2)})
    assert not bool(nothing.std.any())
    assert doubt_between(mechanism, mechanism, values).levels_differ is False


def test_the_grid_is_found_where_no_entry_is_at_the_first_level() -> None:
    """Levels 2 and 3: the least entry is no step."""
    sent = {"w": torch.tensor([2.0, 3.0, -2.0]) * 0.7}
    reading = read(QuantisationMechanism(3), sent)
    left = (float(sent["w"].square().sum()) - (3 * 0.7) ** 2) / 3
    assert float(reading.std[0]) == pytest.approx(math.sqrt(left), rel=1e-5)


def test_edge_cases() -> None:
    zero = {"w": torch.zeros(3)}
    assert not bool(MECHANISM.apply(zero)["w"].any())
    assert float(log_likelihood(MECHANISM, zero, zero)) == 0
    assert bool(MECHANISM.information(zero)["w"].isinf().all())
    with pytest.raises(NonFiniteError):
        MECHANISM.apply({"w": torch.tensor([math.inf])})
    with pytest.raises(ValueError, match="levels"):
        QuantisationMechanism(0)
