"""Beyond the paper: attackers who know the defense, what plans are worth and reveal, trainings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf, log2
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradveil._drawing import BLACK, BLUE, GREEN, ORANGE, RED
from gradveil._runner import Cell, Settings
from gradveil.catalog import Spec, build_attack, build_defense

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
    blanks = [*map(numbers.number, table.column("mean", metric=figures.BLANK))]
    labels, looks = (figures.AXES[family], MATCHED_MSE), figures.looks_of(grids.FAMILIES[family])
    width = 2.6 if data == "mnist" else 3.4
    for axis, name, mine in figures.panels(stem, rows, *labels, width=width):
        figures.curves(axis, mine, looks, percent=family == "pruning")
        axis.set_title(figures.ATTACKER_TITLES[name])
        figures.blind_guess(axis.axhline, blanks)
        axis.set_ylim(0.0, max(axis.get_ylim()[1], 1.4 * max(blanks, default=0.0)))


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
    size: dict[str, Any] = {"height": 3.9, "legend": 3}
    for axis, name, mine in figures.panels(stem, rows, figures.AXES["noise"], label, **size):
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
            common = {"data": grid["data"], "model": grids.CNN, "size": 4, "trained": trained}
            common |= {"seed": 0, "defense": defense}
            public = grid["public"] if build_defense(defense).needs.sensitivities else None
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
    size: dict[str, Any] = {"width": 2.8, "height": 3.0, "legend": 5, "then": _errors_alike}
    for axis, attacker, mine in figures.panels(stem, rows, "steps of training", **size):
        _draw_stages(axis, mine)
        axis.set_title(STAGED[attacker])
        axis.set_ylabel("share of trials" if attacker == IDENTIFY else MATCHED_MSE)


def _errors_alike(axes: Mapping[str, "Axes"]) -> None:
    figures.one_scale(axis for name, axis in axes.items() if name != IDENTIFY)


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
    size: dict[str, Any] = {"width": 5.4, "height": max(2.2, 0.22 * len(rows) + 0.9)}
    for axis, _, _ in figures.panels(stem, table.where(), figures.MSE, **size):
        figures.dots(axis, rows, SCORES)


def _adaptive(data: str, family: str) -> Study:
    name = f"adaptive-{family}" if data == "mnist" else f"cifar-adaptive-{family}"
    cells, draw = partial(adaptive_cells, data, family), partial(draw_adaptive, data, family)
    return Study(name, cells, adaptive_numbers, draw)


_SIXTEEN = {"data": "mnist", "model": grids.CNN, "size": 16}
PLANS = presets(
    {"batches": 6, "trained": (0, 60), "probes": 64, "public": 20, "repeats": 7},
    quick={"batches": 4, "trained": (0,), "probes": 8, "public": 8, "repeats": 3},
)
"""Batches of 16, on a fresh and on a trained model; `probes` of the reference for each example,
`public` batches that plans are made from, `repeats` of timings."""

ESTIMATORS = {
    "isotropic": "isotropic noise",
    "layers": "one level per layer",
    "paper(probes=10)": "paper's algorithm, 10 probes",
    "sketch(probes=1)": "sketch, 1 probe",
    "per-example(probes=1)": "per example, 1 probe",
    "per-example(probes=4)": "per example, 4 probes",
    "auto": "auto",
}


def estimator_cells(preset: str) -> list[Cell]:
    """What each estimate reaches of the optimal bound at equal utility, and what it costs."""
    grid = PLANS[preset]
    share = {**_SIXTEEN, "reference_probes": grid["probes"], "seed": 0}
    axes = {"trained": grid["trained"], "estimator": ESTIMATORS}
    cost = {**_SIXTEEN, "repeats": grid["repeats"], "start": 0}
    starts = range(0, 16 * grid["batches"], 16)
    return [
        *product_cells("estimator_share", share, **axes, start=starts),
        *product_cells("estimator_cost", cost, **axes),
    ]


def estimator_numbers(results: Results) -> Table:
    """Mean shares over batches with intervals, and the cost in plain gradients."""
    key = itemgetter("trained", "estimator")
    costs = {key(s): float(r["ratio"]) for s, r in numbers.select(results, "estimator_cost")}
    shares = numbers.grouped(numbers.select(results, "estimator_share"), key)
    rows = [
        (*key, ESTIMATORS.get(key[1], key[1]), *numbers.summarise(pairs, "share"), costs.get(key))
        for key, pairs in shares.items()
    ]
    return Table(("trained", "estimator", "label", *MEANS, "cost"), rows)


def by_state(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of a fresh model, and of each trained one."""
    states = figures.split(rows, "trained").items()
    return {f"after {steps} steps" if steps else "fresh model": own for steps, own in states}


