"""Bounds that hold for real images, as cells."""

import pytest

from paper.cells import candidate_bound
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
