import pytest
import torch

from gradveil import measure
from gradveil.messages import Message
from gradveil.sensitivity import Exact, Sketch
from tests.sensitivity.oracles import algorithm_1, assert_same_squares, draw
from tests.sensitivity.statistics import (
    assert_within_standard_errors,
    expected_spread,
    spread,
    variances,
)
from tests.zoo import SEPARABLE, Case, named

pytestmark = pytest.mark.usefixtures("global_rng_watch")


@pytest.mark.parametrize("case", SEPARABLE, ids=str)
def test_equals_the_printed_algorithm_with_the_same_probes(case: Case) -> None:
    inputs = case.inputs()
    probes = draw((3, *inputs.shape), torch.Generator().manual_seed(7))
    found = measure(case.message(), inputs, Sketch(3), generator=torch.Generator().manual_seed(7))
    assert_same_squares(found.known_squared_sensitivities, algorithm_1(case, inputs, probes))


def assert_converges(message: Message, inputs: torch.Tensor, estimator: Sketch) -> None:
    generator = torch.Generator().manual_seed(0)
    exact = Exact()(message, inputs, generator).squared_sensitivities
    errors = variances(estimator, message, inputs, estimator.probes)
    assert_within_standard_errors(estimator(message, inputs, generator), exact, errors)


@pytest.mark.parametrize(
    "name", ["mlp", "digits", "attention", "scalar", "unused", "contrastive", "dropout_train"]
)
def test_converges_to_the_exact_value(name: str) -> None:
    case = named(name)
    assert_converges(case.message(), case.inputs(), Sketch(2000))


def test_converges_where_vmap_fails() -> None:
    """BatchNorm in training mode is probed by a loop."""
    case = named("batch_norm_train")
    assert_converges(case.message(), case.inputs(), Sketch(300))


def test_converges_for_local_updates() -> None:
    case = named("mlp")
    message = case.local_update(steps=3, batch_size=2, momentum=0.5)
    assert_converges(message, case.inputs(), Sketch(2000))


MESSAGE, INPUTS = named("mlp").message(), named("mlp").inputs()


@pytest.mark.parametrize("probes", [1, 16])
def test_the_error_is_the_one_that_theory_says(probes: int) -> None:
    """Some 60 repetitions of 60 entries, of which groups move together, settle it to a fifth."""
    found = spread(Sketch(probes), MESSAGE, INPUTS, times=60)
    assert found == pytest.approx(expected_spread(Sketch(), MESSAGE, INPUTS, probes), rel=0.2)


def test_the_error_falls_with_the_root_of_the_probes() -> None:
    few, many = (spread(Sketch(k), MESSAGE, INPUTS, times=60) for k in (16, 256))
    assert few / many == pytest.approx(4, rel=0.25)


@pytest.mark.parametrize("name", ["mlp", "batch_norm_train"])
def test_chunks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = named(name)

    def run() -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return measure(
            case.message(), case.inputs(), Sketch(5), generator=generator
        ).known_squared_sensitivities

    whole = run()
    monkeypatch.setattr("gradveil.sensitivity._estimators.chunk_size", lambda values: 2)
    assert_same_squares(run(), whole)
