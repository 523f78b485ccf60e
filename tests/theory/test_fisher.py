"""The Fisher information as an operator, as a matrix and as a trace, against the dense Jacobian."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from gradveil import (
    GradientNoise,
    Moments,
    NoDefense,
    OptimalClampedNoise,
    OptimalNoise,
    OptimalPruning,
    measure,
)
from gradveil.mechanisms import AnyMechanism, Mechanism, RoundingMechanism
from gradveil.theory import FisherInformation, fisher_trace
from gradveil.theory import _fisher as fisher_module
from tests.mechanisms.statistics import assert_mean
from tests.zoo import Case, named

from .oracles import dense_information, linear, normal, seeded

CASES = [
    named(name)
    for name in (
        "mlp",
        "conv_net",
        "attention",
        "scalar",
        "tied",
        "unused",
        "relu_in_place",
        "batch_norm_train",
        "two_heads",
    )
]
PLANS: dict[str, Callable[[Moments], AnyMechanism]] = {
    "isotropic": GradientNoise(0.3).plan,
    "optimal": OptimalNoise(0.3).plan,
    "clipped": OptimalClampedNoise(0.3, clip=0.1).plan,
    "pruned": OptimalPruning(0.5, noise=OptimalNoise(0.3)).plan,
    "mixed": lambda moments: Mechanism(0.3, keep=0.25),
    "loud": GradientNoise(1e9).plan,
    "soft": GradientNoise(1e-9).plan,
}

each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_plan = pytest.mark.parametrize("plan", PLANS)


def planned(case: Case, plan: str) -> tuple[FisherInformation, Tensor, Mechanism, Moments]:
    message, inputs = case.message(), case.inputs()
    moments = measure(message, inputs, "exact")
    mechanism = PLANS[plan](moments)
    assert isinstance(mechanism, Mechanism)
    expected = dense_information(message, inputs, bare_is_silent(mechanism, moments))
    return FisherInformation(message, inputs, mechanism), expected, mechanism, moments


def bare_is_silent(mechanism: Mechanism, moments: Moments) -> Mechanism:
    """Noise on entries that reveal nothing, for an oracle that would multiply 0 by infinity."""
    if not isinstance(mechanism.std, dict):
        return mechanism
    silent = (
        {n: s == 0 for n, s in moments.clipped(mechanism.clip).known_squared_sensitivities.items()}
        if (isinstance(mechanism.clip, float))
        else {n: s == 0 for n, s in moments.known_squared_sensitivities.items()}
    )
    std = {n: torch.where(silent[n], 1.0, s) for n, s in mechanism.std.items()}
    return Mechanism(std, mechanism.keep, mechanism.clip)


def assert_near(found: Tensor, expected: Tensor) -> None:
    """To 1e-10 of the largest entry: float64 through a few hundred operations."""
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-10 * scale)


@each_case
@each_plan
def test_operator_matrix_and_trace_agree_with_the_jacobian(
    case: Case, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    information, expected, mechanism, moments = planned(case, plan)
    size = case.inputs().numel()
    rows = normal(3, size)
    assert_near(information(rows), rows @ expected)
    assert_near(information(rows[:1]), rows[:1] @ expected)
    assert_near(information.matrix(), expected)
    monkeypatch.setattr(fisher_module, "JACOBIAN_LIMIT", 0)
    assert_near(information.matrix(), expected)
    trace = fisher_trace(moments, mechanism)
    assert trace == pytest.approx(float(expected.trace()), rel=1e-10, abs=0)


def test_blocks_of_columns_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    information, expected, _, _ = planned(named("mlp"), "optimal")
    monkeypatch.setattr(fisher_module, "COLUMNS", 7)
    assert_near(information.matrix(), expected)


@pytest.mark.parametrize("limit", [0, 2**28], ids=["products", "Jacobian"])
@pytest.mark.parametrize("std", [1e-2, 1e-6])
def test_single_precision_has_no_negative_information(
    limit: int, std: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding in float32 is 1e-7 of the largest eigenvalue, 1e5 and more with little noise."""
    monkeypatch.setattr(fisher_module, "JACOBIAN_LIMIT", limit)
    case = named("conv_net")
    message, inputs = case.message(torch.float32), case.inputs(torch.float32)
    keep = {n: torch.full_like(v, float("4" in n)) for n, v in message(inputs).items()}
    matrix = FisherInformation(message, inputs, Mechanism(std, keep)).matrix()
    eigenvalues = torch.linalg.eigvalsh(matrix)
    assert matrix.dtype == torch.float64
    assert float(eigenvalues.min()) >= -1e-13 * float(eigenvalues.max())


