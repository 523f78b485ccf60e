"""Beyond the paper: attackers who know the defense, bounds, leakage through training, matching."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gradveil._drawing import BLACK, BLUE, ORANGE
from gradveil._runner import Cell, Settings
from gradveil.catalog import Spec, build_attack
from gradveil.scoring import against_guess, gain_over_guess

from .figures import (
    BLANK,
    COLOURS,
    DASHES,
    LINES,
    MARKERS,
    MSE,
    OTHERS,
    Row,
    apart,
    bars,
    blank_errors,
    blind_guess,
    figure,
    legend_below,
    level_curve,
    mark_levels,
    move_aside,
    no_cells,
    one_scale,
)
from .grids import (
    AWARE,
    BOUND,
    CIFAR,
    CIFAR_AWARE,
    HONEST,
    LEAKAGE,
    MNIST,
    NOISE,
    PRUNING,
    BoundGrid,
    Grid,
    HonestGrid,
    LeakageGrid,
    attacker_of,
    attackers,
)
from .numbers import (
    ATTACKERS,
    Pair,
    defense_spec,
    grouped,
    is_optimal,
    is_pruning,
    label_of,
    name_and_level,
    nested,
    number,
    right_share,
    select,
    summarise,
    units_of,
)
from .studies_paper import AXES, NAMES, PAIRS, levels
from .study import MEANS, Results, Study, Table, cell_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNDEFENDED = "no-defense"
METRICS = ("mse", "psnr", "ssim", "unmatched_mse", BLANK)
HEADROOM = 1.4
"""Errors are shown at least up to so many times that of a blind guess: pruning and noise have one
range where no error is above it, as on photos."""


@dataclass(frozen=True)
class AdaptiveStudy(Study):
    """Three attackers on the same batches: the paper's, a tuned one, one that knows the defense."""

    family: str = "noise"
    data: str = "MNIST"

    @property
    def title(self) -> str:
        """What it shows."""
        return f"{self.data}: {PAIRS[self.family]} against an attacker who knows the defense"

    def cells(self, preset: str) -> list[Cell]:
        """Each attacker on each defense, level, batch and seed, and without a defense.

        All attackers on one batch come before the next batch. Photos may be attacked on another
        model than in the paper's trade-offs, so short trainings of it, at the levels of these, are
        there for claims at equal loss.
        """
        if self.data == "MNIST":
            return self._attacks(AWARE[preset], attackers(preset))
        grid, chosen = CIFAR_AWARE[preset]
        traded = levels(CIFAR[preset], self.family)
        short = grid.short_cells(grid.levels(NAMES[self.family], traded))
        return [*self._attacks(grid, chosen), *short]

    def _attacks(self, grid: Grid, chosen: Mapping[str, Mapping[str, str]]) -> list[Cell]:
        specs = [UNDEFENDED, *grid.levels(NAMES[self.family], levels(grid, self.family))]
        cells = [cell for each in chosen.values() for cell in grid.attack_cells(specs, **each)]
        return sorted(cells, key=lambda cell: (cell.settings["seed"], cell.settings["start"]))

    def numbers(self, results: Results) -> Table:
        """Means of each attacker, defense and level with intervals."""
        cells = grouped(
            select(results, "attack"), lambda s: (attacker_of(s), *name_and_level(s["defense"]))
        )
        rows = [
            (*key, metric, *summarise(cells[key], metric))
            for metric in METRICS
            for key in sorted(cells, key=lambda k: (k[0], k[1], k[2] or 0.0))
        ]
        return Table(("attacker", "defense", "level", "metric", *MEANS), rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """A panel for each attacker, on one scale; of photos there is the last one alone."""
        rows = [row for row in table.as_dicts() if row["metric"] == "mse"]
        blanks = blank_errors(table)
        shown = {
            name: ATTACKERS[name] for name in (ATTACKERS if self.data == "MNIST" else ("aware",))
        }
        width = 2.6 if len(shown) > 1 else 3.4
        with figure(path_stem, columns=len(shown), width=width) as (made, axes):
            for axis, (attacker, title) in zip(axes, shown.items(), strict=True):
                mine = [row for row in rows if row["attacker"] == attacker]
                axis.set(title=title)
                if not mine:
                    no_cells(axis)
                    continue
                for place, name in enumerate(NAMES[self.family]):
                    curve = [row for row in mine if row["defense"] == name]
                    style = {"color": COLOURS[name], "marker": MARKERS[name], "ls": LINES[name]}
                    level_curve(axis, curve, label_of(name), aside=apart(place, 2), **style)
                blind_guess(axis.axhline, blanks)
                mark_levels(
                    axis,
                    sorted({number(r["level"]) for r in mine if r["level"] is not None}),
                    self.family == "pruning",
                )
            axes[0].set_ylabel(MSE.replace(" (", "\n(matched, "))
            axes[len(axes) // 2].set_xlabel(AXES[self.family])
            if rows:
                one_scale(axes, bottom=0.0, least_top=HEADROOM * max(blanks, default=0.0))
                legend_below(made, axes)


NOISES = ("gradient-noise", "optimal-noise")
MODEL = "simple-conv-net"
THE_BOUND, PRIOR_MEAN = "bound", "prior mean"
CANDIDATES, LEARNED = "candidates", "learned"
FLOOR = 1e-4
"""Smaller errors, which for candidates are mostly 0, are drawn here."""

BoundKey = tuple[str, str, float | None]


@dataclass(frozen=True)
class BoundStudy(Study):
    """Single images under noise whose plan is public, so that bounds count all that is sent.

    The Gaussian bound is a reference: real images are not Gaussian. What holds for them is the
    exact error of an attacker who is told candidates, the truth among them.
    """

    name: str = "bound-against-attacks"
    title = "MNIST: the lower bound beside the errors of attacks"

    def cells(self, preset: str) -> list[Cell]:
        """The bounds and every attack for each image, defense and scale."""
        grid, honest = BOUND[preset], HONEST[preset]
        defenses = [defense_spec(name, scale) for scale in grid.scales for name in NOISES]
        cells = [
            cell
            for start in grid.starts
            for defense in defenses
            for cell in _bound_cells(grid, honest, start, defense)
        ]
        more = [scale for scale in honest.scales if scale not in grid.scales]
        cells += [
            _candidates(grid, honest, start, defense_spec(name, scale))
            for start in grid.starts
            for scale in more
            for name in NOISES
        ]
        return [*cells, *_learned(grid, honest, defenses)]

    def numbers(self, results: Results) -> Table:
        """Mean squared errors per entry, of the bounds, of attacks and of the prior's mean."""
        groups: dict[BoundKey, tuple[list[Pair], str]] = {}
        for key, pairs in grouped(select(results, "attack"), _bound_key).items():
            groups[key] = (pairs, "mse")
        for (_, name, level), pairs in grouped(select(results, "bound"), _bound_key).items():
            groups[(THE_BOUND, name, level)] = (pairs, "bound")
            groups[(PRIOR_MEAN, name, level)] = (pairs, "prior_variance")
        for (_, name, level), pairs in grouped(
            select(results, "candidate_bound"), _bound_key
        ).items():
            groups[(CANDIDATES, name, level)] = (pairs, "error")
        rows = [
            *((*key, *summarise(*groups[key])) for key in sorted(groups, key=_bound_order)),
            *_learned_rows(results),
        ]
        return Table(("what", "defense", "level", *MEANS), rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """A panel for each kind of noise: the bound in black, attacks in colours."""
        rows = table.as_dicts()
        with figure(path_stem, columns=2, height=3.1) as (_, axes):
            for axis, name in zip(axes, NOISES, strict=True):
                mine = [row for row in rows if row["defense"] == name]
                axis.set(title=label_of(name), xlabel="noise scale (root mean square)")
                if not mine:
                    no_cells(axis)
                    continue
                for place, (what, (label, style)) in enumerate(LOOKS.items()):
                    curve = [_above_floor(row) for row in mine if row["what"] == what]
                    if curve:
                        aside = apart(place, len(LOOKS), points=1.6)
                        level_curve(axis, curve, label, aside=aside, **{"lw": 1.0, **style})
                mark_levels(axis, sorted({number(r["level"]) for r in mine}), percent=False)
                axis.set_yscale("log")
            one_scale(axes)
            axes[0].set_ylabel("MSE per pixel (normalised units)")
            if rows:
                axes[1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))


def _bound_cells(grid: BoundGrid, honest: HonestGrid, start: int, defense: str) -> list[Cell]:
    common = _common(grid, start, defense)
    attacks = [
        {"attack": a, "mechanism": "known" if build_attack(a).knows_defense else "unknown"}
        for a in grid.attacks
    ]
    bound = cell_of("bound", {**common, "prior_samples": grid.prior_samples})
    candidates = _candidates(grid, honest, start, defense)
    return [bound, candidates, *(cell_of("attack", {**common, **attack}) for attack in attacks)]


def _candidates(grid: BoundGrid, honest: HonestGrid, start: int, defense: str) -> Cell:
    choice = {
        "candidates": honest.candidates,
        "trials": honest.trials,
        "population": honest.population,
    }
    return cell_of("candidate_bound", {**_common(grid, start, defense), **choice})


def _common(grid: BoundGrid, start: int, defense: str) -> dict[str, Any]:
    """One image under one defense, whose plan is public."""
    common: dict[str, Any] = {
        "data": grid.data,
        "model": MODEL,
        "start": start,
        "size": 1,
        "defense": defense,
        "seed": 0,
    }
    return {**common, "public": grid.public} if is_optimal(defense) else common


def _learned(grid: BoundGrid, honest: HonestGrid, defenses: list[str]) -> list[Cell]:
    """One cell for all defenses, which share what is learned."""
    if honest.learned is None:
        return []
    planned = [[each, grid.public if is_optimal(each) else None] for each in defenses]
    common = {"data": grid.data, "model": MODEL, "defenses": planned}
    return [cell_of("learned_bound", {**common, **honest.learned})]


def _learned_rows(results: Results) -> Iterator[tuple[Any, ...]]:
    for settings, result in select(results, "learned_bound"):
        for defense, found in result["bounds"].items():
            ends = (found["bound"], found["low"], found["high"], settings["batches"])
            yield (LEARNED, *name_and_level(defense), *ends)


def _above_floor(row: Row) -> Row:
    """The row with nothing below what a logarithmic axis shows."""
    ends = {name: row[name] for name in ("mean", "low", "high")}
    return {**row, **{n: None if e is None else max(number(e), FLOOR) for n, e in ends.items()}}


def _bound_order(key: BoundKey) -> tuple[bool, str, str, float]:
    return key[0] != THE_BOUND, key[0], key[1], key[2] or 0.0


def _bound_key(settings: Settings) -> BoundKey:
    return (
        Spec.parse(settings.get("attack", THE_BOUND)).name,
        *name_and_level(settings["defense"]),
    )


LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    PRIOR_MEAN: ("guessing the\nprior's mean", {"color": "0.5", "ls": ":", "marker": ""}),
    THE_BOUND: ("reference\n(Gaussian prior)", {"color": BLACK, "lw": 2.2, "marker": "_"}),
    LEARNED: ("learned prior\n(errs upwards)", {"color": BLACK, "ls": "--", "marker": "x"}),
    CANDIDATES: (
        "bound that holds:\nbest of all attackers\nwith candidates\n(0 is drawn at 10⁻⁴)",
        {"color": BLACK, "ls": (0, (1, 1)), "lw": 2.2, "marker": "*", "markersize": 7},
    ),
    "paper": ("Inverting Gradients\n(paper)", {"color": OTHERS[1], "marker": "o"}),
    "strong": ("Inverting Gradients\n(tuned)", {"color": OTHERS[0], "marker": "s", "ls": "--"}),
    "adaptive": ("adaptive\n(knows the defense)", {"color": OTHERS[2], "marker": "D"}),
    "dlg": ("DLG", {"color": OTHERS[3], "marker": "^", "ls": "-."}),
    "idlg": ("iDLG", {"color": OTHERS[4], "marker": "v", "ls": "--"}),
    "grad-inversion": ("GradInversion", {"color": OTHERS[5], "marker": "P", "ls": "-."}),
}
"""The label and the style of each curve, in the order of the legend."""


UNDEFENDED = "no-defense"
IDENTIFY = "candidates"
STAGED = {
    "unaware": "attack that does not\nknow the defense",
    "aware": "attack that knows\nthe defense",
    IDENTIFY: "right one of the candidates,\nrest of the batch known",
}

LeakageKey = tuple[str, int, str, float | None]
"""Attacker, steps of training, defense and its level."""


@dataclass(frozen=True)
class LeakageStudy(Study):
    """The same batches, attacked as they are sent before, early and late in a training."""

    name: str = "leakage-through-training"
    title = "MNIST: what is recovered, against the steps of training"

    def cells(self, preset: str) -> list[Cell]:
        """Both attackers and the candidates, for each stage and defense; the first batch first."""
        grid = LEAKAGE[preset]
        each = [
            _leakage_cells(grid, trained, defense, public)
            for trained in grid.trained
            for defense, public in grid.defenses.items()
        ]
        return [cell for cells in zip_longest(*each) for cell in cells if cell is not None]

    def numbers(self, results: Results) -> Table:
        """Errors and shares with intervals, the blind guess's, and whether the attack can judge."""
        rows: list[tuple[Any, ...]] = []
        attacks = grouped(select(results, "attack"), _leakage_key)
        for key, pairs in sorted(attacks.items(), key=_leakage_order):
            undefended = attacks.get((key[0], key[1], UNDEFENDED, None), [])
            guess = summarise(pairs, "blank_mse")[0]
            rows.append((*key, "mse", *summarise(pairs, "mse"), guess, _judges(undefended)))
        found = grouped(select(results, "identification"), _leakage_key)
        for key, pairs in sorted(found.items(), key=_leakage_order):
            chance = 1 / pairs[0][0]["candidates"]
            rows.append((*key, "share", *right_share(pairs), chance, True))
        columns = ("attacker", "trained", "defense", "level", "metric")
        return Table((*columns, *MEANS, "guess", "judges"), rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """A panel for each attacker; where it cannot judge, the panel is grey and says so."""
        rows = table.as_dicts()
        with figure(path_stem, columns=3, width=2.8, height=3.0) as (made, axes):
            for axis, (attacker, title) in zip(axes, STAGED.items(), strict=True):
                mine = [row for row in rows if row["attacker"] == attacker]
                axis.set(title=title, xlabel="steps of training")
                if not mine:
                    no_cells(axis)
                    continue
                _draw_panel(axis, mine)
            axes[0].set_ylabel(MSE.replace(" (", "\n(matched, "))
            axes[2].set(ylabel="share of trials", ylim=(-0.04, 1.06))
            one_scale(axes[:2], bottom=-0.05)
            legend_below(made, axes, columns=5)


def _leakage_cells(grid: LeakageGrid, trained: int, defense: str, public: Any) -> Iterator[Cell]:
    common = {
        "data": grid.data,
        "model": grid.model,
        "size": grid.size,
        "trained": trained,
        "defense": defense,
        "seed": 0,
    }
    planned = {"public": public} if public else {}
    for start in grid.starts:
        for attacker in grid.attackers:
            yield cell_of("attack", {**common, **attacker, **planned, "start": start})
    choice = {"candidates": grid.candidates, "one_class": True, "trials": grid.trials}
    for draw in range(grid.draws):
        own = {"examples": 2000, "public": public, "start": draw}
        yield cell_of("identification", {**common, **choice, **own})


def _leakage_key(settings: Settings) -> LeakageKey:
    attacker = IDENTIFY
    if "attack" in settings:
        attacker = "aware" if settings["mechanism"] == "known" else "unaware"
    return attacker, settings["trained"], *name_and_level(settings["defense"])


def _leakage_order(item: tuple[LeakageKey, list[Pair]]) -> tuple[int, bool, str, int]:
    attacker, trained, defense, _ = item[0]
    return [*STAGED].index(attacker), defense != UNDEFENDED, defense, trained


def _judges(undefended: list[Pair]) -> bool | None:
    """Whether the attack on the undefended message beats a blind guess; None if it was not run."""
    if not undefended:
        return None
    errors, guesses = (units_of(undefended, name) for name in ("mse", "blank_mse"))
    gains = {unit: gain_over_guess(errors[unit], guesses[unit]) for unit in errors}
    return against_guess(nested(gains), torch.Generator().manual_seed(0)).works


def _draw_panel(axis: "Axes", rows: list[Row]) -> None:
    stages = sorted({int(number(row["trained"])) for row in rows})
    names = list(dict.fromkeys(str(row["defense"]) for row in rows))
    for place, name in enumerate(names):
        mine = sorted((r for r in rows if r["defense"] == name), key=lambda r: number(r["trained"]))
        drawn = axis.errorbar(
            [stages.index(int(number(row["trained"]))) for row in mine],
            [number(row["mean"]) for row in mine],
            yerr=bars(mine),
            label=label_of(name),
            color=COLOURS[name],
            marker=MARKERS[name],
            ls=DASHES[place % len(DASHES)],
            capsize=2.5,
            elinewidth=0.9,
        )
        move_aside(axis, drawn, apart(place, len(names)))
    guesses = {int(number(row["trained"])): number(row["guess"]) for row in rows}
    axis.plot(
        range(len(stages)), [guesses[s] for s in stages], color="0.45", ls=":", label="blind guess"
    )
    for place, stage in enumerate(stages):
        if any(row["judges"] is False for row in rows if row["trained"] == stage):
            axis.axvspan(place - 0.4, place + 0.4, color="0.9", lw=0, zorder=0)
            axis.text(
                place, 0.03, "cannot judge", rotation=90, color="0.35", fontsize=7,
                ha="center", va="bottom", transform=axis.get_xaxis_transform(),
            )  # fmt: skip
    axis.set_xticks(range(len(stages)), [str(stage) for stage in stages])
    axis.set_xlim(-0.5, len(stages) - 0.5)


SCORES = {"unmatched_mse": "place by place (as in the paper)", "mse": "matched to the truth"}


@dataclass(frozen=True)
class MatchingStudy(Study):
    """MSE before and after the best assignment of images, for every MNIST attack of the paper."""

    name: str = "matching"
    title = "MNIST: what matching images to the truth changes"

    def cells(self, preset: str) -> list[Cell]:
        """The attacks of mnist-pruning and mnist-noise."""
        grid = MNIST[preset]
        specs = [*grid.levels(PRUNING, grid.ratios), *grid.levels(NOISE, grid.scales)]
        return grid.attack_cells(["no-defense", *specs])

    def numbers(self, results: Results) -> Table:
        """Both errors of each defense and level, and the share of images out of place."""
        cells = grouped(select(results, "attack"), lambda s: name_and_level(s["defense"]))
        rows = []
        order = ["no-defense", *PRUNING, *NOISE]
        for defense in sorted(cells, key=lambda d: (order.index(d[0]), d[1] or 0.0)):
            pairs = cells[defense]
            moved = [
                place != partner for _, r in pairs for place, partner in enumerate(r["assignment"])
            ]
            away = sum(moved) / len(moved)
            rows += [(*defense, score, *summarise(pairs, score), away) for score in SCORES]
        return Table(("defense", "level", "metric", *MEANS, "out_of_place"), rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """Two points for each defense and level."""
        rows = table.as_dicts()
        keys = list(dict.fromkeys((str(r["defense"]), r["level"]) for r in rows))
        with figure(path_stem, width=5.4, height=max(2.2, 0.22 * len(keys) + 0.9)) as (_, [axis]):
            if not rows:
                no_cells(axis)
                return
            for place, key in enumerate(reversed(keys)):
                self._points(axis, place, [r for r in rows if (r["defense"], r["level"]) == key])
            names = [_text(name, level) for name, level in reversed(keys)]
            axis.set_yticks(range(len(keys)), names)
            axis.set_xlabel(MSE)
            handles, labels = axis.get_legend_handles_labels()
            axis.legend(handles[:2], labels[:2], loc="best")

    def _points(self, axis: "Axes", place: int, rows: list[Row]) -> None:
        styles = {"unmatched_mse": (ORANGE, "o", 0.14), "mse": (BLUE, "s", -0.14)}
        for row in rows:
            colour, marker, shift = styles[str(row["metric"])]
            axis.errorbar(
                [number(row["mean"])],
                [place + shift],
                xerr=bars([row]),
                color=colour,
                marker=marker,
                ls="none",
                elinewidth=0.9,
                capsize=2,
                label=SCORES[str(row["metric"])],
            )


def _text(name: str, level: object) -> str:
    if not isinstance(level, (int, float)):
        return label_of(name)
    shown = f"{level * 100:g}%" if is_pruning(name) else f"{level:g}"
    return f"{label_of(name)} {shown}"


STUDIES: tuple[Study, ...] = (
    BoundStudy(),
    AdaptiveStudy("adaptive-pruning", family="pruning"),
    AdaptiveStudy("adaptive-noise", family="noise"),
    AdaptiveStudy("cifar-adaptive-pruning", family="pruning", data="CIFAR-10"),
    AdaptiveStudy("cifar-adaptive-noise", family="noise", data="CIFAR-10"),
    MatchingStudy(),
    LeakageStudy(),
)
