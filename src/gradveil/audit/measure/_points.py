"""Points of curves from the results of their cells."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gradveil._random import numbered_stream
from gradveil._runner import Cell
from gradveil.catalog import build_defense
from gradveil.scoring import Interval, bootstrap_interval

from .._result import AttackResult, Leak, Point, RunResult, ToldApart, privacy_of, restore
from ._cells import PLAIN, Plan
from ._details import CANDIDATES
from ._guess import BlindGuess, beats_guess, nested_runs

Found = Mapping[str, Any]

Results = Mapping[Cell, Found]


def point_of(
    results: Results,
    plan: Plan,
    defense: str,
    amount: float | None,
    guess: BlindGuess,
) -> Point:
    """What is known of one setting."""
    trained, free = (results.get(plan.train(each)) for each in (defense, PLAIN))
    bound, smooth = results.get(plan.bound(defense)), results.get(plan.smooth())
    privacy = privacy_of(build_defense(defense, allow_imports=True), plan.releases, CANDIDATES)
    seen = plan.attack if plan.attacks else plan.identify
    moments = [m for m in plan.moments if seen(defense, m) in results]
    return Point(
        defense=defense,
        amount=amount,
        leaks=tuple(leak_of(results, plan, defense, moment, guess) for moment in moments),
        loss=None if trained is None else interval_of(trained["losses"]),
        accuracy=None if trained is None else interval_of(trained["accuracies"], absent=None),
        extra_loss=_extra(trained, free),
        bound=None if bound is None else bound["bound"],
        bound_holds=smooth is not None and not smooth["reason"],
        epsilon=None if privacy is None else privacy.epsilon_rounds,
    )


def attacks_of(results: Results, plan: Plan, defense: str, moment: int = 0) -> list[AttackResult]:
    """The attacks on one setting at one moment."""
    found = results.get(plan.attack(defense, moment))
    return [] if found is None else [restore(AttackResult, one) for one in found["attacks"]]


def leak_of(results: Results, plan: Plan, defense: str, moment: int, guess: BlindGuess) -> Leak:
    """The strongest attack at one moment, and what the exact attacker reached."""
    attacks = attacks_of(results, plan, defense, moment)
    identified = results.get(plan.identify(defense, moment))
    told = identified["told_apart"] if identified is not None else None
    told_apart = None if told is None else restore(ToldApart, told)
    if not attacks:
        return Leak(moment, "", False, None, None, told_apart)
    best = min(attacks, key=lambda attack: _share(attack, guess).mean)
    rated = [beats_guess(attack, guess) for attack in attacks]
    return Leak(
        round=moment,
        attack=best.attack,
        knows_defense=best.knows_defense,
        error=_share(best, guess),
        psnr=_largest([attack.psnr for attack in attacks]),
        told_apart=told_apart,
        pictures=best.runs[0].pictures,
        copies=max(one.copies for one in rated),
        examples=rated[0].examples,
    )


def _largest(found: Sequence[Interval | None]) -> Interval | None:
    """The one with the highest end."""
    known = [one for one in found if one is not None]
    return max(known, key=lambda one: one.high) if known else None


def _share(attack: AttackResult, guess: BlindGuess) -> Interval:
    """The squared error over the guess's, example by example, of the best mix of both.

    An example with no further error than the guess has 1, whether it is easy to guess or not.
    """
    guessed = guess.errors.double().clamp(min=1e-12).tolist()

    def shares(run: RunResult) -> tuple[float, ...]:
        errors = run.mixed or run.mse_pixels
        own = guessed[run.batch * len(errors) :]
        return tuple(e / g for e, g in zip(errors, own, strict=False))

    return bootstrap_interval(nested_runs(attack.runs, shares), generator=numbered_stream(0))


def interval_of(values: Sequence[float | None], absent: float | None = math.inf) -> Interval | None:
    """Over seeds; infinite where one training diverged. `None` where there are no numbers."""
    known = [absent if value is None else value for value in values]
    if any(value is None for value in known):
        return None
    if not all(math.isfinite(value) for value in known if value is not None):
        return Interval(math.inf, math.inf, math.inf)
    return bootstrap_interval(
        torch.tensor(known, dtype=torch.float64), generator=numbered_stream(0)
    )


def _extra(trained: Found | None, free: Found | None) -> Interval | None:
    """Of every seed of the noise, beside the one undefended training with the same batches."""
    if trained is None or free is None or free["losses"][0] is None:
        return None
    plain = free["losses"][0]
    size = max(abs(plain), 1e-12)
    return interval_of(
        [None if loss is None else (loss - plain) / size for loss in trained["losses"]]
    )
