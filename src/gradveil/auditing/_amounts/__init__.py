"""How much of each defense is audited, and where its plan comes from."""

from ._matching_budget import MATCHES, Budget, make_budget, solve
from ._plan_source import PublicPlans, moving, plan_of, planned, source_of, unwrapped, warmed
from ._requested_defenses import RequestedDefense, requested_defenses, unique_names

__all__ = [
    "MATCHES",
    "Budget",
    "PublicPlans",
    "RequestedDefense",
    "make_budget",
    "moving",
    "plan_of",
    "planned",
    "requested_defenses",
    "solve",
    "source_of",
    "unique_names",
    "unwrapped",
    "warmed",
]
