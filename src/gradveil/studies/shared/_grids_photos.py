"""The presets of the attacker who knows the defense on single photos, and of training on photos."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gradveil.studies.runner import Cell

from ._grids import CIFAR, Grid, every
from ._grids_beyond import CHEAP, CHEAPEST, three_attackers
from ._grids_frontier import NO_PLAN, PUBLIC, RATE, Contender, at_levels, spec_of
from ._numbers import OF_PHOTOS


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
        return Cell(f"{OF_PHOTOS}training", {**self.training, **own})

    def _attack(self, contender: Contender, start: int, options: Mapping[str, str]) -> Cell:
        grid, own = replace(self.aware[0], starts=(start,)), self._defense(contender)
        [cell] = grid.attack_cells([own["defense"]], **options)
        if "public" not in own:
            return cell
        data = self.training["data"]
        return Cell(f"{OF_PHOTOS}attack", {**cell.settings, **own, "data": data})

    def _defense(self, contender: Contender) -> dict[str, Any]:
        planned = contender[1] == PUBLIC
        return {"defense": spec_of(contender), **({"public": self.public} if planned else {})}


def _contenders(
    scales: tuple[float, ...], ratios: tuple[float, ...], optimal_ratios: tuple[float, ...]
) -> tuple[Contender, ...]:
    return (
        *at_levels("no-defense", NO_PLAN, None),
        *at_levels("dpsgd", NO_PLAN, *scales),
        *at_levels("optimal-dpsgd", PUBLIC, *scales),
        *at_levels("gradient-pruning", NO_PLAN, *ratios),
        *at_levels("optimal-pruning", PUBLIC, *optimal_ratios),
    )


_TRAINING: Mapping[str, Any] = {
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
_STANDARD = PhotoGrid(
    CIFAR_AWARE["standard"],
    _TRAINING,
    {"start": 640, "examples": 64, "refresh": 16},
    tuple(range(6)),
    _contenders((1e-4, 1e-3, 1e-2), (0.8, 0.9, 0.99), (0.1, 0.3, 0.7, 0.8)),
)

PHOTO_FRONTIER = {
    "quick": replace(
        _STANDARD,
        aware=CIFAR_AWARE["quick"],
        training={
            **_TRAINING,
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
    "standard": _STANDARD,
    "paper": replace(_STANDARD, aware=CIFAR_AWARE["paper"]),
}
