"""Beyond the paper: attackers who know the defense, bounds, leakage through training, matching."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradveil._drawing import BLACK, BLUE, ORANGE
from gradveil._runner import Cell, Settings
from gradveil.catalog import Spec, build_attack

from . import figures, grids, numbers
from .measures import beats_guess
from .study import (
    MEANS,
    Entry,
    Results,
    Row,
    Study,
    Table,
    cell_of,
    first_batches_first,
    presets,
    product_cells,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNDEFENDED = "no-defense"
MATCHED_MSE = figures.MSE.replace(" (", "\n(matched, ")


def adaptive_cells(data: str, family: str, preset: str) -> list[Cell]:
    """Each attacker on each defense, level, batch and seed, and without a defense.

    Photos may be attacked on another model than in the paper's trade-offs, so short trainings of
    it, at the levels of these, are there for claims at equal loss.
    """
    grid, chosen = (
        (grids.AWARE[preset], grids.ATTACKERS[preset])
        if data == "mnist"
        else grids.CIFAR_AWARE[preset]
    )
    specs = [UNDEFENDED, *grid.specs(family)]
    attacks = [cell for each in chosen.values() for cell in grid.attack_cells(specs, **each)]
    short = [] if data == "mnist" else grid.short_cells(grids.CIFAR[preset].specs(family))
    return [*first_batches_first(attacks), *short]


def adaptive_numbers(results: Results) -> Table:
    """Means of each attacker, defense and level with intervals."""
    cells = numbers.grouped(
        numbers.select(results, "attack"),
        lambda s: (grids.attacker_of(s), *numbers.name_and_level(s["defense"])),
    )
    scores = ("mse", "psnr", "ssim", "unmatched_mse", figures.BLANK)
    return numbers.score_table(("attacker", "defense", "level"), cells, scores)


def draw_adaptive(data: str, family: str, table: Table, stem: Path) -> None:
    """A panel for each attacker, on one scale; of photos there is the last one alone.

    Errors are shown at least up to 1.4 times that of a blind guess: pruning and noise have one
    range where no error is above it, as on photos.
    """
    names = figures.ATTACKER_TITLES if data == "mnist" else ("aware",)
    rows = {name: table.where(metric="mse", attacker=name) for name in names}
    blanks = [numbers.number(row["mean"]) for row in table.where(metric=figures.BLANK)]
    width = 2.6 if data == "mnist" else 3.4
    with figures.panels(stem, rows, figures.AXES[family], MATCHED_MSE, width=width) as shown:
        for axis, name, mine in shown:
            figures.curves(
                axis, mine, figures.looks_of(grids.FAMILIES[family]), percent=family == "pruning"
            )
            axis.set_title(figures.ATTACKER_TITLES[name])
            figures.blind_guess(axis.axhline, blanks)
            axis.set_ylim(bottom=0.0)
        figures.one_scale([axis for axis, _, _ in shown], 1.4 * max(blanks, default=0.0))


NOISES = ("gradient-noise", "optimal-noise")
THE_BOUND, PRIOR_MEAN, CANDIDATES = "bound", "prior mean", "candidates"


def _attacks(steps: int, quick: bool = False) -> tuple[str, ...]:
    """Every attack that fits a CNN."""
    options = f"steps={steps}, restarts=1, finish=None" if quick else f"steps={steps}"
    finish, steps_of_search = (", finish=None", 20) if quick else ("", steps)
    search = f"(steps={steps_of_search}, restarts=1)"
    return (
        f"paper(steps={steps})",
        f"strong({options})",
        f"adaptive(unaware=strong({options}){finish})",
        f"dlg{search}",
        f"idlg{search}",
        f"grad-inversion(steps={steps})",
    )


_PUBLIC = {"start": 2000, "size": 1, "batches": 64}
_CANDIDATES = {"candidates": 256, "trials": 16, "population": {"start": 2100, "count": 2900}}
BOUND = presets(
    {
        "data": "mnist",
        "starts": grids.every(1, 6),
        "scales": (0.01, 0.1, 1.0),
        "more scales": (1.0, 3.0),  # with less noise candidates are all told apart
        "attacks": _attacks(250),
        "public": _PUBLIC,
        "choice": _CANDIDATES,
    },
    quick={
        "starts": grids.every(1, 4),
        "scales": (0.01, 0.1),
        "attacks": _attacks(40, quick=True),
        "public": {**_PUBLIC, "batches": 16},
        "choice": {**_CANDIDATES, "candidates": 32, "trials": 4},
    },
)


def bound_cells(preset: str) -> list[Cell]:
    """Bounds and every attack for each image, defense and scale, under plans that are public.

    Bounds then count all that is sent. The Gaussian bound is a reference: real images are not
    Gaussian. What holds for them is the exact error of an attacker who is told candidates, the
    truth among them.
    """
    grid = BOUND[preset]
    model = {"data": grid["data"], "model": grids.CNN}
    scales = dict.fromkeys((*grid["scales"], *grid["more scales"]))
    defenses = [numbers.defense_spec(name, scale) for scale in scales for name in NOISES]
    public = {each: grid["public"] if numbers.is_optimal(each) else None for each in defenses}
    attacked = defenses[: len(grid["scales"]) * len(NOISES)]
    cells = []
    for start in grid["starts"]:
        for defense in defenses:
            planned = {"public": public[defense]} if public[defense] else {}
            common = {**model, "start": start, "size": 1, "defense": defense, "seed": 0, **planned}
            cells.append(cell_of("candidate_bound", {**common, **grid["choice"]}))
            if defense in attacked:
                cells.append(cell_of("bound", {**common, "prior_samples": 1000}))
                cells += [cell_of("attack", {**common, **_known(each)}) for each in grid["attacks"]]
    return cells


def _known(attack: str) -> dict[str, str]:
    knows = build_attack(attack).knows_defense
    return {"attack": attack, "mechanism": "known" if knows else "unknown"}


def bound_numbers(results: Results) -> Table:
    """Mean squared errors per entry, of the bounds, of attacks and of the prior's mean."""
    attacks = numbers.grouped(
        numbers.select(results, "attack"),
        lambda s: (Spec.parse(s["attack"]).name, *numbers.name_and_level(s["defense"])),
    )
    found = {key: numbers.summarise(pairs, "mse") for key, pairs in attacks.items()}
    for what, kind, value in (
        (THE_BOUND, "bound", "bound"),
        (PRIOR_MEAN, "bound", "prior_variance"),
        (CANDIDATES, "candidate_bound", "error"),
    ):
        cells = numbers.by_defense(results, kind)
        found |= {(what, *defense): numbers.summarise(cells[defense], value) for defense in cells}
    order = sorted(numbers.in_order(found), key=lambda key: key[0] != THE_BOUND)
    rows: list[tuple[Entry, ...]] = [(*key, *found[key]) for key in order]
    return Table(("what", "defense", "level", *MEANS), rows)


