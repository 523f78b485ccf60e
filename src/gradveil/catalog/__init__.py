"""Defenses, attacks and estimators by name, for the command line and the studies.

A specification (`Spec`) reads as in Python, with the class's name in lower case and hyphens. Texts
name registered entries only; import paths need `allow_imports`, in the local user's own code:

>>> from gradveil.catalog import build_defense, spec_of
>>> build_defense("optimal-noise(scale=0.1)").scale
0.1
>>> spec_of(build_defense("cached(optimal-noise(0.1, plan='private'), refresh_every=5)"))
"cached(optimal-noise(scale=0.1, plan='private'), refresh_every=5)"
"""

from ._build import build_attack, build_defense, build_estimator
from ._describe import name_of, spec_of
from ._entries import ATTACKS, DEFENSES, ESTIMATORS, EVERYTHING, Entry
from ._show import shown_amounts, shown_name, shown_text
from ._spec import Spec

__all__ = [
    "ATTACKS",
    "DEFENSES",
    "ESTIMATORS",
    "EVERYTHING",
    "Entry",
    "Spec",
    "build_attack",
    "build_defense",
    "build_estimator",
    "name_of",
    "shown_amounts",
    "shown_name",
    "shown_text",
    "spec_of",
]
