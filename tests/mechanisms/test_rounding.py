from typing import Any

import pytest
import torch

from gradveil import NonFiniteError
from gradveil.mechanisms import RoundingMechanism

VALUES = {"w": torch.tensor([0.26, -0.26, 0.0, 1.74, -3.1]), "s": torch.tensor(0.49)}


def test_values_land_on_the_grid() -> None:
    sent = RoundingMechanism(step=0.5).apply(VALUES)
    assert sent["w"].tolist() == [0.5, -0.5, 0.0, 1.5, -3.0]
    assert sent["s"] == 0.5


def test_ties_go_to_even() -> None:
    sent = RoundingMechanism(step=1.0).apply({"w": torch.tensor([0.5, 1.5, -0.5, -1.5])})
    assert sent["w"].tolist() == [0.0, 2.0, 0.0, -2.0]


@pytest.mark.parametrize("step", [1e-6, 0.03, 0.7, 10.0])
def test_the_nearest_point_is_sent(step: float) -> None:
    values = {"w": torch.randn(500, generator=torch.Generator().manual_seed(0)).double()}
    sent = RoundingMechanism(step=step).apply(values)["w"]
    torch.testing.assert_close(sent / step, torch.round(sent / step))
    # half a step, and a few roundings of numbers that are up to |g| / step steps large
    assert float((sent - values["w"]).abs().max()) <= step / 2 * (1 + 1e-9)


def test_steps_by_entry_where_0_sends_the_value() -> None:
    steps = {"w": torch.tensor([0.0, 0.5, 0.0, 1.0, 2.0]), "s": torch.tensor(0.0)}
    sent = RoundingMechanism(steps).apply(VALUES)
    torch.testing.assert_close(sent["w"], torch.tensor([0.26, -0.5, 0.0, 2.0, -4.0]))
    assert torch.equal(sent["s"], VALUES["s"])


@pytest.mark.parametrize("step", [1e-45, 1e-38, 2e38])
def test_extreme_steps_send_finite_values(step: float) -> None:
    """The number of steps overflows for a small one, the rounded value for a large one."""
    values = {"w": torch.tensor([1e3, -3e38, 0.0])}
    sent = RoundingMechanism(step).apply(values)["w"]
    assert bool(sent.isfinite().all())
    assert float(sent[2]) == 0.0


def test_theory_reads_a_deterministic_map() -> None:
    mechanism = RoundingMechanism(step=0.5)
    assert all(torch.equal(mechanism.mean(VALUES)[n], mechanism.apply(VALUES)[n]) for n in VALUES)
    assert all(float(v.abs().sum()) == 0 for v in mechanism.variance(VALUES).values())
    assert all(bool(w.isinf().all()) for w in mechanism.information(VALUES).values())


def test_no_random_number_is_drawn() -> None:
    generator, before = torch.Generator().manual_seed(0), torch.get_rng_state()
    state = generator.get_state()
    RoundingMechanism(step=0.1).apply(VALUES, generator)
    assert torch.equal(generator.get_state(), state)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("step", [-1.0, float("nan"), float("inf"), {"w": torch.tensor([-1.0])}])
def test_bad_steps(step: Any) -> None:
    with pytest.raises(ValueError, match=r"Parameter `step` should be finite and in \[0, inf\]"):
        RoundingMechanism(step)


def test_bad_values() -> None:
    with pytest.raises(NonFiniteError, match=r"Found 1 of 1 entries NaN or infinite in `w`"):
        RoundingMechanism(1.0).apply({"w": torch.tensor([float("nan")])})
    with pytest.raises(ValueError, match=r"Parameter `step` should have the names of `values`"):
        RoundingMechanism({"v": torch.ones(1)}).apply({"w": torch.ones(1)})
