"""The presets: which data, model, batches, seeds, steps and levels each of them takes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gradveil._runner import Cell, Settings
from gradveil.catalog import Spec

from .numbers import defense_spec, is_pruning, name_and_level
from .study import cell_of

PRUNING = ("gradient-pruning", "optimal-pruning")
NOISE = ("clamped-noise", "optimal-clamped-noise")


@dataclass(frozen=True)
class Grid:
    """Reconstruction and short training on one data set."""

    data: str
    model: str
    size: int
    """Images in a batch that is attacked."""
    starts: tuple[int, ...]
    """The first image of each batch."""
    seeds: tuple[int, ...]
    steps: int
    """Of the attack."""
    ratios: tuple[float, ...]
    scales: tuple[float, ...]
    large_scales: tuple[float, ...] = ()
    noise_seeds: tuple[int, ...] = ()
    """Further seeds of defenses that draw noise."""
    estimator: str = "auto"
    short_seeds: tuple[int, ...] = (0,)
    """Of the five training steps on one batch."""
    short_examples: int = 64
    pruning_lr: float = 1e-3
    noise_lr: float = 1e-3
    """Of those five steps."""

    @property
    def attack(self) -> str:
        """Inverting Gradients as in the paper."""
        return f"paper(steps={self.steps})"

    def levels(self, names: Iterable[str], levels: Iterable[float]) -> list[str]:
        """Specifications of all these defenses at all these levels."""
        levels = [*levels]
        return [defense_spec(name, level, self.estimator) for level in levels for name in names]

    def attack_cells(self, defenses: Iterable[str], **changes: Any) -> list[Cell]:
        """Each defense on each batch and seed; the first seed of all batches comes first."""
        defenses = [*defenses]
        noisy = {defense for defense in defenses if name_and_level(defense)[0] in NOISE}
        common: Mapping[str, Any] = {
            "data": self.data,
            "model": self.model,
            "size": self.size,
            "attack": self.attack,
            "mechanism": "unknown",
            **changes,
        }
        return [
            cell_of("attack", {**common, "start": start, "seed": seed, "defense": defense})
            for seed in (*self.seeds, *self.noise_seeds)
            for start in self.starts
            for defense in defenses
            if seed in self.seeds or defense in noisy
        ]

    def short_cells(self, defenses: Iterable[str]) -> list[Cell]:
        """Five steps of Adam by four clients on one batch, for each defense and seed."""
        defenses = [*defenses]
        return [
            cell_of(
                "short_training",
                {
                    "data": self.data,
                    "model": self.model,
                    "start": 0,
                    "examples": self.short_examples,
                    "clients": 4,
                    "batch_size": self.short_examples // 4,
                    "rounds": 5,
                    "optimizer": "adam",
                    "lr": self.pruning_lr if is_pruning(defense) else self.noise_lr,
                    "defense": defense,
                    "seed": seed,
                },
            )
            for seed in self.short_seeds
            for defense in defenses
        ]


@dataclass(frozen=True)
class Curves:
    """Training on MNIST with four clients of 16 images a round."""

    data: str
    rounds: int
    seeds: tuple[int, ...]
    estimator: str = "auto"
    layer_seeds: tuple[int, ...] = ()
    """Further seeds of the runs whose noise is looked at layer by layer."""
    examples: int = 4096
    held_out: tuple[int, int] = (4352, 512)
    """The first of the held-out examples, and how many."""

    def settings(self, defense: str, seed: int) -> dict[str, Any]:
        """One run; the learning rate is the paper's for the kind of defense."""
        return {
            "data": self.data,
            "model": "simple-conv-net",
            "start": 0,
            "examples": self.examples,
            "clients": 4,
            "batch_size": 16,
            "rounds": self.rounds,
            "optimizer": "adam",
            "lr": 5e-4 if is_pruning(defense) else 1e-3,
            "defense": defense,
            "seed": seed,
            "held_out": self.held_out[1],
            "held_out_start": self.held_out[0],
        }

    def cells(
        self, defenses: Iterable[tuple[str, float | None]], more: Iterable[int] = ()
    ) -> list[Cell]:
        """Each defense with each seed; the first seed of all defenses comes first."""
        specs = [defense_spec(name, level, self.estimator) for name, level in defenses]
        return [
            cell_of("training", self.settings(spec, seed))
            for seed in (*self.seeds, *more)
            for spec in specs
        ]