def draw_estimators(table: Table, stem: Path) -> None:
    """Share against cost; a panel for the fresh model and one for each trained one."""
    labels = "time of a defended gradient / plain gradient", "share of the optimal bound"
    for axis, state, rows in figures.panels(stem, by_state(table.where()), *labels, width=4.6):
        for place, row in enumerate(rows):
            figures.curve(axis, [row], str(row["label"]), x="cost", **figures.OTHERS[place % 8])
        axis.set(title=state, ylim=(0, 1.04), xscale="log")
        axis.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
        axis.minorticks_off()


PARAMETER, LAYER, PUBLIC, ISOTROPIC = (
    "private, per parameter", "private, per layer", "public", "isotropic",
)  # fmt: skip
FINGERPRINT_DEFENSES = {
    PARAMETER: "optimal-noise(scale={}, source='private')",
    LAYER: "optimal-noise(scale={}, granularity='layer', source='private')",
    PUBLIC: "optimal-noise(scale={})",
    ISOTROPIC: "gradient-noise(scale={})",
}
FINGERPRINT_LOOKS: dict[str, tuple[str, figures.Look]] = {
    PARAMETER: (PARAMETER, {"color": RED, "marker": "D", "ls": "-"}),
    LAYER: (LAYER, {"color": ORANGE, "marker": "s", "ls": "--"}),
    PUBLIC: (PUBLIC, {"color": GREEN, "marker": "o", "ls": "-."}),
    ISOTROPIC: (ISOTROPIC, {"color": BLUE, "marker": "^", "ls": (0, (1, 1))}),
}
_DIGITS = {
    "data": "mnist",
    "model": grids.CNN,
    "size": 4,
    "examples": 2000,  # candidates and the rest of the batch are drawn from the first so many
    "candidates": 60,
    "one_class": True,
    "trials": 50,
    "seed": 0,
}
_PHOTOS = {
    **_DIGITS,
    "data": "cifar10",
    "model": "conv-net(width=16)",
    "size": 1,
    "examples": 12,
    "candidates": 12,
    "one_class": False,
}
FINGERPRINT = presets(
    {
        "digits": _DIGITS,
        "trained": (0, 60),
        "scales": (0.1, 1.0, 100.0),
        "draws": 6,
        "photos": (_PHOTOS,),
    },
    quick={
        "digits": {**_DIGITS, "size": 1, "candidates": 8, "trials": 3},
        "trained": (0,),
        "scales": (1.0, 100.0),
        "draws": 2,
        "photos": (),
    },
    paper={"draws": 20},
)
"""The 20 embedded photos are few: one draw of 12 candidates of any class, the others are the public
ones; a model trained on them would know them by heart and send no gradient to tell them by."""


def fingerprint_cells(preset: str) -> list[Cell]:
    """How often the right candidate is found, by an attacker who knows the rest of the batch.

    Each plan at each scale on each draw of candidates; the first draw of all comes first.
    """
    grid = FINGERPRINT[preset]
    digits = {"start": 2000, "size": 4, "batches": 24}
    photos = {"start": 12, "size": 1, "batches": 8}
    every = [(draw, grid["digits"], digits, grid["trained"]) for draw in range(grid["draws"])]
    every += [(0, common, photos, (0,)) for common in grid["photos"]]
    return [
        cell_of(
            "identification",
            {
                **common,
                "trained": steps,
                "public": public if plan == PUBLIC else None,
                "start": draw,
                "defense": spec.format(scale),
            },
        )
        for draw, common, public, trained in every
        for steps in trained
        for scale in grid["scales"]
        for plan, spec in FINGERPRINT_DEFENSES.items()
    ]


