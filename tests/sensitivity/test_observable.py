"""What measured, and why: names on the moments, a log of what was passed over, memory errors."""

import logging

import pytest
import torch

from gradveil import LocalUpdateMessage, Moments, measure
from gradveil.sensitivity import (
    Measurement,
    PerExample,
    Sketch,
)
from gradveil.sensitivity._estimators import row_derivatives
from tests.zoo import COUPLED, named

LOGGER = "gradveil.sensitivity"
OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("MPS backend out of memory"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"),
]
MEMORY = pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["torch", "text", "cpu"])


def moments(estimator, case=None) -> Moments:
    case = case or named("mlp")
    generator = torch.Generator().manual_seed(0)
    return measure(case.message(), case.inputs(), estimator, generator=generator)


def raising(error):
    def broken(*_):
        raise error

    return broken


@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        ("auto", "structured"),
        ("layers", "structured(split=False) on 2 of 4 examples"),
        ("exact", "exact"),
        ("sketch", "sketch"),
        ("structured", "structured"),
        (PerExample(probes=2), "per-example(probes=2)"),
        (Sketch(5), "sketch(probes=5)"),
    ],
)
def test_moments_name_what_measured_them(estimator, name: str):
    assert moments(estimator).estimator == name


def test_auto_names_what_it_took_for_examples_that_interact():
    assert moments("auto", COUPLED[0]).estimator == "sketch"


def test_the_users_own_estimator_goes_by_its_name():
    def mine(message, inputs, generator):
        values = message(inputs)
        return Measurement(values, {n: torch.ones_like(v) for n, v in values.items()})

    assert moments(mine).estimator == "mine"
    with pytest.raises(TypeError, match=r"should be .* Measurement"):
        moments(lambda *given: (mine(*given).values, {}))


def test_updates_name_the_estimator_of_their_steps():
    case = named("mlp")
    message = LocalUpdateMessage(
        case.model(), case.loss_fn, case.targets(), lr=0.1, steps=2, batch_size=2
    )
    assert measure(message, case.inputs()).estimator == "along-steps(structured)"


def test_added_moments_keep_a_common_name_and_are_mixed_otherwise():
    exact, sketch = moments("exact"), moments("sketch")
    assert (exact + exact).estimator == "exact"
    assert Moments.average([exact, sketch, exact]).estimator == "mixed"


def test_values_alone_were_measured_by_nothing():
    assert Moments.of_values({"w": torch.ones(2)}, 3).estimator is None


def test_the_name_survives_clipping():
    found = moments(PerExample(2))
    assert found.clipped(0.1).estimator == "per-example(probes=2)"


def test_a_fallback_is_named_and_logged_with_its_reason(monkeypatch, caplog):
    error = NotImplementedError("no second\nderivative")
    monkeypatch.setattr("gradveil.sensitivity._structured.TangentGraph", raising(error))
    with caplog.at_level(logging.INFO, LOGGER):
        found = moments("auto")
    assert found.estimator == "per-example(probes=2)"
    (record,) = caplog.records
    assert (record.name, record.levelno) == (LOGGER, logging.INFO)
    assert record.getMessage() == (
        "auto passes over structured: NotImplementedError: no second derivative"
    )


def test_layers_that_cannot_be_read_are_logged(monkeypatch, caplog):
    error = RuntimeError("no such layer")
    monkeypatch.setattr("gradveil.sensitivity._measure.layout_of", raising(error))
    with caplog.at_level(logging.INFO, LOGGER):
        assert moments("auto").estimator == "per-example(probes=2)"
    assert [r.getMessage() for r in caplog.records] == [
        "auto passes over structured: RuntimeError: no such layer"
    ]


def test_nothing_is_logged_where_the_first_choice_works(caplog):
    with caplog.at_level(logging.INFO, LOGGER):
        moments("auto")
    assert not caplog.records


@MEMORY
@pytest.mark.parametrize("place", ["_structured.TangentGraph", "_measure.layout_of"])
def test_out_of_memory_is_raised_and_nothing_else_is_tried(error, place, monkeypatch):
    monkeypatch.setattr(f"gradveil.sensitivity.{place}", raising(error))
    monkeypatch.setattr(PerExample, "__call__", raising(AssertionError("was tried")))
    with pytest.raises(RuntimeError) as raised:
        moments("auto")
    assert raised.value is error


@MEMORY
@pytest.mark.parametrize("rows", [1, 3])
def test_out_of_memory_is_raised_by_derivatives_at_once(error, rows: int):
    calls = []

    def along(mode, row):
        calls.append(mode)
        raise error

    with pytest.raises(RuntimeError) as raised:
        row_derivatives(along, torch.ones(rows, 2))
    assert raised.value is error
    assert len(calls) == 1
