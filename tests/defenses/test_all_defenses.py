"""What must hold for every defense, from the call on a message to the bytes that are sent."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from gradveil import Defense, LocalUpdateMessage, NonFiniteError
from gradveil.catalog import DEFENSES
from gradveil.mechanisms import Mechanism
from tests.mechanisms.statistics import assert_noise_scale, assert_normal, draws
from tests.zoo import named

from .cases import ALL, DETERMINISTIC, NOISY, UNPLANNED, batch, message
from .small_rivals import RIVALS

noisy = pytest.mark.parametrize("name", NOISY)
every = pytest.mark.parametrize("name", ALL)


def test_every_defense_of_the_catalog_is_in_a_list() -> None:
    listed = {type(make()) for make in (*ALL.values(), *RIVALS.values())}
    missing = {name for name, entry in DEFENSES.items() if entry.build not in listed}
    assert missing == set(), "Add them to tests/defenses/cases.py or small_rivals.py."


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


Plan = tuple[Mechanism, dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]


def planned(defense: Defense) -> Plan:
    """The plan, its noise levels, the values, and what is sent of them without the noise."""
    values, moments = defense.observe(message, batch(), seeded(0))
    mechanism = defense.plan(moments)
    assert isinstance(mechanism, Mechanism)
    assert isinstance(mechanism.std, dict)
    bare = Mechanism(0.0, mechanism.keep, mechanism.clip).apply(values)
    return mechanism, mechanism.std, values, bare


@noisy
def test_noise_that_is_sent_has_the_planned_scale(name: str) -> None:
    mechanism, std, values, bare = planned(NOISY[name]())
    assert std["scalar"].dim() == 0
    sent = draws(lambda generator: mechanism.apply(values, generator), 200)
    residuals = {key: without_rounding(samples - bare[key]) for key, samples in sent.items()}
    assert_noise_scale(residuals, std)
    assert_normal(residuals, std)


@pytest.mark.parametrize("name", ["gradient noise", "pruning with noise", "DP-SGD"])
def test_noise_of_whole_calls_has_the_planned_scale(name: str) -> None:
    """From end to end, where a call is cheap; a twin tells the plan of each call."""
    defense, twin = NOISY[name](), NOISY[name]()

    def scores(generator: torch.Generator) -> dict[str, Tensor]:
        _, std, _, bare = planned(twin)
        sent = defense(message, batch(), generator)
        return {
            key: without_rounding(sent[key] - bare[key]) / torch.where(level > 0, level, 1.0)
            for key, level in std.items()
        }

    found = draws(scores, 200)
    assert_noise_scale(found, {key: (std > 0).double() for key, std in planned(twin)[1].items()})


def without_rounding(residual: Tensor) -> Tensor:
    """What the subtraction leaves of a value without noise is 1e-16 of it: nothing."""
    return residual.where(residual.abs() > 1e-12, 0.0)


@noisy
def test_scale_is_the_root_mean_square_over_what_is_sent(name: str) -> None:
    std = planned(NOISY[name]())[1]
    power = sum(float(level.square().sum()) for level in std.values())
    entries = sum(level.numel() for level in std.values())
    if "pruning" in name:
        entries -= round(0.4 * entries)
    assert power == pytest.approx(entries * 0.09, rel=1e-10)


@every
def test_same_seed_same_bytes(name: str) -> None:
    first, second = (ALL[name]()(message, batch(), seeded(5)) for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


@noisy
def test_another_seed_sends_something_else(name: str) -> None:
    first, second = (ALL[name]()(message, batch(), seeded(seed)) for seed in (5, 6))
    assert not any(torch.equal(first[key], second[key]) for key in ("weight", "bias"))


@noisy
def test_without_a_generator_every_call_is_its_own(name: str) -> None:
    first, second = (ALL[name]()(message, batch()) for _ in range(2))
    assert not torch.equal(first["weight"], second["weight"])


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_defenses_send_the_same_always(name: str) -> None:
    first, second = (ALL[name]()(message, batch()) for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


@every
@pytest.mark.parametrize("generator", [True, False])
def test_global_generators_are_left_alone(name: str, generator: bool) -> None:
    case = named("mlp")
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    given = seeded(0) if generator else None
    ALL[name]()(message, batch(), given)
    ALL[name]().backward(case.model(), case.loss(), case.inputs(), case.targets(), given)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.array_equal(np.random.get_state()[1], before[2])  # noqa: NPY002


@every
def test_one_call_is_measure_plan_and_apply(name: str) -> None:
    generator = seeded(7)
    defense = ALL[name]()
    values, moments = defense.observe(message, batch(), generator)
    by_hand = defense.plan(moments).apply(values, generator)
    sent = ALL[name]()(message, batch(), seeded(7))
    assert all(torch.equal(by_hand[key], value) for key, value in sent.items())


@every
def test_names_shapes_and_dtype_are_those_of_the_message(name: str) -> None:
    for dtype in (torch.float32, torch.float64):
        values = message(batch(dtype=dtype))
        sent = ALL[name]()(message, batch(dtype=dtype))
        assert {k: (v.shape, v.dtype) for k, v in sent.items()} == {
            k: (v.shape, v.dtype) for k, v in values.items()
        }


@every
def test_nothing_is_assumed_to_be_a_gradient(name: str) -> None:
    case = named("mlp")
    update: LocalUpdateMessage = case.local_update()
    sent = ALL[name]()(update, case.inputs(), seeded(0))
    assert sent.keys() == update(case.inputs()).keys()


@every
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nothing_is_sent_of_a_broken_message(name: str, bad: float) -> None:
    def broken(inputs: Tensor) -> dict[str, Tensor]:
        return {**message(inputs), "scalar": bad * inputs.sum()}

    with pytest.raises(NonFiniteError, match=r"`message\(inputs\)`.*in `scalar`. Nothing was sent"):
        ALL[name]()(broken, batch())


@every
def test_bad_inputs(name: str) -> None:
    inputs = batch()
    inputs[1, 2] = float("nan")
    with pytest.raises(NonFiniteError, match=r"Parameter `inputs` should be finite. Found 1 of 6"):
        ALL[name]()(message, inputs)
    with pytest.raises(ValueError, match=r"`inputs` should be a non-empty batch"):
        ALL[name]()(message, torch.zeros(0, 3))
    with pytest.raises(TypeError, match=r"`inputs` should be floating point.*int64"):
        ALL[name]()(message, torch.ones(2, 3, dtype=torch.int64))


@pytest.mark.parametrize("name", [name for name in ALL if name not in UNPLANNED])
def test_a_plan_does_not_fit_another_message(name: str) -> None:
    defense = ALL[name]()
    values, moments = defense.observe(message, batch(), seeded(0))
    mechanism = defense.plan(moments)
    with pytest.raises(ValueError, match=r"should have the names of `values`.*\['bias'\]"):
        mechanism.apply({key: v for key, v in values.items() if key != "bias"})
    with pytest.raises(ValueError, match=r"Found shape \(3,\) for `bias` instead of \(2,\)"):
        mechanism.apply({**values, "bias": torch.zeros(2).double()})
