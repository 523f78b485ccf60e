"""The presets of the study `frontier`: every defense, by what its plan is made from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gradveil.catalog import Spec
from gradveil.studies.runner import Cell, Settings

from ._grids import CURVES, MNIST, Curves, every
from ._grids_beyond import CHEAPEST, attackers, three_attackers
from ._levels import defense_spec, is_pruning, name_and_level

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
    return name, PRIVATE if options.get("plan") == "private" else NO_PLAN, level


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
        return Cell("training", {**settings, "lr": RATE, **self._defense(contender)})

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
        return Cell("attack", {**self._common(contender, start), **options})

    def _identification(self, contender: Contender, draw: int) -> Cell:
        own = {
            "examples": 2000,
            "candidates": self.candidates,
            "one_class": True,
            "trials": self.trials,
        }
        return Cell("identification", {"public": None, **self._common(contender, draw), **own})


def at_levels(name: str, plan: str, *levels: float | None) -> tuple[Contender, ...]:
    """A defense with one kind of plan at several levels."""
    return tuple((name, plan, level) for level in levels)


_SCALES = (0.01, 0.05, 0.1)
_MAIN = (
    *at_levels("no-defense", NO_PLAN, None),
    *at_levels("dpsgd", NO_PLAN, *_SCALES),
    *at_levels("optimal-dpsgd", PUBLIC, *_SCALES),
    *at_levels("gradient-pruning", NO_PLAN, 0.8, 0.9, 0.99),
    *at_levels("optimal-pruning", PUBLIC, 0.5, 0.8, 0.9),
)
_OTHERS = (
    *at_levels("optimal-dpsgd", PRIVATE, 0.05, 0.1),
    *at_levels("optimal-dpsgd", LAYERS, 0.05, 0.1),
    *at_levels("optimal-pruning", PRIVATE, 0.8, 0.9),
    # as with clamping, where no entry reaches the threshold
    *at_levels("gradient-noise", NO_PLAN, 0.05),
    *at_levels("optimal-noise", PUBLIC, 0.05),
    *at_levels("laplace-noise", NO_PLAN, 0.05, 0.1),
    *at_levels("sign-compression", NO_PLAN, None),
)
_STANDARD = FrontierGrid(
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
        _STANDARD,
        curves=replace(CURVES["quick"], rounds=2, seeds=(0,)),
        starts=(0,),
        attackers=three_attackers("steps=4", CHEAPEST, ", finish=None"),
        contenders=(
            *at_levels("no-defense", NO_PLAN, None),
            *at_levels("dpsgd", NO_PLAN, 0.05, 0.1),
            *at_levels("optimal-dpsgd", PUBLIC, 0.05, 0.1),
            *at_levels("gradient-pruning", NO_PLAN, 0.8, 0.9),
            *at_levels("optimal-pruning", PUBLIC, 0.8, 0.9),
        ),
        others=(),
        draws=1,
        trials=3,
        candidates=8,
        public={"start": 4096, "examples": 16, "refresh": 2},
    ),
    "standard": _STANDARD,
    "paper": replace(
        _STANDARD,
        curves=replace(CURVES["paper"], rounds=128, seeds=tuple(range(6))),
        starts=every(4, 24),
        attackers=three_attackers(
            "steps=250", "steps=250, restarts=1, finish=None", ", finish=None"
        ),
        seeds=6,
        draws=10,
    ),
}
