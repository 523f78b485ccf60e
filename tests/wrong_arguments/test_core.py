"""Messages, inputs, targets, losses, models: everything that meets a user's own code."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import (
    GradientMessage,
    GradientNoise,
    LocalUpdateMessage,
    Moments,
    NonFiniteError,
    OptimalNoise,
    measure,
)
from gradveil.messages import LocalSteps
from gradveil.sensitivity import PerExample, Sketch
from tests.wrong_arguments.cases import (
    HUGE,
    INF,
    INPUTS,
    NAN,
    TARGETS,
    Checkpointed,
    Raising,
    Returning,
    Wrong,
    assert_refused,
    linear,
    message,
    model,
    seeded,
    table,
    with_weight,
)


def backward(
    network: Any = None, loss_fn: Any = cross_entropy, inputs: Any = INPUTS, targets: Any = TARGETS
) -> Any:
    chosen = model() if network is None else network
    return OptimalNoise(0.1).backward(chosen, loss_fn, inputs, targets, seeded())


def with_inputs(inputs: Any) -> Any:
    return lambda: backward(inputs=inputs)


def with_targets(targets: Any) -> Any:
    return lambda: backward(targets=targets)


def local(**changes: Any) -> Any:
    options = {"lr": 0.1, "steps": 2, **changes}
    return lambda: LocalUpdateMessage(model(), cross_entropy, TARGETS, **options)


@table(
    (with_inputs([[1.0] * 5] * 4), "inputs", "Found list"),
    (with_inputs(INPUTS.numpy()), "inputs", "Found ndarray"),
    (with_inputs({"x": INPUTS}), "inputs", "Found dict"),
    (with_inputs((INPUTS,)), "inputs", "Found tuple"),
    (with_inputs(None), "inputs", "Found NoneType"),
    (with_inputs("mnist"), "inputs", "Found str"),
    (with_inputs(3.0), "inputs", "Found float"),
    (with_inputs(INPUTS.half()), "inputs", "torch.float16"),
    (with_inputs(INPUTS.bfloat16()), "inputs", "torch.bfloat16"),
    (with_inputs(INPUTS.to(torch.complex64)), "inputs", "torch.complex64"),
    (with_inputs(INPUTS.long()), "model", "torch.int64"),
    (with_inputs(INPUTS.byte()), "inputs", "torch.uint8"),
    (with_inputs(INPUTS > 0), "inputs", "torch.bool"),
    (with_inputs(INPUTS.to_sparse()), "inputs", "torch.sparse_coo"),
    (with_inputs(INPUTS.to("meta")), "inputs", "meta"),
    (with_inputs(torch.tensor(1.0)), "inputs", "()"),
    (with_inputs(INPUTS[:0]), "inputs", "(0, 5)"),
    (with_inputs(INPUTS[:3]), "inputs", "(3, 5)"),
    (with_inputs(INPUTS * NAN), "inputs", "20 of 20"),
    (with_inputs(INPUTS / 0), "inputs", "NaN or infinite"),
    (with_inputs(torch.rand(4, 7)), "model", "(4x7 and 5x6)"),
    (with_inputs(torch.rand(4)), "model", "(1x4 and 5x6)"),
    (with_inputs(torch.rand(4, 1, 28, 28)), "model", "(4, 1, 28, 28)"),
    (with_inputs(INPUTS.double()), "model", "Its weights are torch.float32 on cpu"),
    (lambda: OptimalNoise(0.1)(message(), [1.0], seeded()), "inputs", "Found list"),
    (lambda: measure(message(), None), "inputs", "Found NoneType"),
    (lambda: message()("x"), "inputs", "Found str"),
    (lambda: message()(INPUTS.half()), "inputs", "torch.float16"),
)
def test_inputs(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)


@table(
    (with_targets(torch.tensor([0, 1, 2, 2**40])), "targets", "to 1099511627776"),
    (with_targets(torch.tensor([0, 1, 2, 3])), "targets", "from 0 to 3"),
    (with_targets(torch.tensor([0, 1, 2, -1])), "targets", "from -1 to 2"),
    (with_targets(TARGETS.float()), "targets", "torch.float32"),
    (with_targets(TARGETS.int()), "targets", "torch.int32"),
    (with_targets(TARGETS > 0), "targets", "torch.bool"),
    (with_targets(TARGETS[:, None]), "targets", "(4, 1)"),
    (with_targets(TARGETS[:2]), "targets", "(2,)"),
    (with_targets([0, 1, 2, 0]), "targets", "list"),
    (with_targets(None), "targets", "NoneType"),
    (with_targets("labels"), "targets", "str"),
    (lambda: LocalUpdateMessage(model(), cross_entropy, [0], lr=1.0, steps=1), "targets", "list"),
)
def test_targets(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)


@table(
    (lambda: backward(loss_fn=None), "loss_fn", "NoneType"),
    (lambda: backward(loss_fn="cross_entropy"), "loss_fn", "'cross_entropy'"),
    (lambda: backward(loss_fn=nn.CrossEntropyLoss), "loss_fn", "CrossEntropyLoss"),
    (lambda: backward(loss_fn=lambda o, t: 1.0), "loss_fn", "float"),
    (lambda: backward(loss_fn=lambda o, t: None), "loss_fn", "NoneType"),
    (lambda: backward(loss_fn=lambda o, t: o), "loss_fn", "(4, 3)"),
    (lambda: backward(loss_fn=lambda o, t: torch.tensor(1)), "loss_fn", "torch.int64"),
    (lambda: backward(loss_fn=lambda o, t: o.sum() * 1j), "loss_fn", "torch.complex64"),
    (lambda: backward(loss_fn=lambda o, t: 1 / 0), "loss_fn", "ZeroDivisionError"),
    (lambda: backward(loss_fn=lambda o: o.sum()), "loss_fn", "TypeError"),
    (lambda: backward(loss_fn=lambda o, t: o.sum() * NAN), "loss_fn", "1 of 1"),
    (lambda: backward(loss_fn=nn.BCELoss()), "loss_fn", "torch.Size([4])"),
)
def test_losses(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)


@table(
    (lambda: backward("mlp"), "model", "Found str"),
    (lambda: backward(nn.Linear), "model", "Found type"),
    (lambda: backward(lambda x: x), "model", "Found function"),
    (lambda: backward(nn.ReLU()), "model", "Found none"),
    (lambda: backward(model().requires_grad_(False)), "model", "Found none"),
    (lambda: backward(model().half()), "model", "torch.float16"),
    (lambda: backward(model().bfloat16(), inputs=INPUTS.bfloat16()), "inputs", "torch.bfloat16"),
    (lambda: measure(message(model().bfloat16()), INPUTS), "model", "torch.bfloat16"),
    (lambda: backward(model().to(torch.complex64)), "model", "torch.complex64"),
    (lambda: backward(model().to("meta")), "model", "meta"),
    (lambda: backward(nn.DataParallel(model())), "model", "DataParallel"),
    (lambda: backward(nn.LazyLinear(3)), "model", "lazy weight"),
    (lambda: backward(Raising(KeyError("boo"))), "model", "KeyError: 'boo'"),
    (lambda: backward(Raising(AttributeError("eyes"))), "model", "AttributeError: eyes"),
    (lambda: backward(Raising(SystemExit(4))), "model", "SystemExit: 4"),
    (lambda: backward(Returning(None)), "loss_fn", "NoneType"),
    (lambda: backward(Returning((INPUTS, INPUTS))), "loss_fn", "tuple"),
    (lambda: backward(Returning(torch.zeros(2, 3))), "loss_fn", "shape (2, 3)"),
    (lambda: backward(Checkpointed(False)), "model", "switch checkpointing off"),
    (lambda: backward(nn.Sequential(model(), linear(4, 3))), "model", "(4x3 and 4x3)"),
)
@pytest.mark.filterwarnings("ignore:Complex modules")
def test_models(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)


@pytest.mark.parametrize(
    ("defense", "value"),
    [(OptimalNoise(0.1), v) for v in (NAN, INF, -INF)] + [(GradientNoise(0.1), NAN)],
)
def test_weights_that_are_not_finite(value: float, defense: Any, empty: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"should be finite.*Found"):
        defense.backward(with_weight(value), cross_entropy, INPUTS, TARGETS, seeded())


def test_plain_defenses_take_activation_checkpointing() -> None:
    """Where no derivative of a gradient is needed, what is sent is the plain model's."""
    saving = Checkpointed(use_reentrant=False)
    plain = copy.deepcopy(saving)
    plain.forward = lambda x: plain.last(torch.tanh(plain.first(x)))  # type: ignore[method-assign]
    sent, expected = (
        GradientNoise(0.1).backward(one, cross_entropy, INPUTS, TARGETS, seeded())
        for one in (saving, plain)
    )
    for name, value in expected.items():
        torch.testing.assert_close(sent[name], value)