def every(step: int, count: int) -> tuple[int, ...]:
    """The starts of `count` consecutive batches of `step` images."""
    return tuple(range(0, step * count, step))


_SKETCH = "sketch(probes=10)"
_CNN = "simple-conv-net"

MNIST = {
    "quick": Grid(
        "mnist",
        _CNN,
        size=4,
        starts=every(4, 6),
        seeds=(0,),
        steps=80,
        ratios=(0.8, 0.9, 0.95),
        scales=(0.01, 0.05, 0.1),
        short_seeds=tuple(range(6)),
    ),
    "standard": Grid(
        "mnist",
        _CNN,
        size=16,
        starts=every(16, 16),
        seeds=(0,),
        steps=500,
        ratios=(0.8, 0.9, 0.95),
        scales=(0.01, 0.05, 0.1),
        noise_seeds=(1, 2),
        short_seeds=tuple(range(6)),
    ),
    "paper": Grid(
        "mnist-test",
        _CNN,
        size=16,
        starts=every(16, 4),
        seeds=(0,),
        steps=2000,
        ratios=(0.7, 0.8, 0.9, 0.95, 0.99),
        scales=(0.01, 0.02, 0.05, 0.1, 0.2),
        estimator=_SKETCH,
    ),
}

_CIFAR = Grid(
    "cifar10",
    "conv-net(width=16)",
    size=2,
    starts=every(2, 4),
    seeds=(0,),
    steps=1000,
    ratios=(0.7, 0.8, 0.9, 0.95),
    scales=(1e-4, 3e-4, 1e-3),
    large_scales=(1e-2, 1e-1),
    short_examples=8,
    pruning_lr=5e-5,
    noise_lr=1e-4,
)

_SMALL_CIFAR = replace(
    _CIFAR,
    starts=every(2, 6),
    ratios=(0.7, 0.8, 0.9),
    scales=(1e-4, 1e-3),
    large_scales=(1e-2,),
    short_seeds=tuple(range(6)),
)

CIFAR = {
    "quick": replace(_SMALL_CIFAR, steps=20),
    "standard": replace(_SMALL_CIFAR, model="conv-net(width=32)", starts=every(2, 10), steps=500),
    "paper": replace(_CIFAR, model="conv-net(width=64)", estimator=_SKETCH),
}
"""At width 16 the paper's attack finds no more than a blank image has, even without a defense."""

CURVES = {
    "quick": Curves("mnist", rounds=12, seeds=tuple(range(6))),
    "standard": Curves("mnist", rounds=128, seeds=tuple(range(6)), layer_seeds=tuple(range(6, 16))),
    "paper": Curves("mnist-test", rounds=64, seeds=(0,), estimator=_SKETCH, held_out=(5000, 1024)),
}


_QUICK = "steps=60, restarts=1, finish=None"
CHEAPEST = "steps=4, restarts=1, finish=None"
CHEAP = "steps=100, restarts=1, finish=None"
"""Of attacks that run on many batches: one start, and no second-order steps at the end."""

AWARE = {
    "quick": replace(MNIST["quick"], ratios=(0.8, 0.9), scales=(0.01, 0.05)),
    "standard": replace(
        MNIST["standard"],
        size=4,
        starts=every(4, 16),
        steps=100,
        ratios=(0.8, 0.9),
        scales=(0.01, 0.05),
        noise_seeds=(),
    ),
    "paper": replace(
        MNIST["paper"],
        size=4,
        starts=every(4, 8),
        steps=2000,
        ratios=(0.8, 0.9, 0.95),
        scales=(0.001, 0.01, 0.05),
    ),
}
"""Batches of 4, of which an attacker can rebuild something worth protecting."""


