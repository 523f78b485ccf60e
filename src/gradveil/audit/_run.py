"""The audit: measure, answer, report."""

import platform
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from gradveil._checks import (
    WrongValue,
    check_kind,
    check_not_negative,
    check_optional_callable,
)
from gradveil._imports import require
from gradveil._random import numbered_stream
from gradveil._runner import Runner
from gradveil.catalog import Spec, build_defense
from gradveil.defenses import PrivateNoise
from gradveil.federated import Federation
from gradveil.sensitivity import measure

from ._answer import SHORTLIST, Wish, hidden, next_strength, solve_wishes, wishes_of
from ._result import (
    CANDIDATES,
    AuditResult,
    Curve,
    DefenseResult,
    Detail,
    Frontier,
    Point,
    Setup,
    privacy_of,
    restore,
)
from ._settings import USUAL_DEFENSES, Settings
from ._subject import Subject, checked_subject
from .measure import (
    NO_DEFENSE,
    Axis,
    Laboratory,
    Progress,
    Search,
    axes_of,
    blind_guess,
    make_pool,
    pictures,
    unique_names,
)
from .report import answer_of, notes, verdict


def run(
    subject: Subject,
    federation: Federation | None = None,
    settings: Settings | None = None,
    *,
    folder: Path | str | None = None,
    time_budget: float | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    command: str = "",
) -> AuditResult:
    """What leaks, what is guaranteed and what it costs; which defense to use, and how strong.

    Each defense is run over strengths, or at the one given. Leakage is what the attacks recover
    from the messages of the private batches, cost the loss after a federated training. Then the
    cheapest setting for each goal is looked for, measured, and attacked again at two later moments
    of its training. Ctrl-C, and the time budget, end it with what is finished (`stopped` says why).

    Args:
        subject: Model, loss and examples.
        federation: In which the model is trained; its batches are cut from the private examples.
        settings: What is compared, attacked and asked for.
        folder: Of what was measured, one file each: an audit that was stopped goes on, and one
            that is asked for again costs nothing. Nothing is kept if `None`.
        time_budget: Seconds; it ends with what is finished.
        jobs: Cells at once; one, in this process, if `None`. Several need a subject that can be
            pickled.
        progress: Called with (what is running, the share that is done).
        command: How to do it again, for the report.
    """
    require("the audit", "gradveil[audit]", "scipy", "torchmetrics", "PIL")
    federation = Federation() if federation is None else federation
    settings = Settings() if settings is None else settings
    check_kind(settings, "settings", Settings, "Use for example `Settings(goals=['psnr<=15'])`.")
    if time_budget is not None:
        check_not_negative(time_budget, "time_budget")
    check_optional_callable(progress, "progress", "Give a function of (what, share).")
    case = checked_subject(subject, federation, labels_known=settings.threat.labels != "unknown")
    settings.threat.check_task(case.data.task)
    if federation.aggregation == "secure":
        expected = "be 'plain' for an audit, which attacks the messages of single clients"
        raise WrongValue("aggregation", expected, "'secure', where the server sees their sum alone")
    laboratory = Laboratory(case, federation, settings)
    asked = USUAL_DEFENSES if settings.defenses is None else settings.defenses
    axes = [axis for axis in axes_of(asked, case) if axis.spec.name != NO_DEFENSE]
    if settings.releases.sample_rate < 1:
        for axis in axes:
            _check_sampled(axis)
    if not case.data.tokens:  # second derivatives, which all else takes; before any work
        inputs, targets = case.batch(0)
        measure(case.message(targets), inputs, "auto", generator=numbered_stream(settings.seed))
    assert laboratory.attacks is not None  # for its errors, before any work
    with (
        TemporaryDirectory() if folder is None else nullcontext(folder) as place,
        Runner(place, holds=laboratory, jobs=jobs) as runner,
    ):
        search = Search(laboratory, runner, progress, time_budget)
        return _Audit(subject, axes, search).run(command)


def _check_sampled(axis: Axis) -> None:
    built = build_defense(axis.at(axis.start[0]), allow_imports=True)
    if isinstance(built, PrivateNoise) and built.unit == "client":
        expected = "be 1 where whole clients are hidden: everybody sees who sends, and who does not"
        raise WrongValue("sample_rate", expected, f"a smaller one with {axis.name}")


