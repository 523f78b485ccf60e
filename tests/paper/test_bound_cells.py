"""Bounds that hold for real images, as cells."""

import pytest

from gradveil._tensors import flatten
from gradveil.theory import Bound
from paper import cells
from paper.cells import candidate_bound, learned_bound
from paper.study import cell_of
from tests.paper.test_cells import executed

CANDIDATES = {
    "data": "mnist",
    "model": "simple-conv-net",
    "start": 3,
    "candidates": 12,
    "population": {"start": 2100, "count": 400},
    "trials": 6,
    "seed": 0,
}
PUBLIC = {"start": 2000, "size": 1, "batches": 2}


@pytest.mark.parametrize(
    ("defense", "public"),
    [("gradient-noise(scale={})", None), ("optimal-noise(scale={}, source='private')", PUBLIC)],
)
def test_little_noise_tells_the_image_and_much_noise_tells_nothing(defense, public):
    common = {**CANDIDATES, "public": public}
    sure = candidate_bound({**common, "defense": defense.format(0.001)})
    assert sure["error"] < 1e-6
    assert all(sure["right"])
    blind = candidate_bound({**common, "defense": defense.format(1e4)})
    assert blind["error"] == pytest.approx(blind["blind_error"], rel=0.01)


def test_some_noise_leaves_some_error():
    found = candidate_bound({**CANDIDATES, "defense": "gradient-noise(scale=1.0)"})
    assert 1e-3 < found["error"] < 2 * found["blind_error"]


def test_a_candidate_bound_gives_the_same_bytes_twice():
    cell = cell_of("candidate_bound", {**CANDIDATES, "defense": "gradient-noise(scale=1.0)"})
    first, second = (executed(cell) for _ in range(2))
    assert first == second


def test_too_few_candidates_are_an_error():
    few = {**CANDIDATES, "candidates": 400, "defense": "gradient-noise(scale=1.0)"}
    with pytest.raises(ValueError, match="fewer candidates"):
        candidate_bound(few)


def test_bounds_with_a_learned_prior_are_over_single_images_with_one_plan(monkeypatch):
    """Learning and dense bounds take minutes: both are replaced, what they are given is checked."""

    class Learned:
        def __init__(self, samples, labels, *, steps, generator):
            assert (len(samples), len(labels), steps) == (1000, 1000, 20)

        def covering(self, cases, generator):
            return [case.mechanism for case in cases]

    def bound(cases, prior, *, public_plan, probes, generator):
        assert public_plan
        assert [case.inputs.shape for case in cases] == [(1, 1, 28, 28)] * 8
        assert all(mechanism is prior[0] for mechanism in prior)
        error = float(flatten(prior[0].std).mean())
        return Bound(784 * error, error, "full", 0.0, "learned", True, 8, interval=(0.0, 1.0))

    monkeypatch.setattr(cells.LearnedPriors, "fit", Learned)
    monkeypatch.setattr(cells, "mean_bound", bound)
    specs = ["gradient-noise(scale=0.01)", "optimal-noise(scale=1.0, source='private')"]
    found = learned_bound(
        {
            "data": "mnist",
            "model": "simple-conv-net",
            "defenses": [[specs[0], None], [specs[1], PUBLIC]],
            "start": 0,
            "batches": 8,
            "prior": {"start": 2000, "count": 1000, "steps": 20},
            "probes": 4,
            "seed": 0,
        }
    )["bounds"]
    assert found[specs[0]] == {"bound": pytest.approx(0.01), "low": 0.0, "high": 1.0, "reason": ""}
    assert 0.1 < found[specs[1]]["bound"] < 1.0
