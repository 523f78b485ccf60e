"""The base class of defenses whose mechanism does not depend on the message."""

from .._base import Defense


class FixedDefense(Defense):
    """Looks at nothing to plan: the same mechanism for all messages of the same shapes."""

    @property
    def needs_sensitivities(self) -> bool:
        """Never."""
        return False

    @property
    def reads_moments(self) -> bool:
        """Never."""
        return False
