"""Numbers of figures: pure functions of finished cells, whatever part of them is there."""

import math

import pytest
import torch
from scipy.stats import binomtest

from paper.numbers import defense_spec, name_and_level, right_share, summarise_loss, summary
from paper.reproduce import STUDIES
from paper.study import PRESETS, Study
from tests.paper.synthetic import synthetic_results

ALL = pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))

EXPECTED = [
    "mnist-pruning",
    "mnist-pruning-training",
    "mnist-pruning-tradeoff",
    "mnist-noise",
    "mnist-noise-training",
    "mnist-noise-tradeoff",
    "mnist-noise-images",
    "cifar-pruning-tradeoff",
    "cifar-pruning-images",
    "cifar-noise-tradeoff",
    "cifar-noise-utility",
    "cifar-noise-error",
    "mnist-layer-noise",
    "mnist-layer-table",
    "bound-against-attacks",
    "adaptive-pruning",
    "adaptive-noise",
    "cifar-adaptive-pruning",
    "cifar-adaptive-noise",
    "matching",
    "leakage-through-training",
    "estimator-share",
    "local-against-global",
    "plan-fingerprint",
    "public-plans",
    "fedavg",
    "utility-predicts-training",
    "private-training",
    "frontier",
    "cifar-frontier",
]


def test_every_figure_is_a_study():
    assert [*STUDIES] == EXPECTED
    assert all(isinstance(study, Study) for study in STUDIES.values())


@ALL
@pytest.mark.parametrize("preset", PRESETS)
def test_grids_have_no_cell_twice_and_name_known_kinds(study, preset):
    cells = study.cells(preset)
    assert cells
    assert len(set(cells)) == len(cells)
    assert study.cells(preset) == cells


@ALL
def test_numbers_come_from_any_part_of_the_cells(study):
    results = synthetic_results(study.cells("quick"))
    whole = study.numbers(results)
    assert whole.rows
    assert study.numbers(results).rows == whole.rows
    part = dict([*results.items()][: max(1, len(results) // 3)])
    study.numbers(part)
    assert study.numbers({}).rows == []


def test_intervals_hold_the_mean_and_count_batches_and_seeds():
    study = STUDIES["mnist-pruning"]
    rows = study.numbers(synthetic_results(study.cells("quick"))).where()
    for row in rows:
        assert row["low"] <= row["mean"] <= row["high"]
        assert row["n"] == 6


def test_a_planted_effect_is_in_the_numbers():
    study = STUDIES["mnist-pruning"]
    rows = study.numbers(synthetic_results(study.cells("quick"), effect=0.3)).where()
    means = {(r["defense"], r["level"]): r["mean"] for r in rows if r["metric"] == "mse"}
    gains = [means["optimal-pruning", x] - means["gradient-pruning", x] for x in (0.8, 0.9, 0.95)]
    assert gains == pytest.approx([0.3] * 3, abs=0.08)


def test_studies_share_cells():
    attacks = set(STUDIES["mnist-pruning"].cells("quick"))
    assert set(STUDIES["matching"].cells("quick")) >= attacks
    assert set(STUDIES["mnist-noise-images"].cells("quick")) <= set(
        STUDIES["mnist-noise"].cells("quick")
    )
    assert set(STUDIES["mnist-layer-noise"].cells("paper")) <= set(
        STUDIES["mnist-noise-training"].cells("paper")
    )


def test_the_paper_preset_has_the_papers_settings():
    cells = [c.settings for c in STUDIES["mnist-pruning"].cells("paper")]
    assert {s["start"] for s in cells} == {0, 16, 32, 48}
    assert {s["size"] for s in cells} == {16}
    assert {s["attack"] for s in cells} == {"paper(steps=2000)"}
    assert {s["data"] for s in cells} == {"mnist-test"}
    short = [c.settings for c in STUDIES["cifar-pruning-tradeoff"].cells("paper")]
    lrs = {s["lr"] for s in short if "lr" in s}
    assert lrs == {5e-5}
    assert {s["model"] for s in short} == {"conv-net(width=64)"}
    assert {s["start"] for s in short if "attack" in s} == {0, 2, 4, 6}


def test_a_single_batch_has_no_interval():
    found = summary({(0, 0): torch.tensor([1.0, 2.0])})
    assert found == (1.5, None, None, 1)
    assert summary({}) == (None, None, None, 0)


def test_losses_are_shown_without_what_seeds_start_with():
    pairs = [
        ({"start": 0, "seed": seed}, {"before": 2.0 + seed, "after": 1.0 + seed})
        for seed in range(4)
    ]
    found = summarise_loss(pairs)
    assert found == (2.5, 2.5, 2.5, 4)
    assert summarise_loss([]) == (None, None, None, 0)


def test_seeds_of_one_batch_make_an_interval():
    mean, low, high, _ = summary({(0, seed): torch.tensor([float(seed)]) for seed in range(5)})
    assert low < mean == 2.0 < high


@pytest.mark.parametrize("level", [0.8, 0.05, 1e-4, 0.002])
def test_levels_survive_the_specification(level):
    name = "optimal-pruning" if level >= 0.5 else "optimal-clamped-noise"
    assert name_and_level(defense_spec(name, level, "sketch(probes=10)")) == (name, level)
    assert name_and_level("no-defense") == ("no-defense", None)


def test_images_are_shown_in_the_order_of_the_truth():
    study = STUDIES["cifar-pruning-images"]
    table = study.numbers(synthetic_results(study.cells("quick")))
    assert table.arrays["originals"].shape == (4, 3, 32, 32)
    assert len(table.rows) == 8
    assert all(math.isfinite(float(row[-1])) for row in table.rows)


def identified(*draws: list[bool]):
    return [({"start": place, "seed": 0}, {"right": draw}) for place, draw in enumerate(draws)]


def test_the_interval_of_a_share_holds_what_draws_of_candidates_differ_in():
    """Fifty trials with one draw are no fifty draws."""
    apart, alike = ([[True] * k + [False] * (50 - k) for k in ks] for ks in ([5, 10, 15], [10] * 3))
    for draws in (apart, alike):
        assert right_share(identified(*draws))[::3] == (0.2, 150)
    low, high = right_share(identified(*apart))[1:3]
    assert low == pytest.approx(0.0)  # Student's, over three draws: 0.2 ± 0.25
    assert high == pytest.approx(0.2 + 4.303 * 0.1 / math.sqrt(3), abs=1e-3)
    of_trials = binomtest(30, 150).proportion_ci(method="exact")
    assert right_share(identified(*alike))[1:3] == pytest.approx(tuple(of_trials))


def test_one_draw_has_the_interval_of_its_trials():
    of_trials = binomtest(5, 50).proportion_ci(method="exact")
    found = right_share(identified([True] * 5 + [False] * 45))
    assert found[1:3] == pytest.approx(tuple(of_trials))
    assert right_share([]) == (None, None, None, 0)
