"""How commands print their results."""

from enum import Enum


class Format(str, Enum):
    """A table to read, or JSON for machines."""

    table = "table"
    json = "json"
