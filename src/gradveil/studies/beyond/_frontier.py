"""What attackers find against the loss at the end of a real training, for all defenses."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradveil._drawing import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY
from gradveil.studies.figures import MSE, Row, bars, figure, no_cells, one_scale
from gradveil.studies.runner import Cell, Entry, Results, Table
from gradveil.studies.shared import (
    ATTACKERS,
    FRONTIER,
    LAYERS,
    NO_PLAN,
    PRIVATE,
    PUBLIC,
    Contender,
    Pair,
    attacker_of,
    contender_of,
    final_losses,
    grouped,
    label_of,
    number,
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
ERRORS = (*ATTACKERS, *(f"{name}_psnr" for name in ATTACKERS))

LOOKS: dict[tuple[str, str], dict[str, Any]] = {
    ("no-defense", NO_PLAN): {"color": BLACK, "marker": "x"},
    ("dpsgd", NO_PLAN): {"color": RED, "marker": "^"},
    ("optimal-dpsgd", PUBLIC): {"color": GREEN, "marker": "D"},
    ("optimal-dpsgd", LAYERS): {"color": GREEN, "marker": "s", "ls": "--"},
    ("optimal-dpsgd", PRIVATE): {"color": GREEN, "marker": "D", "ls": ":", "mfc": "white"},
    ("gradient-noise", NO_PLAN): {"color": RED, "marker": "v", "ls": "--"},
    ("optimal-noise", PUBLIC): {"color": SKY, "marker": "D", "ls": "--"},
    ("laplace-noise", NO_PLAN): {"color": PURPLE, "marker": "P"},
    ("gradient-pruning", NO_PLAN): {"color": ORANGE, "marker": "o"},
    ("optimal-pruning", PUBLIC): {"color": BLUE, "marker": "s"},
    ("optimal-pruning", PRIVATE): {"color": BLUE, "marker": "s", "ls": ":", "mfc": "white"},
    ("sign-compression", NO_PLAN): {"color": BLACK, "marker": "*"},
}


@dataclass(frozen=True)
class FrontierStudy:
    """Three attackers and `Identify` on all defenses, beside the loss after federated training."""

    name: str = "frontier"
    title: str = "MNIST: what attackers find against the loss after training, all defenses"
    figure: str = "beyond the paper"

    def cells(self, preset: str) -> list[Cell]:
        """Trainings, attacks and trials of identification for each defense, plan and level."""
        return FRONTIER[preset].cells()

    def numbers(self, results: Results) -> Table:
        """A row for each defense, plan and level: its loss, and what each attacker found."""
        trained = grouped(select(results, "training"), contender_of)
        told = grouped(select(results, "identification"), contender_of)
        attacks = {
            name: grouped(
                (p for p in select(results, "attack") if attacker_of(p[0]) == name), contender_of
            )
            for name in ATTACKERS
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
                *_identified(told.get(contender, [])),
            )
            for contender in sorted(seen, key=_order)
        ]
        return Table(_columns(), rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """A panel for each attacker: what he finds to the right, the loss upwards."""
        rows = table.as_dicts()
        with figure(path_stem, columns=2, rows=2, width=3.9, height=2.9) as (made, axes):
            for axis, name in zip(axes, (*ATTACKERS, IDENTIFIED), strict=True):
                mine = [r for r in rows if None not in (r["loss_mean"], r[f"{name}_mean"])]
                axis.set_title(ATTACKERS.get(name, TOLD_APART))
                axis.set_xlabel(f"{MSE}, matched" if name in ATTACKERS else "share of trials")
                if not mine:
                    no_cells(axis)
                for key in dict.fromkeys((str(r["defense"]), str(r["plan"])) for r in mine):
                    _curve(axis, [r for r in mine if (r["defense"], r["plan"]) == key], name, key)
                if name in ATTACKERS and mine and mine[0]["blank_mse"] is not None:
                    guess = number(mine[0]["blank_mse"])
                    axis.axvline(guess, color="0.5", ls=":", lw=1, label="blind guess")
                axis.set_ylabel("loss at the end of training")
            one_scale(axes)
            _one_range(axes[:-1])
            axes[-1].set_xlim(-0.03, 1.05)
            if any(axis.has_data() for axis in axes):
                handles, labels = axes[0].get_legend_handles_labels()
                made.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=7)


def _one_range(axes: "Sequence[Axes]") -> None:
    """The same errors from left to right in all panels of attackers."""
    ends = [axis.get_xlim()[1] for axis in axes if axis.has_data()]
    for axis in axes:
        axis.set_xlim(-0.03 * max(ends, default=1.0), max(ends, default=1.0))


def _curve(axis: "Axes", rows: Sequence[Row], name: str, key: tuple[str, str]) -> None:
    """The levels of one defense and plan; crosses are the intervals."""
    plan = f" ({key[1].replace('one level ', '')})" if key[1] else ""
    axis.errorbar(
        [number(r[f"{name}_mean"]) for r in rows],
        [number(r["loss_mean"]) for r in rows],
        xerr=bars(rows, name),
        yerr=bars(rows, "loss"),
        label=f"{label_of(key[0])}{plan}",
        elinewidth=0.5,
        lw=1,
        **LOOKS.get(key, {"color": "0.4", "marker": "."}),
    )


def _order(contender: Contender) -> tuple[int, float]:
    keys = [*LOOKS]
    name, plan, level = contender
    return (keys.index((name, plan)) if (name, plan) in keys else len(keys)), level or 0.0


def _means(pairs: list[Pair], *values: str) -> list[float | None]:
    return [summarise(pairs, value)[0] for value in values]


def _identified(pairs: list[Pair]) -> tuple[Entry, ...]:
    """The share of right answers with its interval, the number of trials, and the mean bits."""
    return *right_share(pairs), summarise(pairs, "bits")[0]


def _columns() -> dict[str, type]:
    columns: dict[str, type] = {"defense": str, "plan": str, "level": float}

    def add(name: str) -> None:
        columns.update({f"{name}_{part}": float for part in PARTS} | {f"{name}_n": int})

    add("loss")
    columns |= {"held_out_loss": float, "accuracy": float}
    for name in ERRORS:
        add(name)
    columns["blank_mse"] = float
    add(IDENTIFIED)
    return columns | {"bits": float}
