"""What a defense does to a message, stated so that theory and attacks can read it."""

from ._doubt import Doubt
from ._grid import GridMechanism
from ._levels import constant_like
from ._mechanism import Mechanism
from ._protocol import AnyMechanism, check_mechanism
from ._reading import LikelihoodMechanism, ReadableMechanism, Reading
from ._rounding import RoundingMechanism

__all__ = [
    "AnyMechanism",
    "Doubt",
    "GridMechanism",
    "LikelihoodMechanism",
    "Mechanism",
    "ReadableMechanism",
    "Reading",
    "RoundingMechanism",
    "check_mechanism",
    "constant_like",
]