def test_eq_5_trace_is_the_mean_over_all_masks() -> None:
    """Every one of the 2^4 masks, weighted by its probability."""
    moments = Moments({"w": normal(4).square()}, {"w": normal(4, seed=1).square()}, input_size=3)
    probabilities = torch.tensor([0.1, 0.5, 1.0, 0.7]).double()
    std = {"w": torch.tensor([0.3, 1.0, 2.0, 0.1]).double()}
    expected = 0.0
    for bits in product((0.0, 1.0), repeat=4):
        mask = torch.tensor(bits).double()
        chance = float(torch.where(mask > 0, probabilities, 1 - probabilities).prod())
        expected += chance * fisher_trace(moments, Mechanism(std, {"w": mask}))
    found = fisher_trace(moments, Mechanism(std, {"w": probabilities}))
    assert found == pytest.approx(expected, rel=1e-12)


def test_eq_5_matrix_is_the_mean_over_sampled_masks() -> None:
    message, inputs = linear(), normal(2, 3)
    keep = {n: torch.full_like(v, 0.3) for n, v in message(inputs).items()}
    mixed = FisherInformation(message, inputs, Mechanism(0.5, keep)).matrix()
    generator = seeded()
    samples = []
    for _ in range(400):
        mask = {n: (torch.rand(k.shape, generator=generator) < k).double() for n, k in keep.items()}
        samples.append(FisherInformation(message, inputs, Mechanism(0.5, mask)).matrix())
    assert_mean(torch.stack(samples), mixed)


def test_clipped_entries_do_not_count() -> None:
    moments = Moments(
        {"w": torch.tensor([0.25, 4.0])}, {"w": torch.tensor([3.0, 100.0])}, input_size=2
    )
    assert fisher_trace(moments, Mechanism(std=0.5, clip=1.0)) == 12.0
    assert fisher_trace(moments.clipped(1.0), Mechanism(std=0.5, clip=1.0)) == 12.0
    by_entry = {"w": torch.tensor([0.1, 3.0])}
    assert fisher_trace(moments, Mechanism(std=0.5, clip=by_entry)) == 400.0


def test_a_bare_entry_is_infinite_unless_it_reveals_nothing() -> None:
    moments = Moments({"w": torch.ones(2)}, {"w": torch.tensor([1.0, 0.0])}, input_size=2)
    first, second = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    assert fisher_trace(moments, Mechanism({"w": first})) == float("inf")
    assert fisher_trace(moments, Mechanism({"w": second})) == 1.0
    assert fisher_trace(moments, Mechanism(0.0, keep={"w": second * 0})) == 0.0
    assert fisher_trace(moments, RoundingMechanism(0.5)) == float("inf")


@pytest.mark.parametrize(
    "mechanism",
    [Mechanism(0.0), RoundingMechanism(0.1), Mechanism(0.0, keep=0.5)],
    ids=["bare", "rounded", "mixed"],
)
def test_infinite_information_is_told(mechanism: AnyMechanism) -> None:
    message, inputs = linear(), normal(2, 3)
    assert FisherInformation(message, inputs, mechanism).is_infinite()


def test_an_unused_layer_may_be_sent_bare() -> None:
    case = named("unused")
    message, inputs = case.message(), case.inputs()
    std = {n: torch.full_like(v, float("used" in n)) for n, v in message(inputs).items()}
    information = FisherInformation(message, inputs, Mechanism(std))
    assert not information.is_infinite()
    everywhere = FisherInformation(message, inputs, Mechanism(1.0)).matrix()
    torch.testing.assert_close(information.matrix(), everywhere)


def test_everything_is_bare() -> None:
    moments = measure(linear(), normal(2, 3), "exact")
    assert fisher_trace(moments, NoDefense().plan(moments)) == float("inf")


def test_an_average_without_the_clip_cannot_say_what_clipping_leaves() -> None:
    one = Moments({"w": torch.ones(2)}, {"w": torch.ones(2)}, input_size=2)
    with pytest.raises(ValueError, match=r"`clip = 0.5` should be those of one batch.*2 batches"):
        fisher_trace(one + one, Mechanism(std=1.0, clip=0.5))
    clipped = one.clipped(2.0)
    assert fisher_trace(clipped + clipped, Mechanism(std=1.0, clip=2.0)) == 2.0