def fingerprint_numbers(results: Results) -> Table:
    """Shares of trials, and bits, with intervals over trials and draws of candidates."""
    groups = numbers.grouped(numbers.select(results, "identification"), _fingerprint_key)
    rows = []
    for key, pairs in groups.items():
        most = log2(key[4])
        found = numbers.summarise(pairs, "bits")[:3]
        bits = [None if b is None else min(max(b, 0.0), most) for b in found]
        rows.append((*key, *numbers.right_share(pairs), *bits))
    columns = ("data", "trained", "plan", "level", "candidates", "one_class")
    return Table((*columns, *MEANS, "bits_mean", "bits_low", "bits_high"), rows)


def _fingerprint_key(settings: Settings) -> tuple[Any, ...]:
    name, level = numbers.name_and_level(settings["defense"])
    plan = ISOTROPIC
    if name == "optimal-noise":
        options = Spec.parse(settings["defense"], "defense").arguments
        plan = LAYER if options.get("granularity") == "layer" else PARAMETER
        plan = PUBLIC if settings["public"] else plan
    candidates = settings["candidates"], settings["one_class"]
    return settings["data"], settings["trained"], plan, level, *candidates


def draw_fingerprint(table: Table, stem: Path) -> None:
    """A panel for each data set and state of the model; chance is a dotted line."""
    rows = figures.split(table.where(), "data", "trained")
    size: dict[str, Any] = {"columns": min(2, len(rows) or 1), "width": 3.6, "legend": 5}
    size["height"] = 2.6
    labels = figures.AXES["noise"], "share of trials with the right one"
    for axis, (data, trained), mine in figures.panels(stem, rows, *labels, **size):
        figures.curves(axis, mine, FINGERPRINT_LOOKS, by="plan")
        axis.axhline(1 / numbers.number(mine[0]["candidates"]), color="0.4", ls=":", label="chance")
        state = f"after {trained} steps" if trained else "fresh"
        classes = "one class" if mine[0]["one_class"] else "all classes"
        axis.set_title(f"{data}, {state}, {mine[0]['candidates']} candidates of {classes}")
        axis.set_ylim(-0.03, 1.05)


_CLIP = 0.05  # small enough to clamp entries of the MNIST CNN's gradient; the paper's 1 clamps none
THEOREMS: Mapping[str, tuple[str, str]] = {
    "Theorem 2\nnoise": ("gradient-noise(scale=0.1)", "optimal-noise(scale=0.1, source='private')"),
    "Theorem 3\nclipping and noise": (
        f"clamped-noise(scale=0.1, clip={_CLIP})",
        f"optimal-clamped-noise(scale=0.1, clip={_CLIP}, least=0.0, source='private')",
    ),
    "Theorem 4\npruning": (
        "gradient-pruning(ratio=0.9)",
        "optimal-pruning(ratio=0.9, source='private')",
    ),
}
"""Theorem 3 in the paper's form, which sends clamped entries bare: to hide these, too, has a price
of its own, which is not what the shares compare."""
PLANNED: dict[str, tuple[str, figures.Look]] = {
    "classical": ("classical (isotropic, magnitude)", {"color": RED}),
    "global": ("global: moments of public data", {"color": GREEN}),
    "local": ("local: the batch itself (leaks by its plan)", {"color": BLUE}),
}


def plan_cells(preset: str) -> list[Cell]:
    """What plans keep of the best protection of a batch, at equal utility; three a theorem."""
    grid = PLANS[preset]
    common = {**_SIXTEEN, "probes": grid["probes"], "seed": 0}
    public = {"start": 2000, "size": 16, "batches": grid["public"]}
    return [
        cell_of(
            "plan_quality",
            {**common, "trained": trained, "start": start, "defense": defense, "public": plan},
        )
        for trained in grid["trained"]
        for start in range(0, 16 * grid["batches"], 16)
        for classical, optimal in THEOREMS.values()
        for defense, plan in ((classical, None), (optimal, None), (optimal, public))
    ]


def plan_numbers(results: Results) -> Table:
    """Mean shares with intervals over batches."""

    def key(settings: Settings) -> tuple[int, str, str]:
        plan = "global" if settings["public"] else "local"
        optimal = numbers.is_optimal(settings["defense"])
        return settings["trained"], settings["defense"], plan if optimal else "classical"

    cells = numbers.grouped(numbers.select(results, "plan_quality"), key)
    rows = [(*key, *numbers.summarise(pairs, "share")) for key, pairs in cells.items()]
    return Table(("trained", "defense", "plan", *MEANS), rows)