def attackers(preset: str) -> dict[str, dict[str, str]]:
    """The three attackers of a preset; in `standard` also those of `frontier`: it shares cells."""
    steps = f"steps={AWARE[preset].steps}"
    strong = {"quick": _QUICK, "standard": CHEAP}.get(preset, steps)
    return three_attackers(steps, strong, "" if preset == "paper" else ", finish=None")


def three_attackers(paper: str, strong: str, aware: str = "") -> dict[str, dict[str, str]]:
    """The paper's, a tuned one, and one that knows the defense; each by its options."""
    return {
        "paper": {"attack": f"paper({paper})", "mechanism": "unknown"},
        "strong": {"attack": f"strong({strong})", "mechanism": "unknown"},
        "aware": {"attack": f"adaptive(unaware=strong({strong}){aware})", "mechanism": "known"},
    }


def attacker_of(settings: Mapping[str, Any]) -> str:
    """Which of the attackers a cell has."""
    return "aware" if settings["mechanism"] == "known" else Spec.parse(settings["attack"]).name


@dataclass(frozen=True)
class BoundGrid:
    """Single images, noise planned from public data, and every attack that fits a CNN."""

    data: str
    starts: tuple[int, ...]
    scales: tuple[float, ...]
    attacks: tuple[str, ...]
    public: Mapping[str, int]
    prior_samples: int = 1000


def _attacks(steps: int, quick: bool) -> tuple[str, ...]:
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

BOUND = {
    "quick": BoundGrid(
        "mnist", every(1, 4), (0.01, 0.1), _attacks(40, True), {**_PUBLIC, "batches": 16}
    ),
    "standard": BoundGrid("mnist", every(1, 6), (0.01, 0.1, 1.0), _attacks(250, False), _PUBLIC),
    "paper": BoundGrid(
        "mnist-test", every(1, 12), (0.001, 0.01, 0.1, 1.0), _attacks(2000, False), _PUBLIC
    ),
}


@dataclass(frozen=True)
class PlanGrid:
    """Estimators and plans on batches of a fresh and of a trained model."""

    grid: Grid
    batches: int
    trained: tuple[int, ...]
    probes: int
    """Of the reference, for each example."""
    public_batches: int
    repeats: int
    """Of the timing."""


PLANS = {
    "quick": PlanGrid(replace(MNIST["quick"], size=16), 4, (0,), 8, 8, 3),
    "standard": PlanGrid(MNIST["standard"], 6, (0, 60), 64, 20, 7),
    "paper": PlanGrid(MNIST["paper"], 8, (0, 60), 64, 20, 7),
}


RATES = {"sgd": 0.1, "momentum": 0.02, "adam": 1e-3}
"""By optimizer, tuned coarsely without a defense (MNIST CNN, batches of 32)."""


@dataclass(frozen=True)
class PredictionGrid:
    """Trainings under noise of several shapes and amounts."""

    common: Mapping[str, Any]
    shapes: tuple[str, ...]
    scales: Mapping[str, tuple[float, ...]]
    """By optimizer: amounts that neither do nothing nor end in divergence."""
    seeds: tuple[int, ...]

    def cells(self) -> list[Cell]:
        """Every shape, amount, optimizer and seed."""
        return [
            cell_of(
                "training_prediction",
                {
                    **self.common,
                    "seed": seed,
                    "optimizer": optimizer,
                    "lr": RATES[optimizer],
                    "scale": scale,
                    "shape": shape,
                },
            )
            for seed in self.seeds
            for optimizer, scales in self.scales.items()
            for scale in scales
            for shape in self.shapes
        ]


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
_BEYOND_TRAINING = {
    "data": "mnist",
    "model": "simple-conv-net",
    "batch_size": 32,
    "examples": 3200,
    "steps": [20, 100],
    "refresh": 30,
    "public": {"start": 3200, "size": 32, "batches": 8},
    "held_out_start": 4000,
    "held_out": 512,
}
_AMOUNTS = {"sgd": (0.05, 0.1, 0.2), "momentum": (0.03, 0.05, 0.1), "adam": (0.01, 0.03, 0.1)}