def test_labels_that_the_loss_ignores_stay_allowed() -> None:
    sent = backward(targets=torch.tensor([0, 1, 2, -100]))
    assert all(value.isfinite().all() for value in sent.values())


def gradient_message(**changes: Any) -> Any:
    return lambda: GradientMessage(model(), cross_entropy, TARGETS, **changes)(INPUTS)


@table(
    (gradient_message(seed=-1), "seed", "-1"),
    (gradient_message(seed=2**70), "seed", str(2**70)),
    (gradient_message(seed=2**64), "seed", str(2**64)),
    (gradient_message(seed=HUGE), "seed", "1329 bits"),
    (gradient_message(seed=0.5), "seed", "0.5"),
    (gradient_message(seed="zero"), "seed", "'zero'"),
    (gradient_message(seed=True), "seed", "True"),
    (gradient_message(seed=None), "seed", "None"),
    (gradient_message(separable="yes"), "separable", "'yes'"),
    (gradient_message(separable=1), "separable", "1"),
    (local(lr=0.0), "lr", "0.0"),
    (local(lr=-1.0), "lr", "-1.0"),
    (local(lr=NAN), "lr", "nan"),
    (local(lr=1e38), "lr", "1e+38"),
    (local(lr=HUGE), "lr", "1329 bits"),
    (local(lr="0.1"), "lr", "'0.1'"),
    (local(steps=0), "steps", "0"),
    (local(steps=1.5), "steps", "1.5"),
    (local(batch_size=0), "batch_size", "0"),
    (local(momentum=1.0), "momentum", "1.0"),
    (local(momentum=-0.1), "momentum", "-0.1"),
    (local(seed=-3), "seed", "-3"),
    (lambda: LocalSteps(0.0, 1), "lr", "0.0"),
    (lambda: LocalSteps(0.1, 0), "steps", "0"),
    (lambda: LocalSteps(0.1, 1, -2), "batch_size", "-2"),
    (lambda: LocalSteps(0.1, 1, momentum=2.0), "momentum", "2.0"),
)
def test_settings_of_messages(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)


