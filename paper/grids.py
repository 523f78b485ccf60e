"""What several studies share: data, models, batches, seeds, levels and attackers of the presets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradveil._runner import Cell, Settings
from gradveil.catalog import Spec

from .numbers import defense_spec, is_pruning, name_and_level
from .study import cell_of, presets, product_cells

PRUNING = ("gradient-pruning", "optimal-pruning")
NOISE = ("clamped-noise", "optimal-clamped-noise")
FAMILIES = {"pruning": PRUNING, "noise": NOISE}

CNN = "simple-conv-net"


def clients(
    data: str, model: str, examples: int, batch_size: int, rounds: int, **more: Any
) -> dict[str, Any]:
    """The settings of a training: four clients share the first examples, and step with Adam."""
    own = {"data": data, "model": model, "examples": examples, "batch_size": batch_size}
    return {**own, "start": 0, "clients": 4, "rounds": rounds, "optimizer": "adam", **more}


@dataclass(frozen=True)
class Grid:
    """Reconstruction and short training on one data set."""

    data: str
    model: str
    size: int
    """Images in a batch that is attacked."""
    starts: tuple[int, ...]
    """The first image of each batch."""
    steps: int
    """Of the attack."""
    ratios: tuple[float, ...]
    scales: tuple[float, ...]
    large_scales: tuple[float, ...] = ()
    noise_seeds: tuple[int, ...] = ()
    """Seeds beside 0 of defenses that draw noise."""
    estimator: str = "auto"
    short_seeds: tuple[int, ...] = (0,)
    """Of the five training steps on one batch."""
    short_examples: int = 64
    pruning_lr: float = 1e-3
    noise_lr: float = 1e-3
    """Of those five steps."""

    def specs(self, family: str, large: bool = False) -> list[str]:
        """A defense and its optimal form at all levels; with the appendix's larger scales, too."""
        levels = self.ratios if family == "pruning" else self.scales
        levels += self.large_scales if large and family == "noise" else ()
        names = FAMILIES[family]
        return [defense_spec(name, level, self.estimator) for level in levels for name in names]

    def attack_cells(self, defenses: Sequence[str], **changes: Any) -> list[Cell]:
        """Inverting Gradients as in the paper, or another attack, on each defense and batch."""
        attack = {"attack": f"paper(steps={self.steps})", "mechanism": "unknown", **changes}
        common = {"data": self.data, "model": self.model, "size": self.size, **attack}
        noisy = [defense for defense in defenses if name_and_level(defense)[0] in NOISE]
        return [
            cell
            for seeds, some in (((0,), defenses), (self.noise_seeds, noisy))
            for cell in product_cells("attack", common, seed=seeds, start=self.starts, defense=some)
        ]

    def short_cells(self, defenses: Sequence[str]) -> list[Cell]:
        """Five steps of Adam by four clients on one batch, for each defense and seed."""
        count = self.short_examples
        common = clients(self.data, self.model, count, count // 4, rounds=5)
        rates = {d: self.pruning_lr if is_pruning(d) else self.noise_lr for d in defenses}
        return [
            cell_of("short_training", {**common, "lr": rates[d], "defense": d, "seed": seed})
            for seed in self.short_seeds
            for d in defenses
        ]


def every(step: int, count: int) -> tuple[int, ...]:
    """The starts of `count` consecutive batches of `step` images."""
    return tuple(range(0, step * count, step))


SEEDS = tuple(range(6))
_SKETCH = "sketch(probes=10)"
_MNIST = Grid(
    "mnist",
    CNN,
    size=16,
    starts=every(16, 16),
    steps=500,
    ratios=(0.8, 0.9, 0.95),
    scales=(0.01, 0.05, 0.1),
    noise_seeds=(1, 2),
    short_seeds=SEEDS,
)
MNIST = {
    "quick": replace(_MNIST, size=4, starts=every(4, 6), steps=80, noise_seeds=()),
    "standard": _MNIST,
    "paper": replace(
        _MNIST,
        data="mnist-test",
        starts=every(16, 4),
        steps=2000,
        ratios=(0.7, 0.8, 0.9, 0.95, 0.99),
        scales=(0.01, 0.02, 0.05, 0.1, 0.2),
        noise_seeds=(),
        short_seeds=(0,),
        estimator=_SKETCH,
    ),
}

_CIFAR = Grid(
    "cifar10",
    "conv-net(width=32)",
    size=2,
    starts=every(2, 10),
    steps=500,
    ratios=(0.7, 0.8, 0.9),
    scales=(1e-4, 1e-3),
    large_scales=(1e-2,),
    short_seeds=SEEDS,
    short_examples=8,
    pruning_lr=5e-5,
    noise_lr=1e-4,
)
CIFAR = {
    "quick": replace(_CIFAR, model="conv-net(width=16)", starts=every(2, 6), steps=20),
    "standard": _CIFAR,
    "paper": replace(
        _CIFAR,
        model="conv-net(width=64)",
        starts=every(2, 4),
        steps=1000,
        ratios=(0.7, 0.8, 0.9, 0.95),
        scales=(1e-4, 3e-4, 1e-3),
        large_scales=(1e-2, 1e-1),
        short_seeds=(0,),
        estimator=_SKETCH,
    ),
}
"""At width 16 the paper's attack finds no more than a blank image has, even without a defense."""

CURVES = presets(
    {
        "training": clients("mnist", CNN, 4096, 16, 128, held_out=512, held_out_start=4352),
        "seeds": SEEDS,
        "estimator": "auto",
        "layer seeds": range(6, 16),  # further ones of runs whose noise is looked at
    },
    quick={
        "training": clients("mnist", CNN, 4096, 16, 12, held_out=512, held_out_start=4352),
        "layer seeds": (),
    },
    paper={
        "training": clients("mnist-test", CNN, 4096, 16, 64, held_out=1024, held_out_start=5000),
        "seeds": (0,),
        "estimator": _SKETCH,
        "layer seeds": (),
    },
)
"""Training on MNIST with four clients of 16 images a round."""

CHEAPEST = "steps=4, restarts=1, finish=None"
CHEAP = "steps=100, restarts=1, finish=None"
"""Of attacks that run on many batches: one start, and no second-order steps at the end."""

_LEVELS: dict[str, Any] = {"ratios": (0.8, 0.9), "scales": (0.01, 0.05)}
AWARE = {
    "quick": replace(MNIST["quick"], **_LEVELS),
    "standard": replace(_MNIST, size=4, starts=every(4, 16), steps=100, noise_seeds=(), **_LEVELS),
    "paper": replace(
        MNIST["paper"],
        size=4,
        starts=every(4, 8),
        ratios=(0.8, 0.9, 0.95),
        scales=(0.001, 0.01, 0.05),
    ),
}
"""Batches of 4, of which an attacker can rebuild something worth protecting."""


def attackers(paper: str, strong: str, aware: str = "") -> dict[str, dict[str, str]]:
    """The paper's, a tuned one, and one that knows the defense; each by its options."""
    return {
        "paper": {"attack": f"paper({paper})", "mechanism": "unknown"},
        "strong": {"attack": f"strong({strong})", "mechanism": "unknown"},
        "aware": {"attack": f"adaptive(unaware=strong({strong}){aware})", "mechanism": "known"},
    }


ATTACKERS = {
    "quick": attackers("steps=80", "steps=60, restarts=1, finish=None", ", finish=None"),
    "standard": attackers("steps=100", CHEAP, ", finish=None"),
    "paper": attackers("steps=2000", "steps=2000"),
}
"""On MNIST; those of `standard` are also `frontier`'s, which shares cells."""


def attacker_of(settings: Settings) -> str:
    """Which of the attackers a cell has."""
    return "aware" if settings["mechanism"] == "known" else Spec.parse(settings["attack"]).name


def _photos(grid: Grid, count: int, options: str) -> tuple[Grid, dict[str, dict[str, str]]]:
    """The first photos, one at a time, which the attack rebuilds where there is no defense."""
    scales = tuple(dict.fromkeys((grid.scales[0], grid.scales[-1], grid.large_scales[0])))
    single = replace(grid, size=1, starts=every(1, count), scales=scales)
    return single, {"aware": attackers("", options, ", finish=None")["aware"]}


CIFAR_AWARE = {
    "quick": _photos(replace(CIFAR["quick"], ratios=(0.8, 0.9), scales=(1e-3,)), 1, CHEAPEST),
    "standard": _photos(replace(_CIFAR, model="conv-net(width=16)"), 16, CHEAP),
    "paper": _photos(replace(CIFAR["paper"], ratios=(0.7, 0.8, 0.9)), 16, CHEAP),
}

PUBLIC, LAYERS, PRIVATE, NO_PLAN = "public", "public, one level per layer", "private", ""

Contender = tuple[str, str, float | None]
"""The name of a defense, what its plan is made from, and its level."""


def contender_of(settings: Settings) -> Contender:
    """Which contender a cell has."""
    name, level = name_and_level(settings["defense"])
    options = Spec.parse(settings["defense"], "defense").arguments
    if settings.get("public"):
        return name, LAYERS if options.get("granularity") == "layer" else PUBLIC, level
    return name, PRIVATE if options.get("source") == "private" else NO_PLAN, level


def spec_of(contender: Contender) -> str:
    """Its specification; a public plan is made elsewhere (the setting `public` of its cells)."""
    name, plan, level = contender
    if plan in (PRIVATE, NO_PLAN):
        return defense_spec(name, level)
    spec = Spec(name).with_(**{"ratio" if is_pruning(name) else "scale": level})
    return str(spec.with_(granularity="layer") if plan == LAYERS else spec)


def at_levels(name: str, plan: str, *levels: float | None) -> tuple[Contender, ...]:
    """A defense with one kind of plan at several levels."""
    return tuple((name, plan, level) for level in levels)


def contenders(
    scales: tuple[float, ...], ratios: tuple[float, ...], optimal_ratios: tuple[float, ...]
) -> tuple[Contender, ...]:
    """Those that claims compare: clamped noise and pruning, classical, and with public plans."""
    return (
        *at_levels("no-defense", NO_PLAN, None),
        *at_levels("clamped-noise", NO_PLAN, *scales),
        *at_levels("optimal-clamped-noise", PUBLIC, *scales),
        *at_levels("gradient-pruning", NO_PLAN, *ratios),
        *at_levels("optimal-pruning", PUBLIC, *optimal_ratios),
    )


@dataclass(frozen=True)
class Frontier:
    """Attacks on batches and real trainings, for all contenders."""

    training: Settings
    """The settings that all trainings share."""
    attack: Settings
    """Those of all attacks: data, model and size of a batch."""
    starts: tuple[int, ...]
    """The first image of each batch."""
    seeds: tuple[int, ...]
    attackers: Mapping[str, Settings]
    public: Mapping[str, int]
    """The examples of public plans: neither attacked nor trained on nor held out."""
    contenders: tuple[Contender, ...]
    """Those that the claims compare: on all batches, with all seeds."""
    others: tuple[Contender, ...] = ()
    few_batches: int = 6
    """For the others, and for all with the attacker "strong"."""
    few_seeds: int = 3
    """For the others."""
    draws: int = 0
    """Of candidates among whom one is to be identified."""
    identification: Settings | None = None

    def cells(self) -> list[Cell]:
        """Trainings, trials of identification and attacks."""
        every = (*self.contenders, *self.others)
        return [cell for contender in every for cell in self._cells(contender)]

    def _cells(self, contender: Contender) -> Iterable[Cell]:
        main, planned = contender in self.contenders, contender[1] in (PUBLIC, LAYERS)
        defense = {"defense": spec_of(contender), **({"public": self.public} if planned else {})}
        seeds = self.seeds if main else self.seeds[: self.few_seeds]
        yield from product_cells("training", {**self.training, **defense}, seed=seeds)
        # photos of the public plans' own data set: the embedded ones have none to plan from
        data = {"data": self.training["data"]} if planned else {}
        attacked = {**self.attack, "seed": 0, **data, **defense}
        told = {"public": None, **attacked, **(self.identification or {})}
        yield from product_cells("identification", told, start=range(self.draws))
        for name, options in self.attackers.items():
            starts = self.starts if main and name != "strong" else self.starts[: self.few_batches]
            yield from product_cells("attack", {**attacked, **options}, start=starts)


_RATE = 1e-3  # of Adam, for all defenses: their losses are compared with one another


_DIGITS = Frontier(
    {**CURVES["standard"]["training"], "lr": _RATE},
    {"data": "mnist", "model": CNN, "size": 4},
    every(4, 16),
    SEEDS,
    ATTACKERS["standard"],
    {"start": 4096, "examples": 128, "refresh": 16},
    contenders((0.01, 0.05, 0.1), (0.8, 0.9, 0.99), (0.5, 0.8, 0.9)),
    others=(
        *at_levels("optimal-clamped-noise", PRIVATE, 0.05, 0.1),
        *at_levels("optimal-clamped-noise", LAYERS, 0.05, 0.1),
        *at_levels("optimal-pruning", PRIVATE, 0.8, 0.9),
        # as with clamping, where no entry reaches the threshold
        *at_levels("gradient-noise", NO_PLAN, 0.05),
        *at_levels("optimal-noise", PUBLIC, 0.05),
        *at_levels("laplace-noise", NO_PLAN, 0.05, 0.1),
        *at_levels("sign-compression", NO_PLAN, None),
    ),
    draws=2,
    identification={"examples": 2000, "candidates": 60, "one_class": True, "trials": 20},
)
FRONTIER = {
    "quick": replace(
        _DIGITS,
        training={**_DIGITS.training, "rounds": 2},
        starts=(0,),
        seeds=(0,),
        attackers=attackers("steps=4", CHEAPEST, ", finish=None"),
        public={"start": 4096, "examples": 16, "refresh": 2},
        contenders=contenders((0.05, 0.1), (0.8, 0.9), (0.8, 0.9)),
        others=(),
        draws=1,
        identification={"examples": 2000, "candidates": 8, "one_class": True, "trials": 3},
    ),
    "standard": _DIGITS,
    "paper": _DIGITS,
}


def _photo_frontier(preset: str) -> Frontier:
    grid, attackers = CIFAR_AWARE[preset]
    training = clients("cifar10-test", grid.model, 640, 8, 64, held_out=142, held_out_start=704)
    return Frontier(
        {**training, "lr": _RATE},
        {"data": grid.data, "model": grid.model, "size": grid.size},
        grid.starts,
        SEEDS,
        attackers,
        {"start": 640, "examples": 64, "refresh": 16},
        contenders((1e-4, 1e-3, 1e-2), (0.8, 0.9, 0.99), (0.1, 0.3, 0.7, 0.8)),
    )


_FEW = clients("cifar10", "conv-net(width=16)", 8, 2, 2, held_out=4, held_out_start=16)
PHOTO_FRONTIER = {
    "quick": replace(
        _photo_frontier("quick"),
        training={**_FEW, "lr": _RATE},
        seeds=(0,),
        public={"start": 8, "examples": 8, "refresh": 2},
        contenders=contenders((1e-3, 1e-2), (0.8, 0.9), (0.8, 0.9)),
    ),
    "standard": _photo_frontier("standard"),
    "paper": _photo_frontier("standard"),
}
"""Where a defense needs no plan, levels of `CIFAR_AWARE` have its cells."""
