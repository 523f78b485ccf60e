"""Beyond the paper: FedAvg, leakage against loss, utilities, and training under (ε, δ)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from gradveil._drawing import BLUE, GREEN, ORANGE
from gradveil._runner import Cell, Settings

from .figures import (
    BLANK,
    COLOURS,
    MSE,
    OTHERS,
    Row,
    apart,
    bars,
    blank_errors,
    blind_guess,
    figure,
    frontier_panel,
    legend_below,
    level_curve,
    mark_levels,
    no_cells,
    one_scale,
)
from .grids import (
    FEDAVG,
    FRONTIER,
    LAYERS,
    NO_PLAN,
    PHOTO_FRONTIER,
    PREDICTION,
    PRIVATE,
    PRIVATE_TRAINING,
    PUBLIC,
    Contender,
    FedAvgGrid,
    attacker_of,
    contender_of,
)
from .numbers import (
    ATTACKERS,
    CHANCE,
    Pair,
    Runs,
    Units,
    defense_spec,
    final_losses,
    grouped,
    is_optimal,
    is_pruning,
    label_of,
    mean_correlation,
    name_and_level,
    number,
    right_share,
    select,
    summarise,
    summary,
    units_of,
)
from .study import MEANS, Entry, Results, Study, Table, cell_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATIO, NOISE = 0.9, 0.02
"""Of the entries; of the noise in units of lr · steps, the size of an update over a gradient."""

NAMES = ("gradient-pruning", "optimal-pruning", "gradient-noise", "optimal-noise")


def defenses(grid: FedAvgGrid) -> list[str]:
    """No defense, and each kind at one level."""
    scale = round(NOISE * grid.local["lr"] * grid.local["steps"], 12)
    levels = {name: RATIO if is_pruning(name) else scale for name in NAMES}
    return ["no-defense", *(defense_spec(name, level) for name, level in levels.items())]


@dataclass(frozen=True)
class FedAvgStudy(Study):
    """Attacks on weight changes after local steps, and FedAvg training with the same defenses."""

    name: str = "fedavg"
    title = "MNIST: the defenses on FedAvg updates"

    def cells(self, preset: str) -> list[Cell]:
        """Each defense on each batch, and in training with each seed."""
        grid = FEDAVG[preset]
        specs = defenses(grid)
        return [*grid.grid.attack_cells(specs, local=dict(grid.local)), *_trainings(grid, specs)]

    def numbers(self, results: Results) -> Table:
        """The attack's error and the loss at the end, with intervals."""
        attacks = grouped(select(results, "attack"), lambda s: name_and_level(s["defense"]))
        runs = grouped(select(results, "training"), lambda s: name_and_level(s["defense"]))
        summaries = [(key, "mse", summarise(pairs, "mse")) for key, pairs in attacks.items()]
        summaries += [(key, BLANK, summarise(pairs, BLANK)) for key, pairs in attacks.items()]
        summaries += [
            (key, "loss", summarise(pairs, "held_out_loss")) for key, pairs in runs.items()
        ]
        return Table(
            ("defense", "level", "metric", *MEANS), [(*key, name, *s) for key, name, s in summaries]
        )

    def draw(self, table: Table, path_stem: Path) -> None:
        """Errors to the left, losses to the right."""
        labels = {
            "mse": MSE.replace(" (", "\n(matched, "),
            "loss": "held-out loss after training (nats)",
        }
        names = ["no-defense", *NAMES]
        with figure(path_stem, columns=2, height=2.8) as (made, axes):
            for axis, (metric, label) in zip(axes, labels.items(), strict=True):
                rows = [row for row in table.as_dicts() if row["metric"] == metric]
                if not rows:
                    no_cells(axis)
                for row in rows:
                    name = str(row["defense"])
                    axis.errorbar(
                        [number(row["mean"])],
                        [-names.index(name)],
                        xerr=bars([row]),
                        color=COLOURS[name],
                        marker="o" if is_optimal(name) else "s",
                        capsize=2.5,
                        markersize=6,
                    )
                axis.set_yticks([-i for i in range(len(names))], [label_of(n) for n in names])
                axis.set_ylim(-len(names) + 0.5, 0.5)
                axis.set_xlabel(label)
            blanks = blank_errors(table)
            blind_guess(axes[0].axvline, blanks)
            if blanks:
                legend_below(made, axes)


