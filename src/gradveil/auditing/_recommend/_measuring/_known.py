"""What all defenses share at one model, each part measured when it is first needed."""

from functools import cached_property

from gradveil._random import numbered_stream
from gradveil.attacks import Lineups
from gradveil.catalog import build_defense
from gradveil.defenses import Defense, GradientNoise
from gradveil.sensitivity import Moments, measure

from ..._amounts import PublicPlans, moving, planned, warmed
from ..._bounds import guarantee_of, population_of
from ..._subject import Subject
from ..._told_apart import lineups_of


class Known:
    """A subject, and what is known of it whatever the defense.

    Args:
        subject: Model and data.
        seed: Of everything random.
    """

    def __init__(self, subject: Subject, seed: int) -> None:
        self.subject, self.seed = subject, seed
        self._lineups: dict[int, Lineups | None] = {}

    def lineups(self, trials: int) -> Lineups | None:
        """Whom to tell apart, for so many messages."""
        if trials not in self._lineups:
            self._lineups[trials] = lineups_of(self.subject, self.seed, trials)
        return self._lineups[trials]

    @cached_property
    def moments(self) -> Moments:
        """Over public batches."""
        return Moments.average(
            measure(self.subject.message(y), x, "auto", generator=numbered_stream(self.seed, k))
            for k, (x, y) in enumerate(self.subject.population())
        )

    @cached_property
    def no_guarantee(self) -> str:
        """Why bounds are none for this model, found with isotropic noise; empty if they are."""
        if self.subject.tokens:
            return "bounds are on the error of numbers"
        population = population_of(self.subject)
        noise = GradientNoise(1.0)
        return guarantee_of(
            self.subject, noise, self.seed, population=population, full=False
        ).reason

    @cached_property
    def _plans(self) -> PublicPlans:
        return PublicPlans(self.subject, self.seed)

    def defense(self, text: str) -> Defense:
        """A defense with its public plan made; import paths are those of the user's own objects."""
        built = planned(self.subject, build_defense(text, allow_imports=True))
        return warmed(self.subject, built, self.seed, self._plans)

    def in_training(self, text: str, clients: int) -> Defense:
        """The same as all clients of a training use it; a plan serves for 20 rounds."""
        return moving(self.defense(text), 2 * clients)