def draw_plans(table: Table, stem: Path) -> None:
    """Bars by theorem and plan; a panel for the fresh model and one for each trained one."""
    label = "share of the best protection\nat equal utility"
    states = by_state(table.where())
    for axis, state, rows in figures.panels(stem, states, "", label, width=4.6, height=3.0):
        theorems = {
            theorem: {str(row["plan"]): row for row in rows if row["defense"] in pair}
            for theorem, pair in THEOREMS.items()
        }
        figures.grouped_bars(axis, theorems, PLANNED)
        axis.set(title=state, ylim=(0, 1.05))


PUBLIC_PLANS = presets(
    {
        "data": "mnist",
        "trained": (0, 60, 300),
        "batches": 24,
        "counts": [2, 8, 24],  # of public batches
        "population": 180,  # batches that stand for it
        "strange": 8,  # batches of another kind
        "probes": 16,
    },
    quick={
        "trained": (0,),
        "batches": 4,
        "counts": [2, 4],
        "population": 8,
        "strange": 2,
        "probes": 4,
    },
)
PLAN_LABELS = {
    "limit": "limit: the population's moments",
    "private": "the private batch itself (reveals it)",
    "entry-wise": "public, each entry (Theorem 2)",
    "rows x columns": "public, rows × columns",
    "layer": "public, one level per layer",
    "shrunk": "public, shrunk",
    "model": "model alone",
}


def public_plan_cells(preset: str) -> list[Cell]:
    """One cell for each private batch, with all plans in it."""
    grid = dict(PUBLIC_PLANS[preset])
    axes = {"trained": grid.pop("trained"), "start": range(0, 16 * grid.pop("batches"), 16)}
    return product_cells("public_plans", {**grid, **_SIXTEEN, "public": 2000, "seed": 0}, **axes)


def public_plan_numbers(results: Results) -> Table:
    """Mean gains over isotropic noise at equal U2 with intervals over private batches."""
    groups: dict[tuple[int, str, int], dict[numbers.Unit, Tensor]] = {}
    for settings, result in numbers.select(results, "public_plans"):
        for name, gain in result["gains"].items():
            plan, _, count = name.rpartition("/")
            key = (settings["trained"], plan, int(count))
            unit = (settings["start"], settings["seed"])
            groups.setdefault(key, {})[unit] = torch.tensor([gain], dtype=torch.float64)
    rows = [(*key, *numbers.summary(units)) for key, units in sorted(groups.items())]
    return Table(("trained", "plan", "public batches", *MEANS), rows)


def draw_public_plans(table: Table, stem: Path) -> None:
    """Gain against the number of public batches; a panel for each state of the model."""
    labels = "public batches", "gain over isotropic noise\nat equal utility"
    states = by_state(table.where())
    for axis, state, rows in figures.panels(stem, states, *labels, width=3.6, legend=3):
        axis.set_title(state)
        axis.axhline(1.0, color="0.6", lw=1)
        counted = [row for row in rows if row["public batches"] and row["plan"] in PLAN_LABELS]
        for place, (plan, text) in enumerate(PLAN_LABELS.items()):
            look, mine = figures.OTHERS[place], [row for row in rows if row["plan"] == plan]
            if mine and mine[0] in counted:
                figures.curve(axis, mine, text, x="public batches", **look)
            elif mine:
                line = {"color": look["color"], "ls": look["ls"], "label": text}
                axis.axhline(numbers.number(mine[0]["mean"]), **line)
        figures.mark_levels(axis, [row["public batches"] for row in counted])


_LOCAL = {"lr": 0.05, "steps": 4, "batch_size": 2}
FEDAVG = presets(
    {
        "grid": replace(grids.AWARE["standard"], starts=grids.every(4, 6), steps=250),
        "local": _LOCAL,
        "rounds": 32,
        "seeds": grids.SEEDS,
    },
    quick={
        "grid": replace(grids.MNIST["quick"], starts=grids.every(4, 4), steps=30),
        "local": {**_LOCAL, "steps": 2},
        "rounds": 6,
        "seeds": (0, 1, 2),
    },
)
FEDAVG_NAMES = ("gradient-pruning", "optimal-pruning", "gradient-noise", "optimal-noise")


