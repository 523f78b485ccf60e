from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gradveil import GradientMessage, Moments, measure
from gradveil.messages import Message
from gradveil.sensitivity import (
    Estimator,
    Exact,
    Measurement,
    PerExample,
    Sketch,
    measure_with_values,
)
from gradveil.sensitivity._measure import NAMED
from tests.messages.compare import assert_same_bytes, assert_untouched
from tests.sensitivity.oracles import assert_same_squares, jacobian_squares
from tests.zoo import COUPLED, SEPARABLE, ZOO, Case, named

pytestmark = pytest.mark.usefixtures("global_rng_watch")

EVERY_NAME = pytest.mark.parametrize("estimator", sorted(NAMED))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@EVERY_NAME
@pytest.mark.parametrize("name", ["mlp", "conv_net", "weighted"])
def test_describes_the_message(name: str, estimator: str) -> None:
    case = named(name)
    message, inputs = case.message(), case.inputs()
    moments = measure(message, inputs, estimator, generator=seeded())
    values = message(inputs)
    assert_same_squares(moments.squared_values, {n: v.square() for n, v in values.items()})
    assert moments.known_squared_sensitivities.keys() == values.keys()
    assert moments.input_size == inputs.numel()
    assert moments.size == sum(value.numel() for value in values.values())
    assert (moments.count, moments.clip) == (1, None)


@pytest.mark.parametrize("case", ZOO, ids=str)
def test_auto_serves_every_model(case: Case) -> None:
    moments = measure(case.message(), case.inputs(), generator=seeded())
    exact = measure(case.message(), case.inputs(), Exact())
    assert_same_squares(moments.squared_values, exact.squared_values)
    for name, squares in moments.known_squared_sensitivities.items():
        assert squares.shape == exact.known_squared_sensitivities[name].shape
        assert bool((squares >= 0).all())
    found, expected = total(moments), total(exact)
    assert expected / 20 < found < 20 * expected  # one probe of one example is good for no more


def total(moments: Moments) -> float:
    return sum(float(squares.sum()) for squares in moments.known_squared_sensitivities.values())


