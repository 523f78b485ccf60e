import pytest
import torch

from gradveil import GradientMessage, ModelError, measure
from gradveil.sensitivity import Exact, PerExample, Sketch
from tests.sensitivity.oracles import algorithm_1_for_each_example, assert_same_squares, draw
from tests.sensitivity.statistics import (
    assert_within_standard_errors,
    expected_spread,
    spread,
    variances,
)
from tests.zoo import COUPLED, Case, named

pytestmark = pytest.mark.usefixtures("global_rng_watch")


@pytest.mark.parametrize("name", ["mlp", "conv_net", "batch_norm_eval", "recurrent", "scalar"])
def test_equals_the_printed_algorithm_for_each_example(name: str) -> None:
    case = named(name)
    inputs = case.inputs()
    probes = draw((3, *inputs.shape), torch.Generator().manual_seed(7))
    found = measure(
        case.message(), inputs, PerExample(3), generator=torch.Generator().manual_seed(7)
    )
    assert_same_squares(
        found.known_squared_sensitivities, algorithm_1_for_each_example(case, inputs, probes)
    )


def test_equals_sketch_for_one_example() -> None:
    case = named("one_example")

    def run(estimator: PerExample | Sketch) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return measure(
            case.message(), case.inputs(), estimator, generator=generator
        ).known_squared_sensitivities

    assert_same_squares(run(PerExample(5)), run(Sketch(5)))


@pytest.mark.parametrize(
    "name",
    ["mlp", "digits", "weighted", "sum_reduction", "custom_loss", "regression", "tagger", "unused"],
)
def test_converges_to_the_exact_value(name: str) -> None:
    case, generator = named(name), torch.Generator().manual_seed(0)
    exact = Exact()(case.message(), case.inputs(), generator).squared_sensitivities
    found = PerExample(1000)(case.message(), case.inputs(), generator)
    errors = variances(PerExample(), case.message(), case.inputs(), 1000)
    assert_within_standard_errors(found, exact, errors)


MESSAGE, INPUTS = named("mlp").message(), named("mlp").inputs()


@pytest.mark.parametrize("probes", [1, 16])
def test_the_error_is_the_one_that_theory_says(probes: int) -> None:
    """Some 60 repetitions of 60 entries, of which groups move together, settle it to a fifth."""
    found = spread(PerExample(probes), MESSAGE, INPUTS, times=60)
    assert found == pytest.approx(expected_spread(PerExample(), MESSAGE, INPUTS, probes), rel=0.2)


def test_the_error_falls_with_the_root_of_the_probes() -> None:
    few, many = (spread(PerExample(k), MESSAGE, INPUTS, times=60) for k in (16, 256))
    assert few / many == pytest.approx(4, rel=0.25)


def test_has_a_smaller_error_than_sketch() -> None:
    """The cross terms between examples are gone; four equal examples would halve it."""
    alone = spread(PerExample(probes=16), MESSAGE, INPUTS, times=60)
    together = spread(Sketch(probes=16), MESSAGE, INPUTS, times=60)
    assert alone < 0.85 * together


@pytest.mark.parametrize("case", COUPLED, ids=str)
def test_refuses_examples_that_interact(case: Case) -> None:
    pattern = r"Parameter `message` should be a sum over examples.*GradientMessage.*`Sketch\(\)`"
    with pytest.raises(ValueError, match=pattern):
        measure(case.message(), case.inputs(), PerExample())


def test_refuses_a_local_update_and_a_plain_function() -> None:
    case = named("mlp")
    with pytest.raises(ValueError, match=r"sum over examples.*LocalUpdateMessage"):
        measure(case.local_update(), case.inputs(), PerExample())
    with pytest.raises(ValueError, match=r"sum over examples.*function"):
        measure(lambda inputs: {"sum": inputs.sum(0)}, case.inputs(), PerExample())


def test_refuses_what_the_user_declared_coupled() -> None:
    case = named("mlp")
    with pytest.raises(ValueError, match="sum over examples"):
        measure(case.message(separable=False), case.inputs(), PerExample())


def test_takes_the_users_word() -> None:
    """A pair of examples whose loss couples them weakly, declared as if it did not."""
    case = named("pairs")
    measure(case.message(separable=True), case.inputs(), PerExample())


def test_declared_separable_for_a_model_that_draws_is_refused() -> None:
    case = named("dropout_train")
    with pytest.raises(ValueError, match="Parameter `model` should draw no random numbers"):
        measure(case.message(separable=True), case.inputs(), PerExample())


def test_errors_of_the_model_are_its_own() -> None:
    """A mistake in the inputs must not be blamed on examples that interact."""
    case = named("mlp")
    message = GradientMessage(case.model(torch.float32), case.loss(), case.targets())
    with pytest.raises(ModelError, match=r"`model` should accept.*same dtype.*are torch.float32"):
        measure(message, case.inputs(torch.float64), PerExample())


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = named("mlp")

    def run() -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return measure(
            case.message(), case.inputs(), PerExample(3), generator=generator
        ).known_squared_sensitivities

    whole = run()
    monkeypatch.setattr("gradveil.sensitivity._estimators.chunk_size", lambda values: 5)
    assert_same_squares(run(), whole)
