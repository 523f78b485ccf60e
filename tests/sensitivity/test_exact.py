import pytest
import torch
from torch import Tensor

from gradveil import measure
from gradveil.sensitivity import Exact, _estimators, unit_vectors
from tests.messages.compare import assert_same, functional_gradient
from tests.sensitivity.oracles import assert_same_squares, jacobian_squares
from tests.zoo import ZOO, Case, named

pytestmark = pytest.mark.usefixtures("global_rng_watch")


@pytest.mark.parametrize("case", ZOO, ids=str)
def test_equals_the_dense_jacobian(case: Case) -> None:
    inputs = case.inputs()
    moments = measure(case.message(), inputs, Exact())
    assert_same_squares(
        moments.known_squared_sensitivities, jacobian_squares(functional_gradient(case), inputs)
    )


@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        "conv_net",
        "batch_norm_train",
        "dropout_train",
        "tied",
        "frozen",
        "scalar",
        "weighted",
    ],
)
def test_equals_the_dense_jacobian_of_a_local_update(name: str) -> None:
    case = named(name)
    message = case.local_update(steps=3, batch_size=2, momentum=0.5)
    found = measure(message, case.inputs(), Exact()).known_squared_sensitivities
    assert_same_squares(found, jacobian_squares(message, case.inputs()))


def test_equals_finite_differences() -> None:
    """An oracle that shares no derivative of second order with the code.

    Central differences at h = 1e-5 are wrong by h² relative (1e-10) and by rounding, 1e-16 / h.
    """
    case, step = named("digits"), 1e-5
    message, inputs = case.message(), case.inputs()
    total = {name: torch.zeros_like(value) for name, value in message(inputs).items()}
    for axis in torch.eye(inputs.numel(), dtype=inputs.dtype).view(-1, *inputs.shape):
        ahead, behind = message(inputs + step * axis), message(inputs - step * axis)
        for name in total:
            total[name] += ((ahead[name] - behind[name]) / (2 * step)).square()
    assert_same_squares(
        measure(message, inputs, Exact()).known_squared_sensitivities, total, tolerance=1e-7
    )


def test_a_linear_map_has_the_squared_norms_of_its_rows() -> None:
    matrix = torch.arange(12, dtype=torch.float64).view(4, 3)
    moments = measure(lambda inputs: {"y": matrix @ inputs}, torch.ones(3).double(), Exact())
    assert torch.equal(moments.known_squared_sensitivities["y"], matrix.square().sum(1))


@pytest.mark.parametrize("name", ["mlp", "conv_net", "batch_norm_train", "transformer"])
def test_float32_agrees_with_float64(name: str) -> None:
    case, float32 = named(name), torch.float32
    found = measure(
        case.message(float32), case.inputs(float32), Exact()
    ).known_squared_sensitivities
    expected = measure(case.message(), case.inputs(), Exact()).known_squared_sensitivities
    assert_same(found, {n: e.float() for n, e in expected.items()}, tolerance=1e-4, noise=1e-8)


def test_unused_and_constant_entries_have_none() -> None:
    case = named("unused")
    found = measure(case.message(), case.inputs(), Exact()).known_squared_sensitivities
    assert not found["idle.weight"].any()
    assert not found["idle.bias"].any()


def test_is_exact_and_needs_no_generator() -> None:
    case, generator = named("mlp"), torch.Generator().manual_seed(0)
    before = generator.get_state()
    Exact()(case.message(), case.inputs(), generator)
    assert torch.equal(generator.get_state(), before)


def test_declared_couplings_are_measured_in_full() -> None:
    case = named("mlp")
    whole = measure(case.message(separable=False), case.inputs(), Exact())
    assert_same_squares(
        whole.known_squared_sensitivities,
        measure(case.message(), case.inputs(), Exact()).known_squared_sensitivities,
    )


class TestMemory:
    """Directions and the derivatives along them never exceed `ROOM` numbers at a time."""

    @pytest.mark.parametrize("room", [1, 100, 1000, 4000])
    @pytest.mark.parametrize("name", ["mlp", "conv_net", "contrastive"])
    def test_chunks_are_small_enough_and_change_nothing(
        self, name: str, room: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        message, inputs = named(name).message(), named(name).inputs()
        expected = measure(message, inputs, Exact()).known_squared_sensitivities
        monkeypatch.setattr(_estimators, "ROOM", room)
        rows = record_rows(monkeypatch)
        assert_same_squares(measure(message, inputs, Exact()).known_squared_sensitivities, expected)
        entries = sum(p.numel() for p in named(name).model().parameters())
        assert max(rows) * entries <= max(room, entries)

    def test_chunks_of_a_local_update_change_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        message, inputs = named("mlp").local_update(), named("mlp").inputs()
        expected = measure(message, inputs, Exact()).known_squared_sensitivities
        monkeypatch.setattr(_estimators, "ROOM", 150)
        assert_same_squares(measure(message, inputs, Exact()).known_squared_sensitivities, expected)

    def test_few_parameters_and_many_inputs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The directions themselves take memory: here a thousand times what the message takes."""

        def message(inputs: Tensor) -> dict[str, Tensor]:
            return {"mean": inputs.square().mean().view(1)}

        monkeypatch.setattr(_estimators, "ROOM", 50_000)
        rows = record_rows(monkeypatch)
        inputs = torch.linspace(0, 1, 1000, dtype=torch.float64).view(10, 100)
        found = measure(message, inputs, Exact())
        assert max(rows) * inputs.numel() <= 50_000
        expected = (2 * inputs / 1000).square().sum().view(1)
        assert_same_squares(found.known_squared_sensitivities, {"mean": expected})


def record_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many derivatives were held at once, each time."""
    rows: list[int] = []
    original = _estimators.row_derivatives

    def spy(along, *tensors):  # type: ignore[no-untyped-def]
        found = original(along, *tensors)
        if "" not in found:  # the outputs' gradient is no tangent of the message
            rows.append(len(tensors[0]))
        return found

    monkeypatch.setattr(_estimators, "row_derivatives", spy)
    return rows


@pytest.mark.parametrize("size", [1, 4, 6, 100])
def test_unit_vectors_are_the_identity_in_blocks(size: int) -> None:
    blocks = list(unit_vectors(torch.zeros(2, 3, dtype=torch.float64), size))
    assert all(len(block) <= size and block.shape[1:] == (2, 3) for block in blocks)
    assert torch.equal(torch.cat(blocks).view(6, 6), torch.eye(6, dtype=torch.float64))