@pytest.mark.parametrize("estimator", ["auto", "layers"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("told", [True, False])
def test_the_total_has_the_right_size(reduction: str, told: bool, estimator: str) -> None:
    """Also where a few examples stand for all, and where the loss does not say how it adds up."""
    case, generator = named("mlp"), seeded()
    inputs = torch.randn(32, 5, generator=generator, dtype=torch.float64)
    known = partial(F.cross_entropy, reduction=reduction)
    loss_fn = known if told else lambda outputs, targets: known(outputs, targets)
    message = GradientMessage(case.model(), loss_fn, torch.arange(32) % 3)
    ratio = total(measure(message, inputs, estimator, generator=generator)) / total(
        measure(message, inputs, Exact())
    )
    assert 1 / 4 < ratio < 4


def test_auto_serves_local_updates_and_plain_functions() -> None:
    case = named("mlp")
    inputs = case.inputs()
    assert total(measure(case.local_update(), inputs, generator=seeded())) > 0
    assert total(measure(lambda x: {"y": x.square().sum(0)}, inputs, generator=seeded())) > 0


@pytest.mark.parametrize(
    ("name", "estimator"),
    [("exact", Exact()), ("sketch", Sketch()), ("per-example", PerExample())],
)
def test_names_stand_for_the_defaults(name: str, estimator: Estimator) -> None:
    case = named("mlp")
    by_name = measure(case.message(), case.inputs(), name, generator=seeded())
    expected = measure(case.message(), case.inputs(), estimator, generator=seeded())
    assert_same_bytes(by_name.known_squared_sensitivities, expected.known_squared_sensitivities)


def test_takes_anything_of_the_shape_of_an_estimator() -> None:
    def constant(message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        values = message(inputs)
        return Measurement(values, {n: torch.ones_like(v) for n, v in values.items()})

    case = named("mlp")
    moments = measure(case.message(), case.inputs(), constant)
    assert_same_bytes(
        moments.known_squared_sensitivities,
        constant(case.message(), case.inputs(), seeded()).squared_sensitivities,
    )


def test_gives_the_values_beside_the_moments() -> None:
    case = named("mlp")
    values, moments = measure_with_values(case.message(), case.inputs(), Exact())
    assert_same_bytes(values, case.message()(case.inputs()))
    assert_same_bytes(moments.squared_values, {n: v.square() for n, v in values.items()})


class TestRandomness:
    @EVERY_NAME
    def test_same_seed_same_bytes(self, estimator: str) -> None:
        case = named("conv_net")
        runs = [
            measure(case.message(), case.inputs(), estimator, generator=seeded(3)) for _ in range(2)
        ]
        assert_same_bytes(runs[0].known_squared_sensitivities, runs[1].known_squared_sensitivities)
        assert_same_bytes(runs[0].squared_values, runs[1].squared_values)

    @pytest.mark.parametrize("estimator", sorted(NAMED.keys() - {"exact"}))
    def test_another_seed_differs(self, estimator: str) -> None:
        case = named("conv_net")
        one, other = (
            measure(case.message(), case.inputs(), estimator, generator=seeded(seed))
            for seed in (1, 2)
        )
        assert not torch.equal(
            one.known_squared_sensitivities["0.weight"],
            other.known_squared_sensitivities["0.weight"],
        )

    def test_without_a_generator_every_call_differs(self) -> None:
        case = named("mlp")
        one, other = (measure(case.message(), case.inputs(), Sketch()) for _ in range(2))
        assert not torch.equal(
            one.known_squared_sensitivities["0.weight"],
            other.known_squared_sensitivities["0.weight"],
        )

    def test_a_generator_moves_on(self) -> None:
        case, generator = named("mlp"), seeded()
        one, other = (
            measure(case.message(), case.inputs(), Sketch(), generator=generator) for _ in range(2)
        )
        assert not torch.equal(
            one.known_squared_sensitivities["0.weight"],
            other.known_squared_sensitivities["0.weight"],
        )

    @EVERY_NAME
    @pytest.mark.parametrize("with_generator", [True, False])
    def test_the_global_generator_stays(self, estimator: str, with_generator: bool) -> None:
        case = named("mlp")
        before = torch.default_generator.get_state()
        measure(
            case.message(), case.inputs(), estimator, generator=seeded() if with_generator else None
        )
        assert torch.equal(torch.default_generator.get_state(), before)

    @pytest.mark.parametrize("case", COUPLED, ids=str)
    def test_the_global_generator_stays_for_every_coupled_model(self, case: Case) -> None:
        before = torch.default_generator.get_state()
        measure(case.message(), case.inputs())
        assert torch.equal(torch.default_generator.get_state(), before)


@EVERY_NAME
@pytest.mark.parametrize("case", SEPARABLE, ids=str)
def test_every_estimator_leaves_the_module_alone(case: Case, estimator: str) -> None:
    message = case.message()
    with assert_untouched(message.loss.model):
        measure(message, case.inputs(), estimator)


@EVERY_NAME
def test_works_where_gradients_are_switched_off(estimator: str) -> None:
    case = named("conv_net")
    expected = measure(case.message(), case.inputs(), estimator, generator=seeded())
    with torch.no_grad():
        found = measure(case.message(), case.inputs(), estimator, generator=seeded())
    assert_same_squares(found.known_squared_sensitivities, expected.known_squared_sensitivities)


@pytest.mark.parametrize("estimator", ["auto", "exact", "layers", "per-example", "sketch"])
def test_works_in_inference_mode(estimator: str) -> None:
    case = named("conv_net")
    with torch.inference_mode():
        moments = measure(case.message(), case.inputs(), estimator, generator=seeded())
    assert total(moments) > 0


@EVERY_NAME
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_keeps_the_dtype(estimator: str, dtype: torch.dtype) -> None:
    case = named("conv_net")
    moments = measure(case.message(dtype), case.inputs(dtype), estimator)
    tensors = [moments.squared_values, moments.known_squared_sensitivities]
    assert {tensor.dtype for each in tensors for tensor in each.values()} == {dtype}


@EVERY_NAME
def test_strided_inputs_are_inputs(estimator: str) -> None:
    case = named("conv_net")
    inputs = case.inputs()
    strided = inputs.transpose(2, 3).contiguous().transpose(2, 3)
    assert not strided.is_contiguous()
    found = measure(case.message(), strided, estimator, generator=seeded())
    expected = measure(case.message(), inputs, estimator, generator=seeded())
    assert_same_squares(found.known_squared_sensitivities, expected.known_squared_sensitivities)


class TestClip:
    """Theorem 3's moments: those of the message with every entry clamped to [-P, P]."""

    def middle(self, case: Case) -> float:
        """A threshold that half of the entries exceed."""
        values = case.message()(case.inputs()).values()
        return float(torch.cat([value.abs().flatten() for value in values]).median()) * 1.0001

    @pytest.mark.parametrize("name", ["mlp", "digits", "scalar", "unused", "batch_norm_train"])
    def test_equals_the_jacobian_of_the_clamped_message(self, name: str) -> None:
        case = named(name)
        message, inputs, clip = case.message(), case.inputs(), self.middle(case)

        def clamped(x: Tensor) -> dict[str, Tensor]:
            return {name: value.clamp(-clip, clip) for name, value in message(x).items()}

        moments = measure(message, inputs, Exact(), clip=clip)
        assert moments.clip == clip
        assert_same_squares(moments.known_squared_sensitivities, jacobian_squares(clamped, inputs))
        squares = {n: value.square() for n, value in clamped(inputs).items()}
        assert_same_squares(moments.squared_values, squares)
        assert (
            0
            < sum(int((s == 0).sum()) for s in moments.known_squared_sensitivities.values())
            < moments.size
        )

    @pytest.mark.parametrize("estimator", [Sketch(probes=3), PerExample(probes=3)], ids=repr)
    def test_is_the_clipped_form_of_the_same_measurement(self, estimator: Estimator) -> None:
        case = named("mlp")
        clip = self.middle(case)
        plain = measure(case.message(), case.inputs(), estimator, generator=seeded())
        found = measure(case.message(), case.inputs(), estimator, clip=clip, generator=seeded())
        expected = plain.clipped(clip)
        assert_same_bytes(found.known_squared_sensitivities, expected.known_squared_sensitivities)

    def test_a_high_threshold_changes_nothing(self) -> None:
        case = named("mlp")
        plain = measure(case.message(), case.inputs(), Exact())
        clipped = measure(case.message(), case.inputs(), Exact(), clip=1e6)
        assert_same_bytes(clipped.known_squared_sensitivities, plain.known_squared_sensitivities)
        assert_same_bytes(clipped.squared_values, plain.squared_values)

    def test_a_low_threshold_leaves_no_sensitivity(self) -> None:
        case = named("mlp")
        moments = measure(case.message(), case.inputs(), Exact(), clip=1e-12)
        assert total(moments) == 0
        assert float(moments.squared_values["0.weight"].max()) == pytest.approx(1e-24)
