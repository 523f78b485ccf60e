"""Cells of elsewhere: all are taken, but for those whose images are to be shown."""

from contextlib import closing
from pathlib import Path

import pytest

from gradveil.studies.reproduce import STUDIES, take_known
from gradveil.studies.runner import Done, Store

SHARED, IMAGES = "cifar-pruning-tradeoff", "cifar-pruning-images"


@pytest.mark.parametrize(
    ("names", "runs", "lacking"),
    [([SHARED], True, 0), ([SHARED, IMAGES], True, 4), ([SHARED, IMAGES], False, 0)],
)
def test_only_cells_whose_images_are_to_be_shown_run_again(
    tmp_path: Path, names: list[str], runs: bool, lacking: int
):
    cells = STUDIES[SHARED].cells("quick")
    studies, done = [STUDIES[name] for name in names], [Done(c, {"mse": [1.0]}, 0.1) for c in cells]
    with closing(Store(tmp_path / "store")) as store:
        assert take_known(store, studies, "quick", done, runs=runs) == len(cells) - lacking


def test_a_figure_of_images_without_images_is_empty():
    cells = STUDIES[IMAGES].cells("quick")
    results = {cell: {"mse": [1.0], "psnr": [1.0], "assignment": [0]} for cell in cells}
    assert STUDIES[IMAGES].numbers(results).rows == []