PREDICTION = {
    "quick": PredictionGrid(
        {
            **_BEYOND_TRAINING,
            "batch_size": 8,
            "steps": [5, 10],
            "public": {"start": 3200, "size": 8, "batches": 4},
            "held_out": 128,
        },
        ("isotropic", "Theorem 2", "curvature", "total power"),
        {"sgd": (0.1, 0.3), "adam": (0.01, 0.1)},
        (0,),
    ),
    "standard": PredictionGrid(_BEYOND_TRAINING, _SHAPES, _AMOUNTS, (0, 1)),
    "paper": PredictionGrid(
        {**_BEYOND_TRAINING, "data": "mnist-test"}, _SHAPES, _AMOUNTS, (0, 1, 2, 3)
    ),
}


@dataclass(frozen=True)
class PublicPlanGrid:
    """Plans from few and from many public batches, through training."""

    data: str
    model: str
    trained: tuple[int, ...]
    batches: int
    counts: tuple[int, ...]
    """Of public batches."""
    population: int
    """Batches that stand for the population."""
    strange: int
    """Batches of another kind; 0 for none."""
    public: int = 2000
    """The first public example."""
    probes: int = 16


PUBLIC_PLANS = {
    "quick": PublicPlanGrid("mnist", MNIST["quick"].model, (0,), 4, (2, 4), 8, 2, probes=4),
    "standard": PublicPlanGrid(
        "mnist", MNIST["standard"].model, (0, 60, 300), 24, (2, 8, 24), 180, 8
    ),
    "paper": PublicPlanGrid(
        "mnist-test", MNIST["paper"].model, (0, 60, 300), 32, (2, 8, 24), 450, 8
    ),
}


@dataclass(frozen=True)
class FedAvgGrid:
    """Clients that send the weight change after local steps."""

    grid: Grid
    local: Mapping[str, Any]
    rounds: int
    seeds: tuple[int, ...]


_LOCAL = {"lr": 0.05, "steps": 4, "batch_size": 2}

FEDAVG = {
    "quick": FedAvgGrid(
        replace(MNIST["quick"], starts=every(4, 4), steps=30), {**_LOCAL, "steps": 2}, 6, (0, 1, 2)
    ),
    "standard": FedAvgGrid(
        replace(AWARE["standard"], starts=every(4, 6), steps=250), _LOCAL, 32, tuple(range(6))
    ),
    "paper": FedAvgGrid(replace(AWARE["paper"], steps=2000), _LOCAL, 64, tuple(range(4))),
}


@dataclass(frozen=True)
class HonestGrid:
    """Candidates for each image that is attacked, and what a prior is learned from."""

    candidates: int
    trials: int
    """Draws of the noise for each image."""
    population: Mapping[str, int]
    """From which candidates are drawn."""
    scales: tuple[float, ...] = (1.0, 3.0)
    """Larger than those that are attacked: with less noise candidates are all told apart."""
    learned: Mapping[str, Any] | None = None
    """Settings of the cell with a learned prior, which takes minutes; None: none."""


_HONEST = HonestGrid(256, 16, {"start": 2100, "count": 2900})

HONEST = {
    "quick": replace(_HONEST, candidates=32, trials=4),
    "standard": _HONEST,
    "paper": replace(
        _HONEST,
        trials=32,
        learned={
            "start": 0,
            "batches": 8,
            "prior": {"start": 5000, "count": 5000, "steps": 2000},
            "probes": 16,
            "seed": 0,
        },
    ),
}


@dataclass(frozen=True)
class FingerprintGrid:
    """Candidates for one example of a batch, on fresh and on trained models."""

    data: str
    model: str
    trained: tuple[int, ...]
    scales: tuple[float, ...]
    size: int
    """Examples in the batch."""
    examples: int
    """From the first so many, candidates and the rest of the batch are drawn."""
    candidates: int
    one_class: bool
    draws: int
    trials: int
    """For each draw."""
    public: Mapping[str, int]