def fedavg_cells(preset: str) -> list[Cell]:
    """Attacks on weight changes after local steps, and trainings with the same defenses."""
    grid, local, rounds, seeds = FEDAVG[preset].values()
    scale = round(0.02 * local["lr"] * local["steps"], 12)  # in the size of an update
    levels = {name: 0.9 if numbers.is_pruning(name) else scale for name in FEDAVG_NAMES}
    specs = ["no-defense", *(numbers.defense_spec(name, level) for name, level in levels.items())]
    training = {
        **grids.clients(grid.data, grid.model, 1024, 8, rounds, held_out=512, held_out_start=4352),
        **{f"local_{name}": value for name, value in local.items()},
        "optimizer": "sgd",
        "lr": 1.0,
    }
    return [
        *grid.attack_cells(specs, local=local),
        *product_cells("training", training, seed=seeds, defense=specs),
    ]


def fedavg_numbers(results: Results) -> Table:
    """The attack's error, a blind guess's and the loss at the end, with intervals."""
    rows = [
        (*defense, metric, *numbers.summarise(pairs, value))
        for metric, kind, value in (
            ("mse", "attack", "mse"),
            (figures.BLANK, "attack", figures.BLANK),
            ("loss", "training", "held_out_loss"),
        )
        for defense, pairs in numbers.by_defense(results, kind).items()
    ]
    return Table(("defense", "level", "metric", *MEANS), rows)


def draw_fedavg(table: Table, stem: Path) -> None:
    """A point for each defense: the error to the left, the loss to the right."""
    labels = {"mse": f"{figures.MSE}, matched", "loss": "held-out loss (nats)"}
    rows = {metric: table.where(metric=metric) for metric in labels}
    for axis, metric, mine in figures.panels(stem, rows, width=3.6):
        names = {
            numbers.label_of(name): {name: own[0]}
            for name, own in figures.split(mine, "defense").items()
        }
        figures.dots(axis, names, figures.LOOKS)
        axis.set_xlabel(labels[metric])
        if metric == "mse":
            figures.blind_guess(axis.axvline, table.column("mean", metric=figures.BLANK))


ORDER = (
    ("no-defense", grids.NO_PLAN),
    ("clamped-noise", grids.NO_PLAN),
    ("optimal-clamped-noise", grids.PUBLIC),
    ("optimal-clamped-noise", grids.LAYERS),
    ("optimal-clamped-noise", grids.PRIVATE),
    ("gradient-noise", grids.NO_PLAN),
    ("optimal-noise", grids.PUBLIC),
    ("laplace-noise", grids.NO_PLAN),
    ("gradient-pruning", grids.NO_PLAN),
    ("optimal-pruning", grids.PUBLIC),
    ("optimal-pruning", grids.PRIVATE),
    ("sign-compression", grids.NO_PLAN),
)
"""Of defenses and plans, in tables and legends."""
IDENTIFIED = "identified"
FOUND = (*figures.ATTACKER_TITLES, IDENTIFIED)
"""What is found of MNIST; of photos it is by the attacker who knows the defense alone."""


def frontier_cells(made: Mapping[str, grids.Frontier], preset: str) -> list[Cell]:
    """Trainings, attacks and trials of identification for each defense, plan and level."""
    return first_batches_first(made[preset].cells())


