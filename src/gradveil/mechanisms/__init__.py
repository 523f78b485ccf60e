"""What a defense does to a message, stated so that theory and attacks can read it."""

from ._mechanism import (
    AnyMechanism,
    GridMechanism,
    LaplaceMechanism,
    Mechanism,
    QuantisationMechanism,
    RoundingMechanism,
    SignMechanism,
    as_tensors,
    check_mechanism,
    constant_like,
    level_of,
)

# What `__all__` does not list is for our own packages.
__all__ = [
    "AnyMechanism",
    "LaplaceMechanism",
    "Mechanism",
    "QuantisationMechanism",
    "RoundingMechanism",
    "SignMechanism",
]
