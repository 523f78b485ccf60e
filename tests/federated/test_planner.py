"""The server's planner: what it plans, how small it is, and runs that continue from its state."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from gradveil import FromServer, GradientMessage, GradientNoise, OptimalNoise
from gradveil._random import named_stream
from gradveil.federated import FederatedRun, LocalSteps, PackedShape, Planner
from gradveil.messages import trainable_parameters
from gradveil.models import build_model
from gradveil.shapes import Shape, fit_shape, gather, trust_in

from .small import assert_same, client, examples, model, run, server

pytestmark = pytest.mark.usefixtures("global_rng_watch")


def planner(**options: Any) -> Planner:
    return Planner(examples(16, seed=9), cross_entropy, **{"batch_size": 4, **options})


def rows_and_columns(like: dict[str, Tensor]) -> Shape:
    """The most that a planner sends: matrices by rows and columns, vectors by one number."""
    generator = torch.Generator().manual_seed(0)

    def levels(*sizes: int) -> Tensor:
        return torch.rand(sizes, generator=generator) + 0.5

    return Shape(
        {
            name: (levels(len(p), *(1,) * (p.dim() - 1)), levels(1, *p.shape[1:]))
            if p.dim() > 1
            else (levels(*(1,) * p.dim()),)
            for name, p in like.items()
        }
    )


@pytest.mark.parametrize(
    "network",
    [
        lambda: build_model("simple-conv-net"),
        lambda: build_model("conv-net", width=16),
        lambda: build_model("mlp", sizes=[784, 300, 10]),
    ],
    ids=["MNIST CNN", "CIFAR ConvNet-16", "perceptron"],
)
def test_what_is_sent_takes_less_than_one_percent_of_the_models_bytes(network: Any) -> None:
    like = trainable_parameters(network())
    size = 4 * sum(value.numel() for value in like.values())
    assert PackedShape.of(rows_and_columns(like)).size < 0.01 * size


def test_a_plan_is_the_shape_that_public_batches_prove() -> None:
    net, generator = model(), named_stream(0, "plan", 1)
    inputs, targets = examples(16, seed=9)
    batches = [
        gather(
            GradientMessage(net, cross_entropy, targets[i : i + 4]), inputs[i : i + 4], generator
        )
        for i in range(0, 16, 4)
    ]
    like = trainable_parameters(net)
    trust = trust_in(GradientMessage(net, cross_entropy, targets), inputs, generator)
    expected = PackedShape.of(fit_shape(batches, size=4, trust=trust, entries=False))
    packed = planner().plan(1, net)
    for name, level in packed.shape.levels(like).items():
        torch.testing.assert_close(level, expected.shape.levels(like)[name])


def test_it_plans_every_so_many_rounds_and_the_same_for_the_same_round() -> None:
    one, other, net = planner(refresh_every=3), planner(refresh_every=3), model()
    packed = [one.plan(number, net) for number in range(1, 8)]
    assert [packed.index(p) for p in packed] == [0, 0, 0, 3, 3, 3, 6]
    assert torch.equal(other.plan(4, net).codes, packed[3].codes)


def test_fedavg_is_planned_for_the_updates_that_clients_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gradveil.federated._planner.trust_in", lambda *_: 1.0)
    local = LocalSteps(steps=2, lr=0.5)
    inputs, targets = examples(16, seed=9)
    seen = []

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        seen.append(len(labels))
        return cross_entropy(outputs, labels)

    options = {"batch_size": 4}
    update = Planner((inputs, targets), loss, local=local, **options).plan(1, model())
    gradient = Planner((inputs, targets), loss, **options).plan(1, model())
    assert set(seen) <= {1, 2, 4}
    like = trainable_parameters(model())
    ratios = [(update.shape.levels(like)[n] / gradient.shape.levels(like)[n]).log() for n in like]
    assert float(torch.cat([r.flatten() for r in ratios]).std()) > 1e-3


def test_clients_use_the_shape_and_other_defenses_do_not() -> None:
    served = FederatedRun(
        server(),
        [client(0, OptimalNoise(0.1, source=FromServer())), client(1, GradientNoise(0.1))],
        cross_entropy,
        planner=planner(),
    )
    row = served.step()
    first, second = served.clients[0].defense.source, served.clients[1].defense
    assert isinstance(first, FromServer)
    expected = planner().plan(1, model())
    assert first.shape is not None
    assert row.shape_bytes == expected.size
    for name, parts in expected.shape.factors.items():
        assert all(map(torch.equal, parts, first.shape.factors[name]))
    assert second == GradientNoise(0.1)
    assert run().step().shape_bytes is None


def served_run(refresh_every: int = 3) -> FederatedRun:
    options = {"fraction": 0.7, "planner": planner(refresh_every=refresh_every)}
    return run(OptimalNoise(0.05, source=FromServer()), clients=3, **options)


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_run_continues_with_the_same_bytes(stop: int, tmp_path: Path) -> None:
    whole, first, second = served_run(), served_run(), served_run()
    whole.run(8)
    first.run(stop, folder=tmp_path)
    second.resume(tmp_path)
    second.run(8)
    assert_same(whole.server.model.state_dict(), second.server.model.state_dict())
    csv = whole.history.to_csv()
    assert second.history.to_csv() == csv
    assert "shape_bytes" in csv.splitlines()[0]


def test_another_planner_is_another_run() -> None:
    prints = {served_run(3).fingerprint, served_run(4).fingerprint, run().fingerprint}
    assert len(prints) == 3
    assert served_run(3).fingerprint == served_run(3).fingerprint


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Planner(examples(4)[0], cross_entropy), "public"),
        (lambda: Planner((torch.ones(4, 6), torch.ones(3)), cross_entropy), "targets"),
        (lambda: Planner((torch.zeros(0, 6), torch.ones(0)), cross_entropy), "non-empty"),
        (lambda: Planner(examples(4), "cross_entropy"), "loss_fn"),
        (lambda: planner(refresh_every=0), "refresh_every"),
        (lambda: planner(batch_size=0), "batch_size"),
        (lambda: planner(seed=-1), "seed"),
        (lambda: planner(local=0.1), "local"),
        (lambda: planner().plan(0, model()), "number"),
        (lambda: run(planner=examples(4)), "planner"),
    ],
)
def test_arguments_are_checked(make: Any, word: str) -> None:
    with pytest.raises((TypeError, ValueError), match=word):
        make()