def frontier_numbers(found: tuple[str, ...], results: Results) -> Table:
    """A row for each defense, plan and level: its loss, and what each attacker found."""
    trained, told, attacks = (
        numbers.grouped(numbers.select(results, kind), grids.contender_of)
        for kind in ("training", "identification", "attack")
    )
    attackers = [name for name in found if name != IDENTIFIED]

    def entries(contender: grids.Contender) -> dict[str, Any]:
        runs = trained.get(contender, [])
        by_attacker = numbers.grouped(attacks.get(contender, []), grids.attacker_of)
        errors, psnrs = (
            {name: numbers.summarise(by_attacker.get(name, []), metric) for name in attackers}
            for metric in ("mse", "psnr")
        )
        return {
            **_means("loss", numbers.summary(numbers.final_losses(runs))),
            **{name: numbers.summarise(runs, name)[0] for name in ("held_out_loss", "accuracy")},
            **{k: v for name in attackers for k, v in _means(name, errors[name]).items()},
            **{k: v for name in attackers for k, v in _means(f"{name}_psnr", psnrs[name]).items()},
            figures.BLANK: numbers.summarise(by_attacker.get("aware", []), figures.BLANK)[0],
            **(_told(told.get(contender, [])) if IDENTIFIED in found else {}),
        }

    def order(contender: grids.Contender) -> tuple[int, float]:
        return ORDER.index(contender[:2]), contender[2] or 0.0

    contenders = sorted({**trained, **told, **attacks}, key=order)
    columns = ("defense", "plan", "level", *entries(("", "", None)))
    return Table(columns, [(*each, *entries(each).values()) for each in contenders])


def _means(name: str, entries: tuple[float | None, ...]) -> dict[str, float | None]:
    return dict(zip([f"{name}_{part}" for part in MEANS], entries, strict=True))


def _told(pairs: list[numbers.Pair]) -> dict[str, float | None]:
    """The share of right answers with its interval, the number of trials, and the mean bits."""
    return {
        **_means(IDENTIFIED, numbers.right_share(pairs)),
        "bits": numbers.summarise(pairs, "bits")[0],
    }


def draw_frontier(found: tuple[str, ...], table: Table, stem: Path) -> None:
    """A panel for each attacker: what he finds to the right, the loss upwards."""
    rows, loss = table.where(), "loss at the end of training"
    columns = min(2, len(found))
    size: dict[str, Any] = {"columns": columns, "width": 3.9, "height": 2.9, "legend": 3}
    size["then"] = _one_width
    for axis, name, _ in figures.panels(stem, dict.fromkeys(found, rows), "", loss, **size):
        told = name == IDENTIFIED
        axis.set_title(
            "told apart from other candidates,\nrest of the batch known"
            if told
            else figures.ATTACKER_TITLES[name]
        )
        axis.set_xlabel("share of trials" if told else f"{figures.MSE}, matched")
        figures.frontier_panel(axis, rows, name, guess=not told)
        if told:
            axis.set_xlim(-0.03, 1.05)


def _one_width(axes: Mapping[str, "Axes"]) -> None:
    attacked = [axis for name, axis in axes.items() if name != IDENTIFIED]
    end = max((axis.get_xlim()[1] for axis in attacked), default=1.0)
    for axis in attacked:
        axis.set_xlim(-0.03 * end, end)


_SHAPES = (
    "isotropic",
    "Theorem 2",
    "curvature",
    "adam",
    "total power",
    "steep",
    "layers",
    "private",
)
_SHAPED = {
    "data": "mnist",
    "model": grids.CNN,
    "batch_size": 32,
    "examples": 3200,
    "steps": [20, 100],
    "refresh": 30,
    "public": {"start": 3200, "size": 32, "batches": 8},
    "held_out_start": 4000,
    "held_out": 512,
}
PREDICTION = presets(
    {
        "common": _SHAPED,
        "shapes": _SHAPES,
        # by optimizer: amounts that neither do nothing nor end in divergence
        "scales": {
            "sgd": (0.05, 0.1, 0.2),
            "momentum": (0.03, 0.05, 0.1),
            "adam": (0.01, 0.03, 0.1),
        },
        "seeds": (0, 1),
    },
    quick={
        "common": {
            **_SHAPED,
            "batch_size": 8,
            "steps": [5, 10],
            "public": {"start": 3200, "size": 8, "batches": 4},
            "held_out": 128,
        },
        "shapes": ("isotropic", "Theorem 2", "curvature", "total power"),
        "scales": {"sgd": (0.1, 0.3), "adam": (0.01, 0.1)},
        "seeds": (0,),
    },
)
_RATES = {"sgd": 0.1, "momentum": 0.02, "adam": 1e-3}  # tuned coarsely without a defense
COSTS = ("U2", "total power", "curvature", "Adam's step")
COMPARED: dict[str, tuple[str, figures.Look]] = {
    "all": ("all amounts of noise", figures.OTHERS[0]),
    "equal bound": ("at equal trace bound", figures.OTHERS[1]),
    "learned": ("the same, runs that learned nothing left out", figures.OTHERS[2]),
}