_DIGITS = FingerprintGrid(
    "mnist",
    "simple-conv-net",
    trained=(0, 60),
    scales=(0.1, 1.0, 100.0),
    size=4,
    examples=2000,
    candidates=60,
    one_class=True,
    draws=6,
    trials=50,
    public={"start": 2000, "size": 4, "batches": 24},
)
_PHOTOS = replace(
    _DIGITS,
    data="cifar10",
    model="conv-net(width=16)",
    trained=(0,),
    size=1,
    examples=12,
    candidates=12,
    one_class=False,
    draws=1,
    public={"start": 12, "size": 1, "batches": 8},
)
FINGERPRINT: Mapping[str, tuple[FingerprintGrid, ...]] = {
    "quick": (
        replace(
            _DIGITS, trained=(0,), scales=(1.0, 100.0), size=1, candidates=8, draws=2, trials=3
        ),
    ),
    "standard": (_DIGITS, _PHOTOS),
    "paper": (replace(_DIGITS, draws=20), _PHOTOS),
}
"""The 20 embedded photos are few: one draw of 12 candidates of any class, the others are the public
ones; a model trained on them would know them by heart and send no gradient to tell them by."""


PUBLIC, LAYERS, PRIVATE, NO_PLAN = "public", "public, one level per layer", "private", ""

Contender = tuple[str, str, float | None]
"""The name of a defense, what its plan is made from, and its level."""

RATE = 1e-3
"""Of Adam, for all defenses: their losses are compared with one another."""


def contender_of(settings: Settings) -> Contender:
    """Which contender a cell has."""
    name, level = name_and_level(settings["defense"])
    options = Spec.parse(settings["defense"], "defense").options
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


@dataclass(frozen=True)
class FrontierGrid:
    """Attacks on batches of 4 and real trainings, for all contenders."""

    curves: Curves
    starts: tuple[int, ...]
    """The first image of each batch."""
    attackers: Mapping[str, Mapping[str, str]]
    public: Mapping[str, int]
    """The examples of public plans, between those for training and the held-out ones."""
    contenders: tuple[Contender, ...]
    """Those that the claims compare: attacked on all batches."""
    others: tuple[Contender, ...] = ()
    few: int = 6
    """Batches of the others, and of all for the attacker "strong"."""
    more_seeds: tuple[Contender, ...] = ()
    """Contenders whose losses are compared, with all of the curves' seeds."""
    seeds: int = 3
    """Trainings of all others."""
    draws: int = 2
    trials: int = 20
    candidates: int = 60

    def cells(self) -> list[Cell]:
        """All contenders on one batch and with one seed come before the next batch and seed."""
        waves = max(len(self.starts), len(self.curves.seeds), self.draws)
        return [cell for wave in range(waves) for cell in self._wave(wave)]

    def _wave(self, number: int) -> Iterator[Cell]:
        for contender in (*self.contenders, *self.others):
            seeds = len(self.curves.seeds) if contender in self.more_seeds else self.seeds
            if number < min(seeds, len(self.curves.seeds)):
                yield self._training(contender, self.curves.seeds[number])
        for contender in (*self.contenders, *self.others):
            if number < self.draws:
                yield self._identification(contender, number)
        for attacker, options in self.attackers.items():
            for contender in (*self.contenders, *self.others):
                many = contender in self.contenders and attacker != "strong"
                if number < (len(self.starts) if many else min(self.few, len(self.starts))):
                    yield self._attack(contender, self.starts[number], options)

    def _defense(self, contender: Contender) -> dict[str, Any]:
        planned = contender[1] in (PUBLIC, LAYERS)
        return {"defense": spec_of(contender), **({"public": self.public} if planned else {})}

    def _training(self, contender: Contender, seed: int) -> Cell:
        settings = self.curves.settings(spec_of(contender), seed)
        return cell_of("training", {**settings, "lr": RATE, **self._defense(contender)})

    def _common(self, contender: Contender, start: int) -> dict[str, Any]:
        return {
            "data": self.curves.data,
            "model": MNIST["standard"].model,
            "start": start,
            "size": 4,
            "seed": 0,
            **self._defense(contender),
        }

    def _attack(self, contender: Contender, start: int, options: Mapping[str, str]) -> Cell:
        return cell_of("attack", {**self._common(contender, start), **options})

    def _identification(self, contender: Contender, draw: int) -> Cell:
        own = {
            "examples": 2000,
            "candidates": self.candidates,
            "one_class": True,
            "trials": self.trials,
        }
        return cell_of("identification", {"public": None, **self._common(contender, draw), **own})


