"""The choice of the estimator, and what happens where the first choice does not work."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradveil import GradientMessage, LocalUpdateMessage, ModelError, OptimalNoise, measure
from gradveil.models import build_model
from gradveil.sensitivity import Exact, HiddenPathWarning, PerExample, Sketch, Structured, _measure
from gradveil.theory import share_of_optimum as share
from tests.sensitivity.structured.test_sweeps import sequence_first
from tests.zoo import COUPLED, ZOO, Case, named


def kinds(message, inputs) -> list[str]:
    found = _measure._candidates(message, inputs, cheap=False, with_values=True, squares=False)
    return [name for name, _ in found]


def test_the_choice_depends_on_message_and_model():
    mlp = named("mlp")
    every = ["structured", "per-example(probes=2)", "sketch", "values alone"]
    assert kinds(mlp.message(), mlp.inputs()) == every
    coupled = COUPLED[0]
    assert kinds(coupled.message(), coupled.inputs()) == every[2:]
    inputs = torch.randn(4, 4, 2, generator=torch.Generator().manual_seed(0)).double()
    sequence = GradientMessage(
        sequence_first(), nn.functional.cross_entropy, torch.tensor([0, 1, 2, 0])
    )
    assert kinds(sequence, inputs) == every[1:]


@pytest.mark.parametrize("case", ZOO, ids=lambda case: case.name)
def test_auto_works_on_the_whole_zoo(case: Case):
    message, inputs = case.message(), case.inputs()
    moments = measure(message, inputs, generator=torch.Generator().manual_seed(0))
    for name, value in message(inputs).items():
        torch.testing.assert_close(moments.squared_values[name], value.square())
        assert (moments.known_squared_sensitivities[name] >= 0).all()


def test_the_next_estimator_takes_over_where_one_fails(monkeypatch):
    case = named("mlp")
    message, inputs = case.message(), case.inputs()

    def broken(*_, **__):
        raise NotImplementedError("no second derivative")

    monkeypatch.setattr("gradveil.sensitivity._structured.TangentGraph", broken)
    generator, again = (torch.Generator().manual_seed(2) for _ in range(2))
    found = measure(message, inputs, generator=generator)
    expected = measure(message, inputs, PerExample(2), generator=again)
    for name, squares in expected.known_squared_sensitivities.items():
        assert torch.equal(found.known_squared_sensitivities[name], squares)


def test_when_nothing_works_the_first_error_is_raised(monkeypatch):
    case = named("mlp")

    def broken(*_, **__):
        raise RuntimeError("first")

    def also_broken(*_):
        raise RuntimeError("later")

    monkeypatch.setattr(Structured, "measure", broken)
    monkeypatch.setattr(PerExample, "__call__", also_broken)
    monkeypatch.setattr(Sketch, "__call__", also_broken)
    monkeypatch.setattr(_measure, "values_of", also_broken)
    with pytest.raises(ModelError, match=r"`model` should be made of operations.*: first"):
        measure(case.message(), case.inputs())


@pytest.mark.parametrize("words", ["no derivative", "saved tensor hooks"])
def test_when_nothing_can_be_differentiated_every_entry_counts_as_hidden(words, monkeypatch):
    case = named("mlp")

    def broken(*_, **__):
        raise RuntimeError(words)

    monkeypatch.setattr(Structured, "measure", broken)
    monkeypatch.setattr(PerExample, "__call__", broken)
    monkeypatch.setattr(Sketch, "__call__", broken)
    with pytest.warns(HiddenPathWarning, match="move with the inputs although"):
        moments = measure(case.message(), case.inputs())
    assert moments.hidden == moments.size
    assert all((square > 0).all() for square in moments.known_squared_sensitivities.values())


def test_what_saves_by_hooks_is_told_whatever_the_error_says(monkeypatch):
    """Activation checkpointing can be switched off: its values alone are not taken."""

    class Saving(nn.Linear):
        def forward(self, inputs):
            return checkpoint(super().forward, inputs, use_reentrant=False)

    def broken(*_, **__):
        raise RuntimeError("in other words")

    for kind, method in ((Structured, "measure"), (PerExample, "__call__"), (Sketch, "__call__")):
        monkeypatch.setattr(kind, method, broken)
    message = GradientMessage(Saving(3, 2), nn.functional.cross_entropy, torch.tensor([0, 1]))
    with pytest.raises(ModelError, match=r"in other words.*switch checkpointing off"):
        measure(message, torch.ones(2, 3))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_few_examples_stand_for_all_in_scale(reduction: str):
    """Equal examples: the level of each tensor from two of them is that of all, noise apart."""
    generator = torch.Generator().manual_seed(0)
    model = build_model("mlp", sizes=[6, 8, 3]).double()
    inputs = torch.randn(1, 6, generator=generator).double().expand(8, 6)
    loss = nn.CrossEntropyLoss(reduction=reduction)
    message = GradientMessage(model, loss, torch.zeros(8, dtype=torch.long))
    exact = measure(message, inputs, Exact())
    found = [
        measure(message, inputs, "layers", generator=generator).known_squared_sensitivities
        for _ in range(200)
    ]
    for name, squares in exact.known_squared_sensitivities.items():
        mean = torch.stack([f[name].mean() for f in found]).mean()
        assert mean.item() == pytest.approx(squares.mean().item(), rel=0.2)


def update(lr: float, **options) -> tuple[LocalUpdateMessage, torch.Tensor]:
    case = named("mlp")
    message = LocalUpdateMessage(case.model(), case.loss_fn, case.targets(), lr=lr, **options)
    return message, case.inputs()


@pytest.mark.parametrize(
    "options", [{"steps": 1}, {"steps": 5}, {"steps": 5, "batch_size": 2, "momentum": 0.9}]
)
def test_updates_are_measured_along_their_steps(options, monkeypatch):
    """Exact gradients' sensitivities, small steps: what is left out is of higher order in lr."""
    message, inputs = update(1e-4, **options)
    exact = measure(message, inputs, Exact())
    monkeypatch.setattr(_measure, "auto", Exact())
    found = measure(message, inputs, _measure.along_steps)
    for name, squares in exact.known_squared_sensitivities.items():
        torch.testing.assert_close(
            found.known_squared_sensitivities[name], squares, rtol=1e-2, atol=1e-14
        )
        torch.testing.assert_close(found.squared_values[name], exact.squared_values[name])


def test_updates_with_ordinary_steps_keep_their_worth():
    message, inputs = update(0.1, steps=5)
    exact = measure(message, inputs, Exact())
    found = measure(message, inputs, generator=torch.Generator().manual_seed(0))
    assert share(exact, OptimalNoise(0.1, source="private").plan(found)) > 0.8


def test_a_batch_of_no_more_examples_is_measured_as_cheaply():
    """One level per tensor needs no second sweep, on a small batch either."""
    case = named("mlp")
    message, inputs = case.message(), case.inputs()
    generator, again = (torch.Generator().manual_seed(2) for _ in range(2))
    few = partial(_measure.auto, few=len(inputs))
    found = measure(message, inputs, few, generator=generator)
    expected = measure(message, inputs, Structured(split=False), generator=again)
    for name, squares in expected.known_squared_sensitivities.items():
        assert torch.equal(found.known_squared_sensitivities[name], squares)