@table(
    (lambda: measure("x", INPUTS), "message", "'x'"),
    (lambda: measure(None, INPUTS), "message", "NoneType"),
    (lambda: measure(GradientMessage, INPUTS), "message", "GradientMessage"),
    (lambda: measure(lambda x: x, INPUTS), "message(inputs)", "Tensor"),
    (lambda: measure(lambda x: {}, INPUTS), "message(inputs)", "dict"),
    (lambda: measure(lambda x: {"a": [1.0]}, INPUTS), "message(inputs)", "list for `a`"),
    (lambda: measure(lambda x: {"a": x.long()}, INPUTS), "message(inputs)", "torch.int64"),
    (lambda: measure(lambda x: {"a": x.half()}, INPUTS), "message(inputs)", "torch.float16"),
    (lambda: measure(lambda x: {"a": x * NAN}, INPUTS), "message(inputs)", "20 of 20"),
    (lambda: measure(lambda x: x["a"], INPUTS), "message", "TypeError"),
    (lambda: measure(message(), INPUTS, "fast"), "estimator", "'fast'"),
    (lambda: measure(message(), INPUTS, 3), "estimator", "3"),
    (lambda: measure(message(), INPUTS, Sketch), "estimator", "Sketch"),
    (lambda: measure(message(), INPUTS, clip=0.0), "clip", "0.0"),
    (lambda: measure(message(), INPUTS, clip="1"), "clip", "'1'"),
    (lambda: measure(message(), INPUTS, clip=1e300), "clip", "1e+300"),
    (lambda: measure(message(), INPUTS, generator=7), "generator", "7"),
    (lambda: Sketch(probes=0), "probes", "0"),
    (lambda: PerExample(probes=-1), "probes", "-1"),
    (lambda: Moments(None, None, 3), "squared_values", "NoneType"),
    (lambda: Moments({}, None, 3), "squared_values", "dict"),
    (lambda: Moments({"a": [1.0]}, None, 3), "squared_values", "list for `a`"),
    (lambda: Moments({"a": torch.ones(2)}, None, 0), "input_size", "0"),
    (lambda: Moments({"a": torch.ones(2)}, None, 2.5), "input_size", "2.5"),
    (lambda: Moments({"a": torch.ones(2)}, None, 3, count=0), "count", "0"),
    (lambda: Moments({"a": torch.ones(2)}, {"b": torch.ones(2)}, 3), "squared_sens", "['a']"),
    (lambda: Moments.average([]), "moments", "no Moments"),
    (lambda: Moments.average(3), "moments", "3"),
)
def test_measuring(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)