def at_levels(name: str, plan: str, *levels: float | None) -> tuple[Contender, ...]:
    """A defense with one kind of plan at several levels."""
    return tuple((name, plan, level) for level in levels)


_SCALES = (0.01, 0.05, 0.1)
_MAIN = (
    *at_levels("no-defense", NO_PLAN, None),
    *at_levels("clamped-noise", NO_PLAN, *_SCALES),
    *at_levels("optimal-clamped-noise", PUBLIC, *_SCALES),
    *at_levels("gradient-pruning", NO_PLAN, 0.8, 0.9, 0.99),
    *at_levels("optimal-pruning", PUBLIC, 0.5, 0.8, 0.9),
)
_OTHERS = (
    *at_levels("optimal-clamped-noise", PRIVATE, 0.05, 0.1),
    *at_levels("optimal-clamped-noise", LAYERS, 0.05, 0.1),
    *at_levels("optimal-pruning", PRIVATE, 0.8, 0.9),
    # as with clamping, where no entry reaches the threshold
    *at_levels("gradient-noise", NO_PLAN, 0.05),
    *at_levels("optimal-noise", PUBLIC, 0.05),
    *at_levels("laplace-noise", NO_PLAN, 0.05, 0.1),
    *at_levels("sign-compression", NO_PLAN, None),
)
_FRONTIER_STANDARD = FrontierGrid(
    CURVES["standard"],
    every(4, 16),
    attackers("standard"),
    {"start": 4096, "examples": 128, "refresh": 16},
    _MAIN,
    _OTHERS,
    more_seeds=_MAIN,
)

FRONTIER = {
    "quick": replace(
        _FRONTIER_STANDARD,
        curves=replace(CURVES["quick"], rounds=2, seeds=(0,)),
        starts=(0,),
        attackers=three_attackers("steps=4", CHEAPEST, ", finish=None"),
        contenders=(
            *at_levels("no-defense", NO_PLAN, None),
            *at_levels("clamped-noise", NO_PLAN, 0.05, 0.1),
            *at_levels("optimal-clamped-noise", PUBLIC, 0.05, 0.1),
            *at_levels("gradient-pruning", NO_PLAN, 0.8, 0.9),
            *at_levels("optimal-pruning", PUBLIC, 0.8, 0.9),
        ),
        others=(),
        draws=1,
        trials=3,
        candidates=8,
        public={"start": 4096, "examples": 16, "refresh": 2},
    ),
    "standard": _FRONTIER_STANDARD,
    "paper": replace(
        _FRONTIER_STANDARD,
        curves=replace(CURVES["paper"], rounds=128, seeds=tuple(range(6))),
        starts=every(4, 24),
        attackers=three_attackers(
            "steps=250", "steps=250, restarts=1, finish=None", ", finish=None"
        ),
        seeds=6,
        draws=10,
    ),
}


def _photos(grid: Grid, count: int, options: str) -> tuple[Grid, dict[str, dict[str, str]]]:
    """The first photos, one at a time, which the attack rebuilds where there is no defense."""
    aware = three_attackers("", options, ", finish=None")["aware"]
    scales = tuple(dict.fromkeys((grid.scales[0], grid.scales[-1], grid.large_scales[0])))
    single = replace(grid, size=1, starts=every(1, count), scales=scales)
    return replace(single, noise_seeds=()), {"aware": aware}


CIFAR_AWARE = {
    "quick": _photos(replace(CIFAR["quick"], ratios=(0.8, 0.9), scales=(1e-3,)), 1, CHEAPEST),
    "standard": _photos(replace(CIFAR["standard"], model="conv-net(width=16)"), 16, CHEAP),
    "paper": _photos(replace(CIFAR["paper"], ratios=(0.7, 0.8, 0.9)), 16, CHEAP),
}


