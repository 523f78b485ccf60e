"""What a defense does to a message, stated so that theory and attacks can read it."""

from ._doubt import Doubt
from ._grid import GridMechanism
from ._laplace import LaplaceMechanism
from ._levels import constant_like
from ._mechanism import Mechanism
from ._protocol import AnyMechanism, check_mechanism
from ._quantisation import QuantisationMechanism
from ._reading import LikelihoodMechanism, ReadableMechanism, Reading
from ._rounding import RoundingMechanism
from ._sign import SignMechanism

__all__ = [
    "AnyMechanism",
    "Doubt",
    "GridMechanism",
    "LaplaceMechanism",
    "LikelihoodMechanism",
    "Mechanism",
    "QuantisationMechanism",
    "ReadableMechanism",
    "Reading",
    "RoundingMechanism",
    "SignMechanism",
    "check_mechanism",
    "constant_like",
]
