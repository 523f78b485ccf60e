"""The server's planner: what it plans, how small it is, and runs that continue from its state."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from gradveil import FromServer, GradientMessage, GradientNoise, Moments, OptimalNoise, measure
from gradveil.federated import FederatedRun, LocalSteps, Planner
from gradveil.federated._planning._factored import factored_shape
from gradveil.federated._planning._small import small_shape
from gradveil.messages import trainable_parameters
from gradveil.models import build_model
from gradveil.plans import Shape

from ..small import assert_same, client, examples, model, run, server

pytestmark = pytest.mark.usefixtures("global_rng_watch")


def planner(**options: Any) -> Planner:
    return Planner(examples(16, seed=9), cross_entropy, **{"batch_size": 4, **options})


def as_matrix(rows: Tensor, columns: Tensor) -> Tensor:
    return torch.outer(rows, columns)


def test_rows_and_columns_of_a_product_are_found() -> None:
    """s² and g² that are products of rows and columns have an r that is one, exactly."""
    rows, columns = torch.linspace(1, 3, 12).double(), torch.linspace(0.5, 2, 9).double()
    slopes = as_matrix(rows.square(), columns)
    squares = as_matrix(columns.new_ones(12), columns.flip(0))
    moments = Moments({"w": squares}, {"w": slopes}, 5)
    levels = factored_shape(moments).levels({"w": squares})["w"]
    torch.testing.assert_close(levels, (slopes / squares).sqrt(), rtol=1e-9, atol=0)


def test_a_tensor_gets_its_own_ratio_and_small_ones_one_number() -> None:
    squares = {"b": torch.tensor([1.0, 3.0]), "dead": torch.zeros(3), "c": torch.ones(2)}
    slopes = {"b": torch.tensor([10.0, 6.0]), "dead": torch.zeros(3), "c": torch.ones(2)}
    shape = factored_shape(Moments(squares, slopes, 5))
    assert shape.numbers == 3
    assert float(shape.factors["b"][0]) == pytest.approx(2.0)
    assert float(shape.factors["dead"][0]) == pytest.approx(2**0.5)  # the others' mean


def test_dead_rows_and_columns_keep_levels_of_a_hundred_times_more_or_less() -> None:
    squares, slopes = torch.ones(10, 10), torch.ones(10, 10)
    squares[0], slopes[1], slopes[2], squares[2] = 0, 0, 0, 0
    levels = factored_shape(Moments({"w": squares}, {"w": slopes}, 5)).levels({"w": squares})["w"]
    assert float(levels[1, 1]) == pytest.approx(float(levels[5, 5]) * (1e-4 / 1.25) ** 0.5)
    assert float(levels[0, 1]) == pytest.approx(float(levels[5, 5]) * (1.25 / 1e-4) ** 0.5)
    assert float(levels[2, 1]) == pytest.approx(float(levels[5, 5]), rel=1e-5)


def test_a_shape_that_is_too_large_keeps_the_factors_that_say_most() -> None:
    like = {"flat": torch.zeros(50, 50), "steep": torch.zeros(50, 50), "b": torch.zeros(4)}
    gentle, steep = torch.linspace(1, 1.1, 50), torch.linspace(1, 9, 50)
    shape = Shape(
        {
            "flat": (gentle.view(50, 1), gentle.view(1, 50)),
            "steep": (steep.view(50, 1), steep.view(1, 50)),
            "b": (torch.tensor([2.0]),),
        }
    )
    kept = small_shape(shape, like, 250)
    assert [len(parts) for parts in kept.factors.values()] == [1, 2, 1]
    logs = shape.levels(like)["flat"].log().mean()
    assert float(kept.factors["flat"][0].log()) == pytest.approx(float(logs), rel=1e-5)
    assert small_shape(shape, like, 1000).numbers == shape.numbers
    assert small_shape(shape, like, 0).numbers == 3


@pytest.mark.parametrize(
    "network",
    [
        lambda: build_model("simple-conv-net"),
        lambda: build_model("conv-net", width=16),
        lambda: build_model("mlp", sizes=[784, 300, 10]),
    ],
    ids=["MNIST CNN", "CIFAR ConvNet-16", "perceptron"],
)
def test_what_is_sent_takes_at_most_one_percent_of_the_models_bytes(network: Any) -> None:
    net = network()
    size = (3, 32, 32) if "Batch" in repr(net) else (1, 28, 28)
    generator = torch.Generator().manual_seed(0)
    public = torch.randn(4, *size, generator=generator), torch.tensor([0, 1, 2, 3])
    packed = Planner(public, cross_entropy, batch_size=4).plan(1, net)
    entries = sum(p.numel() for p in net.parameters())
    assert packed.size <= 0.01 * 4 * entries
    largest = max(trainable_parameters(net).items(), key=lambda item: item[1].numel())[0]
    assert len(packed.shape().factors[largest]) == 2  # rows and columns


def test_a_plan_is_that_of_the_public_moments() -> None:
    net = model()
    inputs, targets = examples(16, seed=9)
    wanted = Moments.average(
        measure(GradientMessage(net, cross_entropy, targets[i : i + 4]), inputs[i : i + 4], "exact")
        for i in range(0, 16, 4)
    )
    levels = planner(share=1.0).plan(1, net).shape().levels(trainable_parameters(net))
    expected = factored_shape(wanted).levels(trainable_parameters(net))
    middle = {n: (levels[n] / expected[n]).log2().abs().max() for n in levels}
    assert max(map(float, middle.values())) < 0.5  # "auto" estimates


def test_it_plans_every_so_many_rounds_and_the_same_for_the_same_round() -> None:
    one, other, net = planner(refresh_every=3), planner(refresh_every=3), model()
    packed = [one.plan(number, net) for number in range(1, 8)]
    assert [packed.index(p) for p in packed] == [0, 0, 0, 3, 3, 3, 6]
    assert torch.equal(other.plan(4, net).codes, packed[3].codes)


def test_fedavg_is_planned_for_the_updates_that_clients_send() -> None:
    local = LocalSteps(steps=2, lr=0.5)
    update = planner(local=local, share=1.0).plan(1, model())
    gradient = planner(share=1.0).plan(1, model())
    assert update.layout == gradient.layout
    assert float((update.means / gradient.means).log().std()) > 0.01


def test_clients_use_the_shape_and_other_defenses_do_not() -> None:
    served = FederatedRun(
        server(),
        [client(0, FromServer(OptimalNoise(0.1))), client(1, GradientNoise(0.1))],
        cross_entropy,
        planner=planner(),
    )
    row = served.step()
    first, second = served.clients[0].defense, served.clients[1].defense
    assert isinstance(first, FromServer)
    expected = planner().plan(1, model())
    assert first.shape is not None
    assert row.shape_bytes == expected.size
    for name, parts in expected.shape().factors.items():
        assert all(map(torch.equal, parts, first.shape.factors[name]))
    assert second == GradientNoise(0.1)
    assert run().step().shape_bytes is None


def served_run(refresh_every: int = 3) -> FederatedRun:
    options = {"fraction": 0.7, "planner": planner(refresh_every=refresh_every)}
    return run(FromServer(OptimalNoise(0.05)), clients=3, **options)


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_run_continues_with_the_same_bytes(stop: int, tmp_path: Path) -> None:
    whole, first, second = served_run(), served_run(), served_run()
    whole.run(8)
    first.run(stop, folder=tmp_path)
    assert second.resume(tmp_path) is None
    second.run(8)
    assert_same(whole.server.model.state_dict(), second.server.model.state_dict())
    csv = whole.history.to_csv(times=False)
    assert second.history.to_csv(times=False) == csv
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
        (lambda: planner(share=2.0), "share"),
        (lambda: planner(seed=-1), "seed"),
        (lambda: planner(local=0.1), "local"),
        (lambda: planner().plan(0, model()), "number"),
        (lambda: run(planner=examples(4)), "planner"),
    ],
)
def test_arguments_are_checked(make: Any, word: str) -> None:
    with pytest.raises((TypeError, ValueError), match=word):
        make()
