"""The nearest existing name, for error messages."""

import difflib
from collections.abc import Iterable


def suggestion(name: str, known: Iterable[str]) -> str:
    """``" Did you mean `x`?"`` for the name of ``known`` nearest to ``name``, or nothing.

    >>> suggestion("simple-convnet", ["conv-net", "simple-conv-net"])
    ' Did you mean `simple-conv-net`?'
    >>> suggestion("transformer", ["conv-net"])
    ''
    """
    nearest = difflib.get_close_matches(name.lower(), list(known), n=1)
    return f" Did you mean `{nearest[0]}`?" if nearest else ""