def prediction_cells(preset: str) -> list[Cell]:
    """Trainings under noise of every shape, amount, optimizer and seed."""
    grid = PREDICTION[preset]
    return [
        cell
        for seed in grid["seeds"]
        for optimizer, scales in grid["scales"].items()
        for cell in product_cells(
            "training_prediction",
            {**grid["common"], "seed": seed, "optimizer": optimizer, "lr": _RATES[optimizer]},
            scale=scales,
            shape=grid["shapes"],
        )
    ]


def prediction_numbers(results: Results) -> Table:
    """Spearman's correlation of utilities before training with the loss after it.

    Means over groups of runs of one model, with intervals. Runs differ in the shape and the amount
    of their noise. More noise is worse by every utility; what a choice between defenses needs is
    the order of shapes at one trace bound.
    """
    rows = []
    by_optimizer = numbers.grouped(
        numbers.select(results, "training_prediction"), lambda s: str(s["optimizer"])
    )
    for optimizer, pairs in by_optimizer.items():
        for place, steps in enumerate(pairs[0][0]["steps"]):
            learned = [pair for pair in pairs if _loss(pair[1], place) < numbers.CHANCE]
            for compared in COMPARED:
                mine = learned if compared == "learned" else pairs
                key = itemgetter("seed") if compared == "all" else itemgetter("seed", "scale")
                large = [own for own in numbers.grouped(mine, key).values() if len(own) > 2]
                for cost in COSTS:
                    found = numbers.mean_correlation([_runs(group, cost, place) for group in large])
                    rows.append((optimizer, steps, compared, cost, *found, len(mine)))
    return Table(("optimizer", "steps", "compared", "utility", *MEANS), rows)


def _runs(pairs: list[numbers.Pair], cost: str, place: int) -> numbers.Runs:
    costs = torch.tensor([result["costs"][cost] for _, result in pairs])
    losses = torch.tensor([_loss(result, place) for _, result in pairs])
    return numbers.Runs(costs, losses, [str(settings["shape"]) for settings, _ in pairs])


def _loss(result: Mapping[str, Any], place: int) -> float:
    """Infinite where training diverged: worse than all others."""
    loss = result["losses"][place]
    return inf if loss is None or loss != loss else float(loss)


def draw_prediction(table: Table, stem: Path) -> None:
    """A panel for each optimizer: bars by utility, over all runs and over comparable ones."""
    rows, label = figures.split(table.where(), "optimizer"), "rank correlation with the loss"
    for axis, optimizer, own in figures.panels(stem, rows, "", label, width=3.0):
        last = max(numbers.number(row["steps"]) for row in own)
        costs = {
            cost.replace(" ", "\n"): {
                str(row["compared"]): row
                for row in own
                if (row["steps"], row["utility"]) == (last, cost)
            }
            for cost in COSTS
        }
        figures.grouped_bars(axis, costs, COMPARED)
        axis.set(title=f"{optimizer}, after {last:g} steps", ylim=(-1, 1.05))


PLAIN = "plain"
WAYS: dict[str, tuple[str, figures.Look]] = {
    ISOTROPIC: ("isotropic noise (DP-SGD)", {"color": BLUE, "marker": "o", "ls": "-"}),
    "shaped": (
        "noise shaped by public examples",
        {"color": GREEN, "marker": "D", "ls": "--"},
    ),
    "opacus": ("Opacus", {"color": ORANGE, "marker": "s", "ls": ":"}),
    PLAIN: ("not private", {"color": "0.4", "ls": "-."}),
}
"""To a private gradient, and the plain one."""
_PRIVATE = {
    "data": "mnist",
    "model": grids.CNN,
    "delta": 1e-5,
    "clip": 3.0,  # it and the rate were tuned coarsely for isotropic noise at ε = 3
    "batch_size": 128,
    "steps": 120,
    "examples": 3200,
    "lr": 2e-3,
    "public": {"start": 3200, "count": 256, "refresh": 20},
    "held_out_start": 4000,
    "held_out": 1000,
}
PRIVATE_TRAINING = presets(
    {"common": _PRIVATE, "epsilons": (1.0, 3.0, 8.0), "seeds": grids.SEEDS},
    quick={
        "common": {
            **_PRIVATE,
            "batch_size": 32,
            "steps": 5,
            "examples": 640,
            "public": {"start": 3200, "count": 32, "refresh": 5},
            "held_out": 128,
        },
        "epsilons": (2.0, 8.0),
        "seeds": (0, 1),
    },
)