BOUND_LOOKS: dict[str, tuple[str, figures.Look]] = {
    PRIOR_MEAN: ("guessing the prior's mean", {"color": "0.5", "ls": ":", "marker": ""}),
    THE_BOUND: ("reference (Gaussian prior)", {"color": BLACK, "lw": 2.2, "marker": "_"}),
    CANDIDATES: (
        "bound that holds: best of all attackers\nwith candidates (0 is drawn at 10⁻⁴)",
        {"color": BLACK, "ls": (0, (1, 1)), "lw": 2.2, "marker": "*", "markersize": 7},
    ),
    "paper": ("Inverting Gradients (paper)", figures.OTHERS[0]),
    "strong": ("Inverting Gradients (tuned)", figures.OTHERS[1]),
    "adaptive": ("adaptive (knows the defense)", figures.OTHERS[2]),
    "dlg": ("DLG", figures.OTHERS[3]),
    "idlg": ("iDLG", figures.OTHERS[4]),
    "grad-inversion": ("GradInversion", figures.OTHERS[5]),
}
"""The label and the style of each curve, in the order of the legend."""
FLOOR = 1e-4
"""Smaller errors, which for candidates are mostly 0, are drawn here."""


def draw_bound(table: Table, stem: Path) -> None:
    """A panel for each kind of noise: the bounds in black, attacks in colours."""
    rows = {name: table.where(defense=name) for name in NOISES}
    label = "MSE per pixel (normalised units)"
    with figures.panels(stem, rows, figures.AXES["noise"], label, height=3.9, legend=3) as shown:
        for axis, name, mine in shown:
            for row in mine:  # nothing is below what a logarithmic axis shows
                ends = {n: row[n] for n in ("mean", "low", "high") if row[n] is not None}
                row |= {n: max(numbers.number(end), FLOOR) for n, end in ends.items()}
            figures.curves(axis, mine, BOUND_LOOKS, by="what")
            axis.set_title(numbers.label_of(name))
            axis.set_yscale("log")


