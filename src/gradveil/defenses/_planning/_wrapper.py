"""The base class of defenses that plan another one from somewhere else."""

from gradveil.mechanisms import AnyMechanism
from gradveil.sensitivity import Moments

from .._base import Defense


class Wrapper(Defense):
    """Another defense, which says what it is and how it plans; subclasses say from what."""

    defense: Defense

    def plan(self, moments: Moments) -> AnyMechanism:
        """What the wrapped defense plans."""
        return self.defense.plan(moments)

    @property
    def family(self) -> str:
        """As for the wrapped defense."""
        return self.defense.family

    @property
    def twin(self) -> type[Defense] | None:
        """As for the wrapped defense."""
        return self.defense.twin

    @property
    def is_undefended(self) -> bool:
        """As for the wrapped defense."""
        return self.defense.is_undefended

    @property
    def clip(self) -> float | None:  # type: ignore[override]
        """As for the wrapped defense."""
        return self.defense.clip

    @property
    def has_target_error(self) -> bool:
        """As for the wrapped defense."""
        return self.defense.has_target_error

    @property
    def reads_moments(self) -> bool:
        """As for the wrapped defense."""
        return self.defense.reads_moments
