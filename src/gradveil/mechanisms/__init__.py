"""What a defense does to a message, stated so that theory and attacks can read it."""

from ._mechanism import Mechanism
from ._protocol import AnyMechanism, check_mechanism
from ._rounding import RoundingMechanism

__all__ = ["AnyMechanism", "Mechanism", "RoundingMechanism", "check_mechanism"]
