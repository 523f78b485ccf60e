"""The detailed results of the settings that are shown."""

from collections.abc import Sequence

from gradveil.attacks import ThreatModel
from gradveil.catalog import build_defense

from .._amounts import planned, unique_names
from .._defense_measurement import Measurement
from .._frontier import Point
from .._restore import restore
from .._result import DefenseResult, TrainingResult
from .._subject import Subject
from .._summary import judged, nested_runs
from .._undefended import Undefended, blind_guess, check_undefended
from ._measuring import Plan, Results, attacks_of


def undefended_of(
    results: Results, plan: Plan, subject: Subject, plain: str, threat: ThreatModel
) -> Undefended | None:
    """Whether the attacks work on this model at all."""
    guess = blind_guess(subject, threat.labels == "known")
    return check_undefended(attacks_of(results, plan, plain), guess, nested_runs)


def defense_result(
    results: Results,
    plan: Plan,
    subject: Subject,
    name: str,
    point: Point,
    free: Point,
    able: bool,
) -> DefenseResult | None:
    """The details of one setting; `None` if they were not measured."""
    found = results.get(plan.detail(point.defense))
    if found is None:
        return None
    costs: Measurement = restore(Measurement, dict(found))
    defense = planned(subject, build_defense(point.defense, allow_imports=True))
    attacks = tuple(attacks_of(results, plan, point.defense))
    guess = blind_guess(subject, plan.threat.labels == "known")
    training = _training(results, plan, point, free)
    return judged(subject, name, defense, costs, training, attacks, guess, able)


def _training(results: Results, plan: Plan, point: Point, free: Point) -> TrainingResult | None:
    trained = results.get(plan.train(point.defense))
    if trained is None or point.loss is None or free.loss is None:
        return None
    return TrainingResult(plan.training.rounds, trained["before"], point.loss, free.loss.mean)


def shown_settings(pairs: Sequence[tuple[str, Point]]) -> list[tuple[str, Point]]:
    """Each setting once, under unique names."""
    by_text = {point.defense: (name, point) for name, point in reversed(pairs)}
    once = list(reversed(by_text.values()))
    names = unique_names([name for name, _ in once])
    return [(name, point) for name, (_, point) in zip(names, once, strict=True)]
