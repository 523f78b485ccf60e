"""The presets of the attacker who knows the defense on single photos."""

from dataclasses import replace

from ._grids import CIFAR, Grid, every
from ._grids_beyond import CHEAP, three_attackers


def _photos(grid: Grid, count: int, options: str) -> tuple[Grid, dict[str, dict[str, str]]]:
    """The first photos, one at a time, which the attack rebuilds where there is no defense."""
    aware = three_attackers("", options, ", finish=None")["aware"]
    scales = tuple(dict.fromkeys((grid.scales[0], grid.scales[-1], grid.large_scales[0])))
    single = replace(grid, size=1, starts=every(1, count), scales=scales)
    return replace(single, noise_seeds=()), {"aware": aware}


CIFAR_AWARE = {
    "quick": _photos(
        replace(CIFAR["quick"], ratios=(0.8, 0.9), scales=(1e-3,)),
        1,
        "steps=4, restarts=1, finish=None",
    ),
    "standard": _photos(CIFAR["standard"], 16, CHEAP),
    "paper": _photos(replace(CIFAR["paper"], ratios=(0.7, 0.8, 0.9)), 16, CHEAP),
}
