"""What is compared, attacked and asked for in an audit, checked before any work."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gradveil._checks import (
    WrongValue,
    check_at_most,
    check_choice,
    check_count,
    check_kind,
    check_not_negative,
    check_ratio,
    check_seed,
)
from gradveil.attacks import (
    Adaptive,
    Attack,
    InvertingGradients,
    Peel,
    Regress,
    SpanCheck,
    TabLeak,
    ThreatModel,
    TokenRows,
    Unpool,
)
from gradveil.catalog import build_attack, spec_of
from gradveil.data import Dataset
from gradveil.defenses import Defense

from ._result import Releases
from .answer import Goal
from .measure import MATCHES

SWEPT = (
    "gradient-noise",
    "optimal-noise",
    "optimal-noise(granularity='layer')",
    "gradient-pruning",
    "optimal-pruning",
    "private-noise",
)
"""What is run over strengths if nothing is asked for."""

MATCHED = (
    "gradient-noise",
    "optimal-noise",
    "clamped-noise",
    "optimal-clamped-noise",
    "gradient-pruning",
    "optimal-pruning",
    "gradient-pruning(noise=gradient-noise)",
    "optimal-pruning(noise=optimal-noise)",
)
"""What is compared at equal strengths if nothing is asked for: each optimal one after its twin."""

STEPS = 100
"""Of the attacks: they show on MNIST what leaks, within minutes."""


@dataclass(frozen=True)
class Settings:
    """What an audit compares, attacks and answers.

    Defenses whose amount is left out ("optimal-noise") are run over strengths, or, with `match`,
    at one strength each, such that what `match` names is equal at the first private batch. Amounts
    that are given ("optimal-noise(scale=0.1)") stay.
    """

    defenses: Sequence[str | Defense] | None = None
    """Defenses or specifications; the usual ones if `None`. The undefended message is always
    attacked, too: a weak attack would make any defense look good."""
    attacks: Sequence[str | Attack] | None = None
    """Attacks or specifications; if `None` the adaptive one, which knows the defense, or those on
    text and on tables with categories."""
    goals: Sequence[str | Goal] = ()
    """To be met at once, as "psnr<=15" and "loss<=+5%". Three usual levels if there are none, but
    for a comparison at given strengths, which then has no answers."""
    strengths: int = 4
    """Of each defense that is run over strengths, before goals are solved for."""
    match: str | None = None
    """"utility", "scale" or "error": what is held equal among defenses."""
    scale: float | None = None
    """Of the isotropic noise that is the reference of `match` (then "utility" if left out); the
    root mean square of the message's entries if `None`."""
    ratio: float | None = None
    """Of the magnitude pruning that is the reference; 0.9 if `None`."""
    threat: ThreatModel = field(default_factory=lambda: ThreatModel(mechanism="known"))
    """What attackers are granted; those that do not use the defense are not told of it."""
    steps: int | None = None
    """Of the attacks; their own if `None`, and 100 of the usual ones."""
    seeds: int = 1
    """How many times each private batch is defended and attacked."""
    training_seeds: int = 3
    """Of the noise of the trainings; 0: nothing is trained."""
    releases: Releases = field(default_factory=Releases)
    """For which ε is stated."""
    seed: int = 0
    """Of everything random."""

    def __post_init__(self) -> None:
        for name, asked in (("defenses", self.defenses), ("attacks", self.attacks)):
            if asked is not None:
                check_kind(asked, name, (list, tuple), "Give a list, as ['optimal-noise'].")
        check_kind(self.goals, "goals", (list, tuple), "Give a list, as ['psnr<=15'].")
        for goal in self.wanted:
            check_kind(goal, "goals", Goal, "Use for example 'psnr<=15'.")
        check_count(self.strengths, "strengths")
        check_count(self.seeds, "seeds")
        if self.training_seeds != 0:
            check_count(self.training_seeds, "training_seeds")
        check_seed(self.seed)
        if self.match is not None:
            check_choice(self.match, "match", MATCHES)
        if self.scale is not None:
            check_not_negative(self.scale, "scale")
            check_at_most(self.scale, "scale")
        if self.ratio is not None:
            check_ratio(self.ratio, "ratio")
        if self.steps is not None:
            check_count(self.steps, "steps")
        check_kind(
            self.threat, "threat", ThreatModel, "Use for example `ThreatModel(labels='unknown')`."
        )
        check_kind(self.releases, "releases", Releases, "Use for example `Releases(rounds=10)`.")

    @property
    def wanted(self) -> list[Goal]:
        """The goals, parsed."""
        return [Goal.parse(goal) if isinstance(goal, str) else goal for goal in self.goals]

    @property
    def equal(self) -> str | None:
        """What is held equal, also where only its reference was given; `None`: nothing."""
        referred = self.scale is not None or self.ratio is not None
        return "utility" if self.match is None and referred else self.match

    def chosen_attacks(self, data: Dataset) -> list[Attack]:
        """The attacks that were asked for, or the usual ones for these data."""
        if self.attacks is None:
            usual = default_attacks(STEPS if self.steps is None else self.steps, data)
            return [one for one in usual if one.knows_defense] or usual
        attacks = [build_attack(one) if isinstance(one, str) else one for one in self.attacks]
        for one in attacks:
            check_kind(one, "attacks", Attack, "Derive it from `Attack`, and make an instance.")
        stepless = [one.configured(steps=1) == one.configured(steps=2) for one in attacks]
        if self.steps is not None and attacks and all(stepless):
            found = f"`steps = {self.steps}` with {[spec_of(one) for one in attacks]}"
            raise WrongValue("steps", "be left out for attacks that take none", found)
        return [one.configured(steps=self.steps) for one in attacks]


def default_attacks(steps: int, data: Dataset) -> list[Attack]:
    """The attack that does not know the defense, and the one that does and starts from it.

    Peeling takes messages without noise apart, at little cost for all others. Neither attack ends
    with second-order steps, which cost as much again for messages that leak anyway, and they start
    from noise less often than usual. Tokens and tables with categories have attacks of their own.
    """
    if data.tokens:
        return [TokenRows(), SpanCheck()]
    if data.inputs.dim() == 4:
        unaware = InvertingGradients(
            steps, total_variation=1e-2, peel=Peel(), unpool=Unpool(), regress=Regress()
        )
        return [unaware, Adaptive(unaware, restarts=1, finish=None)]
    unaware = InvertingGradients(steps, total_variation=0.0)
    if data.layout is not None:
        return [unaware, TabLeak(steps=steps, starts=4)]
    return [unaware, Adaptive(unaware, prior=None, restarts=1, finish=None)]
