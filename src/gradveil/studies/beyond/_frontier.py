"""What attackers find against the loss at the end of a real training, for all defenses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gradveil.studies.figures import MSE, figure, frontier_panel, legend_below, one_scale
from gradveil.studies.runner import Cell, Entry, Results, Table
from gradveil.studies.shared import (
    ATTACKERS,
    FRONTIER,
    LAYERS,
    NO_PLAN,
    PHOTO_FRONTIER,
    PRIVATE,
    PUBLIC,
    Contender,
    Pair,
    attacker_of,
    contender_of,
    final_losses,
    grouped,
    plain_kinds,
    right_share,
    select,
    summarise,
    summary,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOLD_APART = "told apart from other candidates,\nrest of the batch known"
IDENTIFIED = "identified"
PARTS = ("mean", "low", "high")

ORDER = (
    ("no-defense", NO_PLAN),
    ("dpsgd", NO_PLAN),
    ("optimal-dpsgd", PUBLIC),
    ("optimal-dpsgd", LAYERS),
    ("optimal-dpsgd", PRIVATE),
    ("gradient-noise", NO_PLAN),
    ("optimal-noise", PUBLIC),
    ("laplace-noise", NO_PLAN),
    ("gradient-pruning", NO_PLAN),
    ("optimal-pruning", PUBLIC),
    ("optimal-pruning", PRIVATE),
    ("sign-compression", NO_PLAN),
)
"""Of defenses and plans, in tables and legends."""


class CellGrid(Protocol):
    """A preset of a frontier."""

    def cells(self) -> list[Cell]:
        """Its cells."""


@dataclass(frozen=True)
class FrontierStudy:
    """Attackers, and `Identify`, on defenses, beside the loss after federated training."""

    name: str = "frontier"
    title: str = "MNIST: what attackers find against the loss after training, all defenses"
    figure: str = "beyond the paper"
    grids: Mapping[str, CellGrid] = field(default_factory=lambda: FRONTIER)
    attackers: tuple[str, ...] = (*ATTACKERS,)
    identifies: bool = True

    def cells(self, preset: str) -> list[Cell]:
        """Trainings, attacks and trials of identification for each defense, plan and level."""
        return self.grids[preset].cells()

    def numbers(self, results: Results) -> Table:
        """A row for each defense, plan and level: its loss, and what each attacker found."""
        results = plain_kinds(results)
        trained = grouped(select(results, "training"), contender_of)
        told = grouped(select(results, "identification"), contender_of)
        attacks = {
            name: grouped(
                (p for p in select(results, "attack") if attacker_of(p[0]) == name), contender_of
            )
            for name in self.attackers
        }
        seen = dict.fromkeys([*trained, *told, *(c for found in attacks.values() for c in found)])
        rows = [
            (
                *contender,
                *summary(final_losses(trained.get(contender, []))),
                *_means(trained.get(contender, []), "held_out_loss", "accuracy"),
                *(e for f in attacks.values() for e in summarise(f.get(contender, []), "mse")),
                *(e for f in attacks.values() for e in summarise(f.get(contender, []), "psnr")),
                summarise(attacks["aware"].get(contender, []), "blank_mse")[0],
                *(_identified(told.get(contender, [])) if self.identifies else ()),
            )
            for contender in sorted(seen, key=_order)
        ]
        return Table(self._columns(), rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """A panel for each attacker: what he finds to the right, the loss upwards."""
        rows, panels = table.as_dicts(), (*self.attackers, *([IDENTIFIED] * self.identifies))
        columns = min(2, len(panels))
        size = {"columns": columns, "rows": len(panels) // columns}
        with figure(path_stem, **size, width=3.9, height=2.9) as (made, axes):
            for axis, name in zip(axes, panels, strict=True):
                axis.set_title(ATTACKERS.get(name, TOLD_APART))
                axis.set_xlabel(f"{MSE}, matched" if name in ATTACKERS else "share of trials")
                axis.set_ylabel("loss at the end of training")
                frontier_panel(axis, rows, name, guess=name in ATTACKERS)
            one_scale(axes)
            _one_range(axes[: len(self.attackers)])
            if self.identifies:
                axes[-1].set_xlim(-0.03, 1.05)
            if any(axis.has_data() for axis in axes):
                legend_below(made, axes, columns=3)

    def _columns(self) -> dict[str, type]:
        columns: dict[str, type] = {"defense": str, "plan": str, "level": float}

        def add(name: str) -> None:
            columns.update({f"{name}_{part}": float for part in PARTS} | {f"{name}_n": int})

        add("loss")
        columns |= {"held_out_loss": float, "accuracy": float}
        for name in (*self.attackers, *(f"{name}_psnr" for name in self.attackers)):
            add(name)
        columns["blank_mse"] = float
        if self.identifies:
            add(IDENTIFIED)
            columns["bits"] = float
        return columns


PHOTOS = FrontierStudy(
    "cifar-frontier",
    "CIFAR-10: what an attacker who knows the defense finds against the loss after training",
    grids=PHOTO_FRONTIER,
    attackers=("aware",),
    identifies=False,
)


def _one_range(axes: "Sequence[Axes]") -> None:
    """The same errors from left to right in all panels of attackers."""
    ends = [axis.get_xlim()[1] for axis in axes if axis.has_data()]
    for axis in axes:
        axis.set_xlim(-0.03 * max(ends, default=1.0), max(ends, default=1.0))


def _order(contender: Contender) -> tuple[int, float]:
    name, plan, level = contender
    known = (name, plan) in ORDER
    return ORDER.index((name, plan)) if known else len(ORDER), level or 0.0


def _means(pairs: list[Pair], *values: str) -> list[float | None]:
    return [summarise(pairs, value)[0] for value in values]


def _identified(pairs: list[Pair]) -> tuple[Entry, ...]:
    """The share of right answers with its interval, the number of trials, and the mean bits."""
    return *right_share(pairs), summarise(pairs, "bits")[0]
