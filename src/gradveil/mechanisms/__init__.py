"""What a defense does to a message, stated so that theory and attacks can read it."""

from ._mechanism import Mechanism
from ._protocol import AnyMechanism
from ._rounding import RoundingMechanism

__all__ = ["AnyMechanism", "Mechanism", "RoundingMechanism"]
