"""The fast estimator: worth nearly as much as the exact one, and safe where it does not apply."""

import pytest
import torch
from torch import nn

from benchmarks.cases import peak_of
from gradveil import GradientMessage, OptimalNoise, measure
from gradveil.models import build_model
from gradveil.sensitivity import Exact, Moments, Structured
from gradveil.sensitivity import _structured as structured
from gradveil.sensitivity._structured import TangentGraph, matrix_squares, positions_squares
from gradveil.theory import share_of_optimum
from tests.zoo import COUPLED, SEPARABLE, Case, named

PLAN = OptimalNoise(0.1, cap=1e6, floor=0.0, source="private")


def share(exact: Moments, found: Moments) -> float:
    return share_of_optimum(exact, PLAN.plan(found))


@pytest.mark.parametrize("case", SEPARABLE, ids=lambda case: case.name)
def test_many_probes_are_worth_nearly_as_much_as_exact_norms(case: Case):
    message, inputs = case.message(), case.inputs()
    exact = measure(message, inputs, Exact())
    found = measure(message, inputs, Structured(64), generator=torch.Generator().manual_seed(0))
    assert share(exact, found) > 0.9
    for name, squares in found.squared_values.items():
        torch.testing.assert_close(squares, exact.squared_values[name], rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize("case", SEPARABLE, ids=lambda case: case.name)
def test_one_example_at_a_time_is_worth_as_much(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(structured.Layout, "examples_at_a_time", lambda *_: 1)
    message, inputs = case.message(), case.inputs()
    exact = measure(message, inputs, Exact())
    generator = torch.Generator().manual_seed(0)
    found = measure(message, inputs, Structured(64), generator=generator)
    assert share(exact, found) > 0.9
    for name, squares in found.squared_values.items():
        torch.testing.assert_close(squares, exact.squared_values[name], rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize("case", SEPARABLE, ids=lambda case: case.name)
def test_what_does_not_depend_on_the_inputs_has_no_sensitivity(case: Case):
    message, inputs = case.message(), case.inputs()
    exact = measure(message, inputs, Exact())
    found = measure(message, inputs, Structured(), generator=torch.Generator().manual_seed(0))
    for name, squares in exact.known_squared_sensitivities.items():
        if not squares.any():
            assert not found.known_squared_sensitivities[name].any()


@pytest.mark.parametrize("case", COUPLED, ids=lambda case: case.name)
def test_messages_whose_examples_interact_are_refused(case: Case):
    with pytest.raises(ValueError, match="sum over examples"):
        measure(case.message(), case.inputs(), Structured())


def test_one_probe_is_worth_more_than_the_papers_ten():
    """The paper's CNN, a batch of 8 noisy images: on such batches ten probes reach 0.945."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(8, 1, 28, 28, generator=generator)
    targets = torch.randint(10, (8,), generator=generator)
    message = GradientMessage(build_model("simple-conv-net"), nn.functional.cross_entropy, targets)
    reference = measure(message, inputs, "per-example", generator=generator)
    for _ in range(11):
        reference = reference + measure(message, inputs, "per-example", generator=generator)
    found = measure(message, inputs, Structured(), generator=generator)
    paper = measure(message, inputs, "sketch", generator=generator)
    assert share(reference, found) > max(0.95, share(reference, paper))


def test_matrices_without_noise_contract_exactly():
    """Along one direction Σ_b (δ'_b a_bᵀ + δ_b a'_bᵀ)² needs no matrix for each example."""
    case = named("mlp")
    message, inputs = case.message(), case.inputs()
    graph = TangentGraph(message, inputs)
    use = graph.uses[0]
    tangents = graph.sweep(inputs)
    pair = (tangents.inputs[0], tangents.signals[0])
    nothing = (torch.zeros_like(pair[0]), torch.zeros_like(pair[1]))
    found = matrix_squares(use, [nothing], pair, is_input=False)
    moved = use.products(pair[1], use.a.detach()) + use.products(use.signal, pair[0])
    torch.testing.assert_close(found, moved.square().sum(0))


def test_positions_without_noise_are_exact():
    case = next(c for c in SEPARABLE if "conv" in c.name)
    graph = TangentGraph(case.message(), case.inputs())
    use = graph.uses[0]
    tangents = graph.sweep(graph.x.detach())
    pair = (tangents.inputs[0], tangents.signals[0])
    nothing = (torch.zeros_like(pair[0]), torch.zeros_like(pair[1]))
    found = positions_squares(use, [nothing], pair, with_signal=True)
    moved = use.products(pair[1], use.a.detach()) + use.products(use.signal, pair[0])
    torch.testing.assert_close(found, moved.square().sum(0))


def test_memory_stays_within_a_few_tensors_of_the_size_of_the_parameters():
    """A deep MLP whose parameters outweigh its activations."""
    model = build_model("mlp", sizes=[512, 512, 512, 512, 512, 512, 10])
    inputs = torch.randn(8, 512, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(8)
    size = 4 * sum(p.numel() for p in model.parameters())
    message = GradientMessage(model, nn.functional.cross_entropy, targets)

    assert extra_memory(message, inputs) / size < 3.5


@pytest.mark.slow
def test_memory_stays_within_three_such_tensors_where_activations_outweigh_parameters(
    monkeypatch: pytest.MonkeyPatch,
):
    """A transformer of which a batch takes eight times the memory of the parameters."""
    monkeypatch.setattr(structured, "ROOM", 0)
    model = build_model("patch-transformer", width=128, depth=2)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(16, 3, 32, 32, generator=generator)
    targets = torch.randint(10, (16,), generator=generator)
    message = GradientMessage(model, nn.functional.cross_entropy, targets)
    size = 4 * sum(p.numel() for p in model.parameters())
    assert extra_memory(message, inputs) / size < 3
    monkeypatch.setattr(structured, "ROOM", 2**40)
    assert extra_memory(message, inputs) / size > 6


def extra_memory(message: GradientMessage, inputs: torch.Tensor) -> int:
    """The peak of a defended gradient beyond that of a plain one, in bytes."""
    model, generator = message.loss.model, torch.Generator().manual_seed(1)

    def plain() -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs), message.targets).backward()

    def defended() -> None:
        PLAN(message, inputs, generator)

    plain(), defended()  # what is found out once per model does not count
    least = peak_of(plain)
    return peak_of(defended) - least
