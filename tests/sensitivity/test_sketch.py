import pytest
import torch

from gradveil import measure
from gradveil.messages import Message
from gradveil.sensitivity import Exact, Sketch
from tests.sensitivity.oracles import algorithm_1, assert_same_squares, draw
from tests.sensitivity.statistics import (
    assert_knows_its_error,
    assert_within_standard_errors,
    repeat,
)
from tests.zoo import SEPARABLE, Case, named

pytestmark = pytest.mark.usefixtures("global_rng_watch")

kinds = pytest.mark.parametrize("kind", ["gaussian", "rademacher"])


@kinds
@pytest.mark.parametrize("case", SEPARABLE, ids=str)
def test_equals_the_printed_algorithm_with_the_same_probes(case: Case, kind: str) -> None:
    inputs = case.inputs()
    probes = draw((3, *inputs.shape), kind, torch.Generator().manual_seed(7))
    found = measure(
        case.message(), inputs, Sketch(3, kind), generator=torch.Generator().manual_seed(7)
    )
    assert_same_squares(found.known_squared_sensitivities, algorithm_1(case, inputs, probes))


def assert_converges(message: Message, inputs: torch.Tensor, estimator: Sketch) -> None:
    generator = torch.Generator().manual_seed(0)
    exact = Exact()(message, inputs, generator).squared_sensitivities
    assert_within_standard_errors(estimator(message, inputs, generator), exact)


@kinds
@pytest.mark.parametrize(
    "name", ["mlp", "digits", "attention", "scalar", "unused", "contrastive", "dropout_train"]
)
def test_converges_to_the_exact_value(name: str, kind: str) -> None:
    case = named(name)
    assert_converges(case.message(), case.inputs(), Sketch(2000, kind))


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
def test_gaussian_probes_know_their_error(probes: int) -> None:
    """Even a single one; its relative error is √(2/k) by Lemma 1."""
    found = repeat(Sketch(probes), MESSAGE, INPUTS, times=60)
    assert_knows_its_error(found)
    assert found.spread() == pytest.approx((2 / probes) ** 0.5, rel=0.2)


def test_random_signs_have_a_smaller_error_than_they_say() -> None:
    found = repeat(Sketch(16, "rademacher"), MESSAGE, INPUTS, times=60)
    assert found.spread() < 1.1 * found.reported()


@kinds
def test_the_error_falls_with_the_root_of_the_probes(kind: str) -> None:
    few = repeat(Sketch(16, kind), MESSAGE, INPUTS, times=60)
    many = repeat(Sketch(256, kind), MESSAGE, INPUTS, times=60)
    assert few.spread() / many.spread() == pytest.approx(4, rel=0.25)
    assert few.reported() / many.reported() == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize("name", ["mlp", "batch_norm_train"])
def test_chunks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = named(name)

    def run() -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return measure(
            case.message(), case.inputs(), Sketch(5), generator=generator
        ).known_squared_sensitivities

    whole = run()
    monkeypatch.setattr("gradveil.sensitivity._sketch.chunk_size", lambda values: 2)
    assert_same_squares(run(), whole)