@dataclass(frozen=True)
class PhotoGrid:
    """Trainings on photos, and the attacker who knows the defense on single ones.

    Where a defense needs no plan, levels of `CIFAR_AWARE` have its cells.
    """

    aware: tuple[Grid, Mapping[str, Mapping[str, str]]]
    """The model and the photos that are attacked, and the attacker."""
    training: Mapping[str, Any]
    """The settings that all trainings share."""
    public: Mapping[str, int]
    """The photos of public plans: neither attacked nor trained on nor held out."""
    seeds: tuple[int, ...]
    contenders: tuple[Contender, ...]

    def cells(self) -> list[Cell]:
        """All contenders on one photo and with one seed come before the next photo and seed."""
        waves = max(len(self.aware[0].starts), len(self.seeds))
        return [cell for wave in range(waves) for cell in self._wave(wave)]

    def _wave(self, number: int) -> Iterator[Cell]:
        grid, attackers = self.aware
        for contender in self.contenders:
            if number < len(self.seeds):
                yield self._training(contender, self.seeds[number])
        for contender in self.contenders:
            for options in attackers.values():
                if number < len(grid.starts):
                    yield self._attack(contender, grid.starts[number], options)

    def _training(self, contender: Contender, seed: int) -> Cell:
        own = {"model": self.aware[0].model, "seed": seed, **self._defense(contender)}
        return cell_of("training", {**self.training, **own})

    def _attack(self, contender: Contender, start: int, options: Mapping[str, str]) -> Cell:
        grid, own = replace(self.aware[0], starts=(start,)), self._defense(contender)
        [cell] = grid.attack_cells([own["defense"]], **options)
        if "public" not in own:
            return cell
        data = self.training["data"]
        return cell_of("attack", {**cell.settings, **own, "data": data})

    def _defense(self, contender: Contender) -> dict[str, Any]:
        planned = contender[1] == PUBLIC
        return {"defense": spec_of(contender), **({"public": self.public} if planned else {})}


def _contenders(
    scales: tuple[float, ...], ratios: tuple[float, ...], optimal_ratios: tuple[float, ...]
) -> tuple[Contender, ...]:
    return (
        *at_levels("no-defense", NO_PLAN, None),
        *at_levels("clamped-noise", NO_PLAN, *scales),
        *at_levels("optimal-clamped-noise", PUBLIC, *scales),
        *at_levels("gradient-pruning", NO_PLAN, *ratios),
        *at_levels("optimal-pruning", PUBLIC, *optimal_ratios),
    )


_PHOTOS_TRAINING: Mapping[str, Any] = {
    "data": "cifar10-test",
    "start": 0,
    "examples": 640,
    "clients": 4,
    "batch_size": 8,
    "rounds": 64,
    "optimizer": "adam",
    "lr": RATE,
    "held_out": 142,
    "held_out_start": 704,
}
_PHOTOS_STANDARD = PhotoGrid(
    CIFAR_AWARE["standard"],
    _PHOTOS_TRAINING,
    {"start": 640, "examples": 64, "refresh": 16},
    tuple(range(6)),
    _contenders((1e-4, 1e-3, 1e-2), (0.8, 0.9, 0.99), (0.1, 0.3, 0.7, 0.8)),
)

PHOTO_FRONTIER = {
    "quick": replace(
        _PHOTOS_STANDARD,
        aware=CIFAR_AWARE["quick"],
        training={
            **_PHOTOS_TRAINING,
            "data": "cifar10",
            "examples": 8,
            "batch_size": 2,
            "rounds": 2,
            "held_out": 4,
            "held_out_start": 16,
        },
        public={"start": 8, "examples": 8, "refresh": 2},
        seeds=(0,),
        contenders=_contenders((1e-3, 1e-2), (0.8, 0.9), (0.8, 0.9)),
    ),
    "standard": _PHOTOS_STANDARD,
    "paper": replace(_PHOTOS_STANDARD, aware=CIFAR_AWARE["paper"]),
}


WAYS = ("isotropic", "shaped", "opacus")
"""To a private gradient."""


