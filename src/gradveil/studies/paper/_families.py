"""The two pairs of defenses that the paper compares, and where each of its figures is."""

from gradveil.studies.figures import RATIO, SCALE
from gradveil.studies.shared import CIFAR, MNIST, NOISE, PRUNING, Grid, label_of

GRIDS = {"MNIST": MNIST, "CIFAR-10": CIFAR}
NAMES = {"pruning": PRUNING, "noise": NOISE}
AXES = {"pruning": RATIO, "noise": SCALE}
PAIRS = {family: " and ".join(map(label_of, names)) for family, names in NAMES.items()}

FIGURES = {
    "mnist-pruning": "Figure 2",
    "mnist-pruning-training": "Figure 3",
    "mnist-pruning-tradeoff": "Figure 4",
    "mnist-noise": "Figure 5",
    "mnist-noise-training": "Figure 6",
    "mnist-noise-tradeoff": "Figure 7",
    "mnist-noise-images": "Figure 8",
    "cifar-pruning-tradeoff": "Figure 9",
    "cifar-pruning-images": "Figure 10",
    "cifar-noise-tradeoff": "Figure 11",
    "cifar-noise-utility": "Figure 12 (appendix)",
    "cifar-noise-error": "Figure 13 (appendix)",
    "mnist-layer-table": "Table 1 (appendix)",
    "mnist-layer-noise": "Figure 14 (appendix)",
}


def levels(grid: Grid, family: str, large: bool = False) -> tuple[float, ...]:
    """The ratios or the scales of a grid, with the appendix's larger scales if asked for."""
    if family == "pruning":
        return grid.ratios
    return (*grid.scales, *grid.large_scales) if large else grid.scales