def private_cells(preset: str) -> list[Cell]:
    """Every way and ε, and a training without privacy; the first seed of all comes first."""
    common, epsilons, seeds = PRIVATE_TRAINING[preset].values()
    private = [way for way in WAYS if way != PLAIN]
    plain = {**common, "way": PLAIN, "epsilon": None}
    cells = [
        *product_cells("private_training", plain, seed=seeds),
        *product_cells("private_training", common, seed=seeds, epsilon=epsilons, way=private),
    ]
    return first_batches_first(cells)


def private_numbers(results: Results) -> Table:
    """Loss and accuracy at equal ε, means over seeds; differences of losses are paired by seed."""
    groups = numbers.grouped(
        numbers.select(results, "private_training"), lambda s: (s["way"], s["epsilon"])
    )
    rows = []
    for way, epsilon in numbers.in_order(groups):
        pairs, base = groups[way, epsilon], groups.get((ISOTROPIC, epsilon), [])
        first = pairs[0][1]
        known = (way, epsilon, first["noise_multiplier"], first["epsilon_opacus"])
        rows += [(*known, name, *numbers.summarise(pairs, name)) for name in ("accuracy", "loss")]
        ours, theirs = numbers.units_of(pairs, "loss"), numbers.units_of(base, "loss")
        paired = {unit: ours[unit] - theirs[unit] for unit in ours if unit in theirs}
        if way not in (PLAIN, ISOTROPIC) and paired:
            rows.append((*known, "difference", *numbers.summary(paired)))
    columns = ("way", "level", "noise_multiplier", "epsilon_opacus")
    return Table((*columns, "metric", *MEANS), rows)


def draw_private(table: Table, stem: Path) -> None:
    """Accuracy, loss, and differences of losses, against ε."""
    labels = {
        "accuracy": "held-out accuracy",
        "loss": "held-out loss (nats)",
        "difference": "loss less that of\nisotropic noise (nats)",
    }
    rows = {metric: table.where(metric=metric) for metric in labels}
    for axis, metric, mine in figures.panels(stem, rows, "ε (smaller protects more)", width=2.8):
        figures.curves(axis, mine, WAYS, by="way")
        axis.set_ylabel(labels[metric])
        if metric == "difference":
            axis.axhline(0.0, color=BLUE, lw=1)


def _frontier(name: str, made: Mapping[str, grids.Frontier], found: tuple[str, ...]) -> Study:
    table, draw = partial(frontier_numbers, found), partial(draw_frontier, found)
    return Study(name, partial(frontier_cells, made), table, draw)


STUDIES: tuple[Study, ...] = (
    Study("bound-against-attacks", bound_cells, bound_numbers, draw_bound),
    *(_adaptive(data, family) for data in ("mnist", "cifar") for family in grids.FAMILIES),
    Study("matching", matching_cells, matching_numbers, draw_matching),
    Study("leakage-through-training", leakage_cells, leakage_numbers, draw_leakage),
    Study("estimator-share", estimator_cells, estimator_numbers, draw_estimators),
    Study("local-against-global", plan_cells, plan_numbers, draw_plans),
    Study("plan-fingerprint", fingerprint_cells, fingerprint_numbers, draw_fingerprint),
    Study("public-plans", public_plan_cells, public_plan_numbers, draw_public_plans),
    Study("fedavg", fedavg_cells, fedavg_numbers, draw_fedavg),
    Study("utility-predicts-training", prediction_cells, prediction_numbers, draw_prediction),
    Study("private-training", private_cells, private_numbers, draw_private),
    _frontier("frontier", grids.FRONTIER, FOUND),
    _frontier("cifar-frontier", grids.PHOTO_FRONTIER, ("aware",)),
)
