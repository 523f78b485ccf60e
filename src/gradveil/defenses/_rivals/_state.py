"""Checks of what a defense remembered."""

from typing import Any

from gradveil._checks import check_kind


def remembered(state: Any, key: str) -> Any:
    """What `state_dict` returned under its only key; `None` where it was empty."""
    check_kind(state, "state", dict, "Use what `state_dict` returned.")
    if state and state.keys() != {key}:
        raise ValueError(
            f"Parameter `state` should have the key `{key}`, or none. Found {sorted(state)}. Use"
            " what `state_dict` returned."
        )
    return state.get(key)
