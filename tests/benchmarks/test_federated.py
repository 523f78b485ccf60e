"""The bench of rounds measures what it says; its numbers are never compared with seconds."""

import torch
from torch.nn.functional import cross_entropy

from benchmarks.cases import Case
from benchmarks.federated import Bare, bench_federated, bench_large_clients, contenders
from gradveil import GradientNoise, NoDefense
from gradveil.data import Dataset
from tests.federated.small import assert_same, client, examples, model


def test_rows_hold_every_contender_in_both_states() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(8, 1, 28, 28, generator=generator)
    data = Dataset(images, torch.arange(8), (0.5,), (0.5,), 10, "toy")
    defenses = {"isotropic noise": GradientNoise(0.1)}
    rows = bench_federated(data, defenses, clients=2, batch=2, rounds=1, trained=1, repeats=1)
    assert [row.model for row in rows] == ["MNIST CNN, fresh", "MNIST CNN, after 1 rounds"]
    assert all(row.time_ratio > 0 and row.defense == "isotropic noise" for row in rows)
    assert all(row.step_ratio > 0 for row in rows)


def test_clients_with_larger_models_are_timed_step_by_step() -> None:
    inputs, targets = examples(4)
    rows = bench_large_clients(repeats=1, cases=[Case("toy", model(), inputs, targets)])
    assert [row.defense for row in rows] == ["isotropic noise", "from the server"]
    assert all(row.time_ratio is None and row.step_ratio > 0 for row in rows)


def test_the_baseline_sends_the_plain_gradient() -> None:
    bare, none = (client(0, d).reply(model(), cross_entropy).values for d in (Bare(), NoDefense()))
    assert_same(bare, none)


def test_contenders_are_those_of_the_claim() -> None:
    assert {
        "isotropic noise",
        "from the server",
        "auto",
        "auto, one level per layer",
    } <= set(contenders())
