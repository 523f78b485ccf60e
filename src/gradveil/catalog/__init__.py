"""Defenses, attacks and estimators by name, for the command line and the studies.

A specification (`Spec`) reads as in Python, with the class's name in lower case and hyphens. Texts
name registered entries only; import paths need `allow_imports`, in the local user's own code:

>>> from gradveil.catalog import build_defense, spec_of
>>> build_defense("optimal-noise(scale=0.1)").scale
0.1
>>> spec_of(build_defense("optimal-noise(0.1, source=from-server(floor=0.1))"))
'optimal-noise(scale=0.1, source=from-server(floor=0.1))'
"""

from ._entries import ATTACKS, DEFENSES, ESTIMATORS, MODELS, Entry
from ._spec import (
    Spec,
    build_attack,
    build_defense,
    parameters_of,
    shown_name,
    spec_of,
)

# What `__all__` does not list is for our own packages.
__all__ = ["Spec", "build_attack", "build_defense", "spec_of"]
