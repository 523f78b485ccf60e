"""Whether a study's attack works at all: its cells without a defense beside a blind guess."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from gradveil.scoring import AgainstGuess, against_guess, gain_over_guess
from gradveil.studies.runner import Settings, StoreResults
from gradveil.studies.shared import Pair, Units, attacker_of, nested, select, units_of

from ._equal_loss import EqualLoss
from ._pairs import uncapped

UNDEFENDED = "no-defense"
SAME = ("data", "model", "size", "attack", "mechanism", "model_seed", "trained", "local")
"""Two attack cells with equal values of these attack alike."""


@dataclass(frozen=True)
class AttackMeasure:
    """A measure of a claim that is read off attacks: worth what these attacks are."""

    measure: Callable[[StoreResults], Units | EqualLoss]
    study: str
    metric: str
    """The score that the claim compares."""
    attacker: str | None = None

    def __call__(self, results: StoreResults) -> Units:
        return self.compared(results).units

    def compared(self, results: StoreResults) -> EqualLoss:
        """The differences, and what losses leave open of them, where these have a part in it."""
        found = self.measure(results)
        return found if isinstance(found, EqualLoss) else EqualLoss(found, 0.0)

    def undefended(self, results: StoreResults) -> AgainstGuess | None:
        """The same attack without a defense, beside an image of the mean colour, in decibels.

        The cells may be of any study; `None` where there are none.
        """
        alike = {_key(s) for s, _ in self._cells(results)}
        pairs = {_unit(p): p for p in _all_undefended(results) if _key(p[0]) in alike}
        error = uncapped(self.metric).replace("psnr", "mse")
        errors, guesses = (units_of(pairs.values(), name) for name in (error, "blank_mse"))
        if not errors:
            return None
        gains = {unit: gain_over_guess(errors[unit], guesses[unit]) for unit in errors}
        return against_guess(nested(gains), torch.Generator().manual_seed(0))

    def _cells(self, results: StoreResults) -> Iterator[Pair]:
        for settings, result in select(results.get(self.study, {}), "attack"):
            if self.attacker is None or attacker_of(settings) == self.attacker:
                yield settings, result


def undefended_gains(results: StoreResults, study: str) -> str:
    """What each attacker of a study reaches without a defense, matched, as text."""
    attackers = sorted({attacker_of(s) for s, _ in select(results.get(study, {}), "attack")})
    measures = {name: AttackMeasure(lambda _: {}, study, "mse", name) for name in attackers}
    found = {name: measure.undefended(results) for name, measure in measures.items()}
    gains = [(name, one.gain) for name, one in found.items() if one is not None]
    return ", ".join(
        f"{name} {gain.mean:.1f} [{gain.low:.1f}, {gain.high:.1f}] dB" for name, gain in gains
    )


def _all_undefended(results: StoreResults) -> Iterator[Pair]:
    for cells in results.values():
        yield from select(cells, "attack", defense=UNDEFENDED)


def _key(settings: Settings) -> str:
    return repr([settings.get(name) for name in SAME])


def _unit(pair: Pair) -> tuple[int, int]:
    return pair[0].get("start", 0), pair[0].get("seed", 0)
