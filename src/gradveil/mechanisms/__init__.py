"""What a defense does to a message, stated so that theory and attacks can read it."""

from ._grid import GridMechanism
from ._laplace import LaplaceMechanism
from ._levels import constant_like
from ._mechanism import Mechanism
from ._protocol import AnyMechanism, check_mechanism
from ._quantisation import QuantisationMechanism
from ._rounding import RoundingMechanism
from ._sign import SignMechanism

# isort: split
# for our own packages
from ._levels import as_tensors as as_tensors
from ._levels import level_of as level_of

__all__ = [
    "AnyMechanism",
    "GridMechanism",
    "LaplaceMechanism",
    "Mechanism",
    "QuantisationMechanism",
    "RoundingMechanism",
    "SignMechanism",
    "check_mechanism",
    "constant_like",
]