LEAKAGE = presets(
    {
        "data": "mnist",
        "trained": (0, 60, 300),  # steps of training at which the batches are sent
        "starts": grids.every(4, 6),
        "attack": "strong(steps=100, restarts=1, finish=None)",
        "draws": 4,
        "choice": {"candidates": 60, "one_class": True, "trials": 10},
        "public": {"start": 2000, "size": 4, "batches": 24},
    },
    quick={
        "trained": (0, 20),
        "starts": grids.every(4, 2),
        "attack": "strong(steps=20, restarts=1, finish=None)",
        "draws": 2,
        "choice": {"candidates": 8, "one_class": True, "trials": 3},
        "public": {"start": 2000, "size": 4, "batches": 4},
    },
)
LEAKAGE_DEFENSES = (
    UNDEFENDED,
    "gradient-noise(scale=0.01)",
    "optimal-noise(scale=0.01)",
    "gradient-pruning(ratio=0.9)",
)
IDENTIFY = "candidates"
STAGED = {
    "unaware": "attack that does not\nknow the defense",
    "aware": "attack that knows\nthe defense",
    IDENTIFY: "right one of the candidates,\nrest of the batch known",
}


def leakage_cells(preset: str) -> list[Cell]:
    """The same batches, attacked and identified as they are sent at several stages of training."""
    grid = LEAKAGE[preset]
    cells: list[Cell] = []
    attacks = (grid["attack"], f"adaptive(unaware={grid['attack']}, finish=None)")
    for trained in grid["trained"]:
        for defense in LEAKAGE_DEFENSES:
            common = {
                "data": grid["data"],
                "model": grids.CNN,
                "size": 4,
                "trained": trained,
                "seed": 0,
            }
            common["defense"] = defense
            public = grid["public"] if defense.startswith("optimal") else None
            planned = {"public": public} if public else {}
            for attack in attacks:
                attacked = {**common, **planned, **_known(attack)}
                cells += product_cells("attack", attacked, start=grid["starts"])
            told = {**common, **grid["choice"], "examples": 2000, "public": public}
            cells += product_cells("identification", told, start=range(grid["draws"]))
    return first_batches_first(cells)


def leakage_numbers(results: Results) -> Table:
    """Errors and shares with intervals, the blind guess's, and whether the attack can judge."""
    attacks = numbers.grouped(numbers.select(results, "attack"), _leakage_key)
    found = numbers.grouped(numbers.select(results, "identification"), _leakage_key)
    rows: list[tuple[Any, ...]] = []
    # by attacker, first without a defense
    order = sorted({**attacks, **found}, key=lambda key: (key[2] != UNDEFENDED, key[2], key[1]))
    for key in sorted(order, key=lambda key: [*STAGED].index(key[0])):
        if key in attacks:
            undefended = beats_guess(attacks.get((*key[:2], UNDEFENDED, None), []))
            errors, guess = (
                numbers.summarise(attacks[key], name) for name in ("mse", figures.BLANK)
            )
            rows.append((*key, "mse", *errors, guess[0], undefended and undefended.works))
        else:
            chance = 1 / found[key][0][0]["candidates"]
            rows.append((*key, "share", *numbers.right_share(found[key]), chance, True))
    columns = ("attacker", "trained", "defense", "level", "metric")
    return Table((*columns, *MEANS, "guess", "judges"), rows)


def _leakage_key(settings: Settings) -> tuple[Any, ...]:
    knows = settings.get("mechanism") == "known"
    attacker = ("aware" if knows else "unaware") if "attack" in settings else IDENTIFY
    return attacker, settings["trained"], *numbers.name_and_level(settings["defense"])


