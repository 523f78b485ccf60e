"""Messages of integer inputs: the ids of tokens, which a model looks up in its tables."""

from ._lookups import Lookup, find_lookups
from ._token_gradient import TokenGradient, embedded, gradient_of, over_rows, random_ids

__all__ = [
    "Lookup",
    "TokenGradient",
    "embedded",
    "find_lookups",
    "gradient_of",
    "over_rows",
    "random_ids",
]
