"""The whole search: curves, goals, later moments, and the result that they give."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gradveil.catalog import Spec, build_defense

from .._amounts import plan_of, planned
from .._defaults import PLAN_NOTE, RANGE_NOTE
from .._frontier import Curve, Frontier, Point
from .._result import AuditResult
from .._settings import describe_setup
from .._subject import Subject
from .._undefended import Undefended, blind_guess
from ..report import pictures
from ._answers import answer_of
from ._assemble import defense_result, shown_settings, undefended_of
from ._axis import Axis
from ._dominance import dominated
from ._goal import Goal
from ._measuring import Training, make_pool
from ._search import PLAIN, WORK, Search
from ._solve import REFINEMENTS, SHORTLIST, Solved, solve_wishes
from ._strengths import hidden, next_strengths
from ._wishes import wishes_of

FIRST = 3
"""Strengths of each defense that are measured before any is chosen."""
POINT = WORK["attack"] + WORK["identify"] + WORK["train"] + WORK["bound"]
EQUAL = (
    "Each defense was run over strengths; what it protects is compared with the loss after a real"
    " training."
)


def expected_work(axes: Sequence[Axis], strengths: int, wishes: int, training: Training) -> float:
    """About how much there is to do, for the progress bar."""
    later = (WORK["attack"] + WORK["identify"]) * (len(training.moments()) - 1)
    swept = sum(strengths if axis.swept else 1 for axis in axes)
    refined = wishes * min(SHORTLIST, len(axes)) * REFINEMENTS
    shown = wishes + 1
    return POINT * (1 + swept + refined) + shown * (later + WORK["detail"])


def run_search(
    search: Search,
    subject: Subject,
    axes: Sequence[Axis],
    goals: Sequence[Goal],
    strengths: int,
    names: Mapping[str, str],
) -> AuditResult:
    """Measure, solve and put the result together; what there is, if it was stopped."""
    moments = search.plan.training.moments()
    undefended = Axis(PLAIN, Spec(PLAIN))
    first = [(axis, s) for axis in axes for s in axis.start[:FIRST][:strengths]]
    cells = [search.plan.smooth(), *search.cells([(undefended, 0.0)], moments)]
    search.run("no defense, and first strengths", [*cells, *search.cells(first)])
    found = undefended_of(search.results, search.plan, subject, PLAIN, search.plan.threat)
    able = found is not None and found.can_judge
    while more := _more(search, axes, strengths, able):
        search.measure("further strengths", more)
        if search.stopped:
            break
    solved = solve_wishes(search, axes, wishes_of(goals, able), able)
    shown = _shown(search, solved)
    search.run("details", [search.plan.detail(point.defense) for _, point in shown])
    return _result(search, subject, axes, solved, shown, found, names)


def _more(
    search: Search, axes: Sequence[Axis], strengths: int, able: bool
) -> list[tuple[Axis, float]]:
    """The strengths that curves still need."""
    wanted = []
    for axis in axes:
        points = search.points(axis)
        values = {s: hidden(p, able) for s, p in points.items()}
        known = {s: value for s, value in values.items() if value is not None}
        new = next_strengths(axis, known, strengths - len(points))
        wanted += [(axis, s) for s in new if s not in points]
    return wanted


def _shown(search: Search, solved: Sequence[Solved]) -> list[tuple[str, Point]]:
    """The undefended message, and the settings of the answers."""
    pairs = [("no defense", search.plain())]
    for one in solved:
        setting = one.best or one.nearest or one.within_cost
        if setting is not None:
            point = search.points(setting.axis)[setting.strength]
            pairs.append((setting.axis.name, point))
    return shown_settings(pairs)


def _result(
    search: Search,
    subject: Subject,
    axes: Sequence[Axis],
    solved: Sequence[Solved],
    shown: Sequence[tuple[str, Point]],
    found: Undefended | None,
    names: Mapping[str, str],
) -> AuditResult:
    plan, plain = search.plan, search.plain()
    able = found is None or found.can_judge
    details = [
        defense_result(search.results, plan, subject, name, point, plain, able)
        for name, point in shown
    ]
    curves = _curves(search, subject, axes, able)
    leaks = any(curve.plan == "private" for curve in curves)
    notes = [*([PLAN_NOTE] if leaks else []), *search.notes]
    if not subject.range_is_public:
        notes.append(RANGE_NOTE)
    setup = describe_setup(subject, plan.seeds, plan.seed, "curves", plan.threat, EQUAL, names)
    return AuditResult(
        setup=setup,
        defenses=tuple(one for one in details if one is not None),
        originals=pictures(subject.data.to_pixels(subject.batch(0)[0])),
        complete=search.stopped is None,
        notes=tuple(notes),
        stopped=search.stopped,
        undefended=found,
        frontier=_frontier(search, subject, curves, solved, plain),
    )


def _frontier(
    search: Search,
    subject: Subject,
    curves: Sequence[Curve],
    solved: Sequence[Solved],
    plain: Point,
) -> Frontier:
    plan, guess = search.plan, blind_guess(subject, search.plan.threat.labels == "known")
    training, trained = plan.training, search.results.get(plan.train(PLAIN))
    errors = guess.errors.double().clamp(min=1e-12)
    return Frontier(
        undefended=plain,
        curves=tuple(curves),
        answers=tuple(answer_of(_renewed(search, one), subject, plan, plain) for one in solved),
        rounds=training.rounds,
        clients=training.clients,
        training_seeds=training.seeds,
        optimizer=f"{training.optimizer}, rate {training.lr:g}",
        loss_before=None if trained is None else trained["before"],
        moments=training.moments(),
        guess=guess.name,
        guess_psnr=float((-10 * errors.log10()).mean()) if subject.is_image else None,
        trained_on="public" if make_pool(subject, training.clients).is_public else "audited",
        delta=plan.releases.delta,
        epsilon_rounds=plan.releases.rounds,
    )


def _renewed(search: Search, solved: Solved) -> Solved:
    """The same with its points as they are known in the end, later moments included."""
    fresh = {}
    for name in ("best", "nearest", "within_cost"):
        setting = getattr(solved, name)
        if setting is not None:
            fresh[name] = replace(setting, point=search.points(setting.axis)[setting.strength])
    return replace(solved, **fresh)


def _curves(search: Search, subject: Subject, axes: Sequence[Axis], able: bool) -> list[Curve]:
    points = {axis.name: [*search.points(axis).values()] for axis in axes}
    better = dominated(points, able)
    curves = []
    for axis in axes:
        defense = planned(subject, build_defense(axis.at(axis.start[0]), allow_imports=True))
        curves.append(
            Curve(
                axis.name,
                defense.family,
                axis.amount_name,
                plan_of(defense),
                tuple(points[axis.name]),
                better.get(axis.name, ""),
            )
        )
    return curves