@dataclass(frozen=True)
class PrivateGrid:
    """Private trainings of one model at several ε."""

    common: Mapping[str, Any]
    epsilons: tuple[float, ...]
    seeds: tuple[int, ...]

    def cells(self) -> list[Cell]:
        """Every way and ε, and a training without privacy; the first seed of all comes first."""
        runs = [("plain", None), *((way, epsilon) for epsilon in self.epsilons for way in WAYS)]
        return [
            cell_of(
                "private_training", {**self.common, "way": way, "epsilon": epsilon, "seed": seed}
            )
            for seed in self.seeds
            for way, epsilon in runs
        ]


_PRIVATE: dict[str, Any] = {
    "data": "mnist",
    "model": "simple-conv-net",
    "delta": 1e-5,
    "clip": 3.0,
    "batch_size": 128,
    "steps": 120,
    "examples": 3200,
    "lr": 2e-3,
    "public": {"start": 3200, "count": 256, "refresh": 20},
    "held_out_start": 4000,
    "held_out": 1000,
}

PRIVATE_TRAINING = {
    "quick": PrivateGrid(
        {
            **_PRIVATE,
            "batch_size": 32,
            "steps": 5,
            "examples": 640,
            "public": {"start": 3200, "count": 32, "refresh": 5},
            "held_out": 128,
        },
        (2.0, 8.0),
        (0, 1),
    ),
    "standard": PrivateGrid(_PRIVATE, (1.0, 3.0, 8.0), tuple(range(6))),
    "paper": PrivateGrid(
        {
            **_PRIVATE,
            "data": "mnist-test",
            "examples": 8000,
            "steps": 250,
            "public": {"start": 8000, "count": 256, "refresh": 20},
            "held_out_start": 8500,
            "held_out": 1500,
        },
        (0.5, 1.0, 2.0, 4.0, 8.0),
        tuple(range(6)),
    ),
}
"""Clip and rate were tuned coarsely for isotropic noise at ε = 3."""


@dataclass(frozen=True)
class LeakageGrid:
    """Attacks and candidates on one model at several stages of its training."""

    data: str
    trained: tuple[int, ...]
    """Steps of training at which the batches are sent."""
    starts: tuple[int, ...]
    attack: str
    """That does not know the defense; the one that does starts from what it finds."""
    draws: int
    trials: int
    """With each draw of candidates."""
    public: Mapping[str, int]
    scale: float = 0.01
    ratio: float = 0.9
    candidates: int = 60
    model: str = "simple-conv-net"
    size: int = 4

    @property
    def attackers(self) -> tuple[dict[str, str], dict[str, str]]:
        """The settings of the one who does not know the defense, and of the one who does."""
        aware = f"adaptive(unaware={self.attack}, finish=None)"
        return (
            {"attack": self.attack, "mechanism": "unknown"},
            {"attack": aware, "mechanism": "known"},
        )

    @property
    def defenses(self) -> dict[str, Mapping[str, int] | None]:
        """Specifications, and where each plan comes from; None: it needs no other data."""
        return {
            "no-defense": None,
            f"gradient-noise(scale={self.scale})": None,
            f"optimal-noise(scale={self.scale})": self.public,
            f"gradient-pruning(ratio={self.ratio})": None,
        }


_LEAKAGE = LeakageGrid(
    "mnist",
    trained=(0, 60, 300),
    starts=every(4, 6),
    attack="strong(steps=100, restarts=1, finish=None)",
    draws=4,
    trials=10,
    public={"start": 2000, "size": 4, "batches": 24},
)

LEAKAGE = {
    "quick": replace(
        _LEAKAGE,
        trained=(0, 20),
        starts=every(4, 2),
        attack="strong(steps=20, restarts=1, finish=None)",
        draws=2,
        trials=3,
        candidates=8,
        public={"start": 2000, "size": 4, "batches": 4},
    ),
    "standard": _LEAKAGE,
    "paper": replace(
        _LEAKAGE,
        data="mnist-test",
        trained=(0, 60, 300, 1000),
        starts=every(4, 12),
        attack="strong(steps=250, restarts=1, finish=None)",
        draws=10,
        trials=20,
    ),
}
