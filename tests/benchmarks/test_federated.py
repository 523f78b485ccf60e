"""The bench of a client's step measures what it says; it is never compared with seconds."""

from dataclasses import replace

import torch

from benchmarks.cases import Case
from benchmarks.federated import CHEAP, bench_federated, contenders, digit_cases
from gradveil import GradientNoise
from gradveil.data import Dataset
from tests.federated.small import examples, model


def test_rows_hold_every_contender_in_both_states() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(8, 1, 28, 28, generator=generator)
    data = Dataset(images, torch.arange(8), (0.5,), (0.5,), 10, "toy")
    cases = digit_cases(data, batch=2, trained=1)
    rows = bench_federated(cases, {"isotropic noise": GradientNoise(0.1)}, steps=1, repeats=1)
    assert [row.model for row in rows] == ["MNIST CNN, fresh", "MNIST CNN, after 1 steps"]
    assert all(row.step_ratio > 0 and row.defense == "isotropic noise" for row in rows)


def test_large_models_are_tried_with_what_costs_little() -> None:
    case = Case("toy", model(), *examples(4))
    every, few = (
        bench_federated([one], contenders(), steps=1, repeats=1)
        for one in (case, replace(case, graded=False))
    )
    assert [row.defense for row in every] == [*contenders()]
    assert tuple(row.defense for row in few) == CHEAP