def _trainings(grid: FedAvgGrid, specs: list[str]) -> list[Cell]:
    common = {
        "data": grid.grid.data,
        "model": grid.grid.model,
        "start": 0,
        "examples": 1024,
        "clients": 4,
        "batch_size": 8,
        "rounds": grid.rounds,
        "optimizer": "sgd",
        "lr": 1.0,
        "local_steps": grid.local["steps"],
        "local_lr": grid.local["lr"],
        "local_batch_size": grid.local["batch_size"],
        "held_out": 512,
        "held_out_start": 4352,
    }
    return [
        cell_of("training", {**common, "defense": spec, "seed": seed})
        for seed in grid.seeds
        for spec in specs
    ]


TOLD_APART = "told apart from other candidates,\nrest of the batch known"
IDENTIFIED = "identified"

ORDER = (
    ("no-defense", NO_PLAN),
    ("clamped-noise", NO_PLAN),
    ("optimal-clamped-noise", PUBLIC),
    ("optimal-clamped-noise", LAYERS),
    ("optimal-clamped-noise", PRIVATE),
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
class FrontierStudy(Study):
    """Attackers, and `Identify`, on defenses, beside the loss after federated training."""

    name: str = "frontier"
    title = "MNIST: what attackers find against the loss after training, all defenses"
    grids: ClassVar[Mapping[str, CellGrid]] = FRONTIER
    attackers: ClassVar[tuple[str, ...]] = (*ATTACKERS,)
    identifies: ClassVar[bool] = True

    def cells(self, preset: str) -> list[Cell]:
        """Trainings, attacks and trials of identification for each defense, plan and level."""
        return self.grids[preset].cells()

    def numbers(self, results: Results) -> Table:
        """A row for each defense, plan and level: its loss, and what each attacker found."""
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

    def _columns(self) -> list[str]:
        def means(*names: str) -> list[str]:
            return [f"{name}_{part}" for name in names for part in MEANS]

        found = means(*self.attackers, *(f"{name}_psnr" for name in self.attackers))
        told = [*means(IDENTIFIED), "bits"] if self.identifies else []
        trained = [*means("loss"), "held_out_loss", "accuracy"]
        return ["defense", "plan", "level", *trained, *found, BLANK, *told]


@dataclass(frozen=True)
class PhotoFrontierStudy(FrontierStudy):
    """The same for photos, and the attacker who knows the defense."""

    name: str = "cifar-frontier"
    title = "CIFAR-10: what an attacker who knows the defense finds against the loss after training"
    grids = PHOTO_FRONTIER
    attackers = ("aware",)
    identifies = False


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


COSTS = ("U2", "total power", "curvature", "Adam's step")
COMPARED = {
    "all": "all amounts of noise",
    "equal bound": "at equal trace bound",
    "learned": "the same, runs that learned nothing left out",
}


@dataclass(frozen=True)
class PredictionStudy(Study):
    """Spearman's correlation of utilities before training with the loss after it.

    Runs differ in the shape and the amount of their noise. More noise is worse by every utility;
    what a choice between defenses needs is the order of shapes at one trace bound.
    """

    name: str = "utility-predicts-training"
    title = "MNIST: which utility ranks defenses as the loss after training does"

    def cells(self, preset: str) -> list[Cell]:
        """Every shape, amount, optimizer and seed."""
        return PREDICTION[preset].cells()

    def numbers(self, results: Results) -> Table:
        """Mean correlations over groups of runs, with intervals."""
        rows = []
        by_optimizer = grouped(select(results, "training_prediction"), _optimizer)
        for optimizer, pairs in by_optimizer.items():
            for place, steps in enumerate(pairs[0][0]["steps"]):
                learned = [pair for pair in pairs if _loss(pair[1], place) < CHANCE]
                for compared in COMPARED:
                    mine = learned if compared == "learned" else pairs
                    groups = grouped(mine, _seed if compared == "all" else _prediction_key).values()
                    for cost in COSTS:
                        runs = [_runs(group, cost, place) for group in groups if len(group) > 2]
                        found = mean_correlation(runs)
                        rows.append((optimizer, steps, compared, cost, *found, len(mine)))
        return Table(("optimizer", "steps", "compared", "utility", *MEANS), rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """A panel for each optimizer: bars by utility, over all runs and over comparable ones."""
        rows = table.as_dicts()
        optimizers = list(dict.fromkeys(str(row["optimizer"]) for row in rows)) or [""]
        with figure(path_stem, columns=len(optimizers), width=3.0) as (made, axes):
            for axis, optimizer in zip(axes, optimizers, strict=True):
                mine = [row for row in rows if row["optimizer"] == optimizer]
                if not mine:
                    no_cells(axis)
                last = max((number(row["steps"]) for row in mine), default=0)
                for place, compared in enumerate(COMPARED):
                    shown = [r for r in mine if r["steps"] == last and r["compared"] == compared]
                    axis.bar(
                        [k + 0.28 * (place - 1) for k in range(len(shown))],
                        [number(row["mean"]) for row in shown],
                        0.26,
                        yerr=bars(shown) if shown else None,
                        color=OTHERS[place],
                        hatch=("", "//", "..")[place],
                        edgecolor="white",
                        ecolor="0.2",
                        capsize=2,
                        label=COMPARED[compared],
                    )
                axis.set_title(f"{optimizer}, after {last:g} steps" if mine else "")
                axis.set_xticks(range(len(COSTS)), [cost.replace(" ", "\n") for cost in COSTS])
                axis.set_ylim(-1, 1.05)
            axes[0].set_ylabel("rank correlation with the loss")
            legend_below(made, axes)


def _optimizer(settings: Settings) -> str:
    return str(settings["optimizer"])


def _prediction_key(settings: Settings) -> tuple[int, float]:
    """Only runs of one model, and of one trace bound, are compared."""
    return settings["seed"], settings["scale"]


def _seed(settings: Settings) -> tuple[int, float]:
    """Only runs of one model are compared."""
    return settings["seed"], 0.0


def _runs(pairs: list[Pair], cost: str, place: int) -> Runs:
    costs = torch.tensor([result["costs"][cost] for _, result in pairs])
    losses = torch.tensor([_loss(result, place) for _, result in pairs])
    return Runs(costs, losses, [str(settings["shape"]) for settings, _ in pairs])


def _loss(result: Mapping[str, Any], place: int) -> float:
    """Infinite where training diverged: worse than all others."""
    loss = result["losses"][place]
    return inf if loss is None or loss != loss else float(loss)


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
class PrivateTrainingStudy(Study):
    """Loss and accuracy at equal ε, by the way to a private gradient."""

    name: str = "private-training"
    title = (
        "MNIST, simulated: what is learned under (ε, δ), shaped noise beside isotropic and Opacus"
    )

    def cells(self, preset: str) -> list[Cell]:
        """Every way, ε and seed, and a training without privacy."""
        return PRIVATE_TRAINING[preset].cells()

    def numbers(self, results: Results) -> Table:
        """Means over seeds with intervals; differences of losses are paired by seed."""
        groups = grouped(select(results, "private_training"), _private_training_key)
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
        columns = ("way", "level", "noise_multiplier", "epsilon_opacus")
        return Table((*columns, "metric", *MEANS), rows)

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


def _private_training_key(settings: Settings) -> tuple[str, float | None]:
    return settings["way"], settings["epsilon"]


def _differences(own: Units, base: Units) -> Units:
    return {unit: own[unit] - base[unit] for unit in own if unit in base}


STUDIES: tuple[Study, ...] = (
    FedAvgStudy(),
    PredictionStudy(),
    PrivateTrainingStudy(),
    FrontierStudy(),
    PhotoFrontierStudy(),
)