def draw_leakage(table: Table, stem: Path) -> None:
    """A panel for each attacker; where it cannot judge, the panel is grey and says so."""
    rows = {name: table.where(attacker=name) for name in STAGED}
    with figures.panels(stem, rows, "steps of training", width=2.8, height=3.0, legend=5) as shown:
        for axis, attacker, mine in shown:
            _draw_stages(axis, mine)
            axis.set_title(STAGED[attacker])
            axis.set_ylabel("share of trials" if attacker == IDENTIFY else MATCHED_MSE)
        figures.one_scale([axis for axis, attacker, _ in shown if attacker != IDENTIFY])


def _draw_stages(axis: "Axes", rows: Sequence[Row]) -> None:
    stages = sorted({int(numbers.number(row["trained"])) for row in rows})
    placed = [{**row, "place": stages.index(int(numbers.number(row["trained"])))} for row in rows]
    for place, (name, mine) in enumerate(figures.split(placed, "defense").items()):
        look = {**figures.LOOKS[name], "ls": figures.OTHERS[place]["ls"]}
        figures.curve(
            axis, mine, numbers.label_of(name), x="place", aside=3.5 * (place - 1.5), **look
        )
    guesses = {numbers.number(row["place"]): numbers.number(row["guess"]) for row in placed}
    axis.plot([*guesses], [*guesses.values()], color="0.45", ls=":", label="blind guess")
    for at in {numbers.number(row["place"]) for row in placed if row["judges"] is False}:
        axis.axvspan(at - 0.4, at + 0.4, color="0.9", lw=0, zorder=0)
        words: dict[str, Any] = {"ha": "center", "va": "bottom", "rotation": 90}
        below = axis.get_xaxis_transform()
        axis.text(at, 0.03, "cannot judge", transform=below, size=7, color="0.35", **words)
    axis.set_xticks(range(len(stages)), [str(stage) for stage in stages])
    axis.set(xlim=(-0.5, len(stages) - 0.5), ylim=(-0.05, None))


SCORES: dict[str, figures.Look] = {
    "unmatched_mse": {"color": ORANGE, "marker": "o", "label": "place by place (as in the paper)"},
    "mse": {"color": BLUE, "marker": "s", "label": "matched to the truth"},
}


def matching_cells(preset: str) -> list[Cell]:
    """The attacks of mnist-pruning and mnist-noise."""
    grid = grids.MNIST[preset]
    return grid.attack_cells([UNDEFENDED, *grid.specs("pruning"), *grid.specs("noise")])


def matching_numbers(results: Results) -> Table:
    """MSE before and after the best assignment of images, and the share of images out of place."""
    cells = numbers.by_defense(results, "attack")
    rows = []
    order = [UNDEFENDED, *grids.PRUNING, *grids.NOISE]
    for defense in sorted(cells, key=lambda d: (order.index(d[0]), d[1] or 0.0)):
        pairs = cells[defense]
        moved = [place != at for _, r in pairs for place, at in enumerate(r["assignment"])]
        away = sum(moved) / len(moved)
        rows += [(*defense, score, *numbers.summarise(pairs, score), away) for score in SCORES]
    return Table(("defense", "level", "metric", *MEANS, "out_of_place"), rows)


def draw_matching(table: Table, stem: Path) -> None:
    """Two points for each defense and level."""
    lines = figures.split(table.where(), "defense", "level").items()
    rows = {
        numbers.level_text(*key): {str(row["metric"]): row for row in mine} for key, mine in lines
    }
    height = max(2.2, 0.22 * len(rows) + 0.9)
    with figures.panels(stem, {"": table.where()}, figures.MSE, width=5.4, height=height) as shown:
        for axis, _, _ in shown:
            figures.dots(axis, rows, SCORES)


def _adaptive() -> Iterator[Study]:
    for data, name in (("mnist", "adaptive"), ("cifar", "cifar-adaptive")):
        for family in grids.FAMILIES:
            cells = partial(adaptive_cells, data, family)
            draw = partial(draw_adaptive, data, family)
            yield Study(f"{name}-{family}", cells, adaptive_numbers, draw)


STUDIES: Iterable[Study] = (
    Study("bound-against-attacks", bound_cells, bound_numbers, draw_bound),
    *_adaptive(),
    Study("matching", matching_cells, matching_numbers, draw_matching),
    Study("leakage-through-training", leakage_cells, leakage_numbers, draw_leakage),
)