class _Audit:
    """One audit, from its first wave of cells to its result."""

    def __init__(self, subject: Subject, axes: Sequence[Axis], search: Search) -> None:
        self.subject, self.axes, self.search = subject, axes, search
        self.laboratory, self.case = search.laboratory, search.laboratory.subject
        self.settings = self.laboratory.settings
        self.answers = bool(self.settings.goals) or any(axis.swept for axis in axes)

    def run(self, command: str) -> AuditResult:
        """Measure, solve and put the result together; what there is, if it was stopped."""
        search, moments = self.search, self.laboratory.moments
        strengths = sum(self.settings.strengths if axis.swept else 1 for axis in self.axes)
        asked = (1 if self.settings.goals else 3) if self.answers else 0
        points = 1 + strengths + asked * (2 + min(SHORTLIST, len(self.axes)))
        search.expected = points * len(search.cells(NO_DEFENSE)) + 1 + (asked or len(self.axes))
        undefended = Axis(NO_DEFENSE, Spec(NO_DEFENSE))
        search.measure("no defense", [(undefended, 0.0)], moments if self.answers else (0,))
        first = [(a, s) for a in self.axes for s in a.start[: self.settings.strengths]]
        search.measure("first strengths", first)
        able = any(leak.works for leak in search.point().leaks[:1])
        while not search.stopped and (more := self._more(able)):
            search.measure("further strengths", more)
        wishes = wishes_of(self.settings.wanted, able) if self.answers else []
        solve_wishes(search, self.axes, wishes, able)
        shown = self._shown(wishes)
        search.run("details", [search.cell("detail", point.defense) for point in shown.values()])
        details = [self._defense(name, point) for name, point in shown.items()]
        frontier = self._frontier(wishes)
        first_batch = self.case.data.to_pixels(self.case.batch(0)[0])
        return AuditResult(
            setup=self._setup(command),
            defenses=tuple(one for one in details if one is not None),
            originals=pictures(first_batch) if self.case.is_image else (),
            notes=notes(search, frontier),
            stopped=search.stopped,
            frontier=frontier,
        )

    def _more(self, able: bool) -> list[tuple[Axis, float]]:
        """The next strength of each curve that still needs one."""
        wanted = []
        for axis in self.axes:
            points = self.search.points(axis)
            values = {s: hidden(p, able) for s, p in points.items()}
            known = {s: value for s, value in values.items() if value is not None}
            new = next_strength(axis, known)
            if new is not None and new not in points and len(points) < self.settings.strengths:
                wanted.append((axis, new))
        return wanted

    def _shown(self, wishes: Sequence[Wish]) -> dict[str, Point]:
        """The undefended message, and the settings of the answers; all without answers; by name."""
        search = self.search
        pairs = [("no defense", search.point())]
        if not self.answers:
            pairs += [(a.name, p) for a in self.axes for p in search.points(a).values()]
        pairs += [(s.axis.name, s.point) for one in wishes if (s := one.shown) is not None]
        once = {point.defense: (name, point) for name, point in reversed(pairs)}
        names, points = zip(*reversed(once.values()), strict=True)
        return dict(zip(unique_names(names), points, strict=True))

    def _defense(self, name: str, point: Point) -> DefenseResult | None:
        """The details of one setting; `None` if they were not measured."""
        found = self.search.found("detail", point.defense)
        if found is None:
            return None
        detail: Detail = restore(Detail, dict(found))
        told = point.leaks[0].told_apart if point.leaks else None
        mean = float(blind_guess(self.case, labels_known=False).errors.mean())
        # what attacks that were not run could judge is not held against a defense
        able = all(leak.works or not leak.attack for leak in self.search.point().leaks[:1])
        able = able or any(leak.works for leak in point.leaks[:1])
        return DefenseResult(
            name=name,
            defense=point.defense,
            plan=self.laboratory.plan_of(point.defense),
            loss=point.loss,
            attacks=tuple(self.search.attacks(point.defense)),
            told_apart=told,
            privacy=privacy_of(
                build_defense(point.defense, allow_imports=True),
                self.settings.releases,
                CANDIDATES if told is None else told.candidates,
            ),
            verdict=verdict(point, detail, mean, self.case.is_image, able=able),
            **vars(detail),
        )

    def _frontier(self, wishes: Sequence[Wish]) -> Frontier:
        laboratory, plain = self.laboratory, self.search.point()
        guess, trained = laboratory.guess, self.search.found("train", NO_DEFENSE)
        errors = guess.errors.double().clamp(min=1e-12)
        plans = [laboratory.plan_of(axis.at(axis.start[0])) for axis in self.axes]
        return Frontier(
            undefended=plain,
            curves=tuple(
                Curve(axis.name, axis.amount_name, plan, tuple(self.search.points(axis).values()))
                for axis, plan in zip(self.axes, plans, strict=True)
            ),
            answers=tuple(answer_of(one, laboratory, plain) for one in wishes),
            loss_before=None if trained is None else trained["before"],
            moments=laboratory.moments,
            guess=guess.name,
            guess_psnr=float((-10 * errors.log10()).mean()) if self.case.is_image else None,
            trained_on=make_pool(self.case, laboratory.federation.clients).kind,
        )

    def _setup(self, command: str) -> Setup:
        """What was audited, and with which versions."""
        from gradveil import __version__

        case, settings, subject = self.case, self.settings, self.subject
        return Setup(
            data=case.data.name,
            model=subject.model_name or type(subject.model).__name__,
            parameters=sum(p.numel() for p in case.model.parameters()),
            input_shape=tuple(case.data.inputs.shape[1:]),
            batch_size=case.batch_size,
            batches=case.batches,
            seeds=settings.seeds,
            training_seeds=settings.training_seeds,
            seed=settings.seed,
            federation=self.laboratory.federation,
            threat=settings.threat,
            releases=settings.releases,
            is_image=case.is_image,
            device=str(case.data.inputs.device),
            command=command,
            weights=subject.weights,
            date=date.today().isoformat(),
            task=case.data.task,
            tokens=case.data.tokens,
            versions={
                "gradveil": __version__,
                "python": platform.python_version(),
                "torch": str(torch.__version__),
            },
        )
