"""What a model learns under (ε, δ): shaped noise, isotropic noise, and Opacus."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradveil._drawing import BLUE, GREEN, ORANGE
from gradveil.studies.figures import (
    Row,
    apart,
    figure,
    legend_below,
    level_curve,
    mark_levels,
    no_cells,
)
from gradveil.studies.runner import Cell, Results, Settings, Table
from gradveil.studies.shared import (
    PRIVATE_TRAINING,
    Units,
    grouped,
    number,
    select,
    summarise,
    summary,
    units_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLAIN, ISOTROPIC = "plain", "isotropic"
LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    ISOTROPIC: ("isotropic noise (DP-SGD)", {"color": BLUE, "marker": "o", "ls": "-"}),
    "shaped": ("noise shaped by public examples", {"color": GREEN, "marker": "D", "ls": "--"}),
    "opacus": ("Opacus", {"color": ORANGE, "marker": "s", "ls": ":"}),
}
PANELS = {
    "accuracy": "held-out accuracy",
    "loss": "held-out loss (nats)",
    "difference": "loss less that of\nisotropic noise (nats)",
}


@dataclass(frozen=True)
class PrivateTrainingStudy:
    """Loss and accuracy at equal ε, by the way to a private gradient."""

    name: str = "private-training"
    title: str = "MNIST: what is learned under (ε, δ), shaped noise beside isotropic and Opacus"
    figure: str = "beyond the paper"

    def cells(self, preset: str) -> list[Cell]:
        """Every way, ε and seed, and a training without privacy."""
        return PRIVATE_TRAINING[preset].cells()

    def numbers(self, results: Results) -> Table:
        """Means over seeds with intervals; differences of losses are paired by seed."""
        groups = grouped(select(results, "private-training"), _key)
        rows = []
        for (way, epsilon), pairs in sorted(groups.items(), key=lambda g: (g[0][0], g[0][1] or 0)):
            multiplier = pairs[0][1]["noise_multiplier"]
            theirs = pairs[0][1]["epsilon_opacus"]
            known = (way, epsilon, multiplier, theirs)
            rows += [(*known, name, *summarise(pairs, name)) for name in ("accuracy", "loss")]
            base = groups.get((ISOTROPIC, epsilon), [])
            paired = _differences(units_of(pairs, "loss"), units_of(base, "loss"))
            if way not in (PLAIN, ISOTROPIC) and paired:
                rows.append((*known, "difference", *summary(paired)))
        columns = {"way": str, "level": float, "noise_multiplier": float, "epsilon_opacus": float}
        numbers = {"mean": float, "low": float, "high": float, "n": int}
        return Table({**columns, "metric": str, **numbers}, rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """Accuracy, loss, and differences of losses, against ε."""
        rows = table.as_dicts()
        with figure(path_stem, columns=3, width=2.8) as (made, axes):
            for axis, (metric, label) in zip(axes, PANELS.items(), strict=True):
                mine = [row for row in rows if row["metric"] == metric]
                axis.set(xlabel="ε (smaller protects more)", ylabel=label)
                if not mine:
                    no_cells(axis)
                    continue
                _draw_panel(axis, mine)
                if metric == "difference":
                    axis.axhline(0.0, color=BLUE, lw=1)
            legend_below(made, axes)


def _draw_panel(axis: "Axes", rows: list[Row]) -> None:
    for place, (way, (label, style)) in enumerate(LOOKS.items()):
        curve = [row for row in rows if row["way"] == way]
        if curve:
            level_curve(axis, curve, label, aside=apart(place, len(LOOKS)), **style)
    for row in (row for row in rows if row["way"] == PLAIN):
        axis.axhline(number(row["mean"]), color="0.4", ls="-.", lw=1.1, label="not private")
    levels = sorted({number(row["level"]) for row in rows if row["level"] is not None})
    if levels:
        mark_levels(axis, levels, percent=False)


def _key(settings: Settings) -> tuple[str, float | None]:
    return settings["way"], settings["epsilon"]


def _differences(own: Units, base: Units) -> Units:
    return {unit: own[unit] - base[unit] for unit in own if unit in base}
