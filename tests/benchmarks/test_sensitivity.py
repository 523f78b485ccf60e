"""The bench measures what it says; its numbers are never compared with seconds."""

import torch
from torch import nn

from benchmarks.cases import Case, UpdateCase, peak_of
from benchmarks.sensitivity import PaperAlgorithm, bench_sensitivity, contenders
from gradveil import GradientMessage, measure
from gradveil._timing import time_ratios
from gradveil.models import build_model
from gradveil.sensitivity import Sketch


def tiny(kind: type[Case] = Case) -> Case:
    generator = torch.Generator().manual_seed(0)
    model = build_model("mlp", sizes=[6, 8, 3])
    return kind("tiny", model, torch.randn(4, 6, generator=generator), torch.tensor([0, 1, 2, 0]))


def test_rows_hold_every_contender_and_their_worth():
    rows = bench_sensitivity([tiny()], contenders(), repeats=1, draws=2, reference_probes=20)
    found = {row.estimator: row for row in rows}
    assert found.keys() == contenders().keys()
    assert all(row.time_ratio > 0 and row.peak_memory_ratio > 0 for row in rows)
    shares = {name: row.share_of_optimum for name, row in found.items()}
    assert all(0 < share <= 1 for share in shares.values())
    assert shares["auto"] > shares["isotropic noise"]


def test_updates_are_measured_by_what_can_measure_them():
    case = tiny(UpdateCase)
    rows = bench_sensitivity([case], contenders(), repeats=1, draws=1, reference_probes=5)
    assert {row.estimator for row in rows} == {
        "isotropic noise",
        "sketch, 10 probes",
        "auto",
        "auto, one level per layer",
        "from the model",
    }


def test_the_paper_row_is_the_papers_algorithm():
    """The same probes give the same estimate as `Sketch`, which another test holds to the paper."""
    case = tiny()
    paper, sketch = (
        measure(case.message, case.inputs, e, generator=torch.Generator().manual_seed(3))
        for e in (PaperAlgorithm(5), Sketch(5))
    )
    for name, squares in sketch.known_squared_sensitivities.items():
        torch.testing.assert_close(paper.known_squared_sensitivities[name], squares)


def test_ratios_are_to_the_baseline():
    calls = []
    ratios = time_ratios(
        lambda: calls.append("base"), {"one": lambda: calls.append("one")}, repeats=3
    )
    assert ratios.keys() == {"one"}
    assert calls == ["base", "one"] + 3 * ["base", "one"]


def test_peak_memory_counts_what_is_alive_at_once():
    def job() -> None:
        for _ in range(5):
            torch.ones(1000).add(1.0)

    assert 8000 <= peak_of(job) < 8100  # an operation's own scratch space counts, too


def test_peak_memory_does_not_count_views_and_what_was_there():
    old = torch.ones(1000)
    assert peak_of(lambda: old.view(10, 100).t().add_(1.0)) < 100


def test_the_model_of_a_case_is_left_alone():
    case = tiny(UpdateCase)
    before = [p.clone() for p in case.model.parameters()]
    case.plain_gradient()
    for old, new in zip(before, case.model.parameters(), strict=True):
        assert torch.equal(old, new)
    assert isinstance(tiny().message, GradientMessage)
    assert isinstance(case.model, nn.Module)
