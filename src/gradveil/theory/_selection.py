"""Whether what is sent shows which entries a plan chose."""

import torch
from torch import Tensor

from gradveil._typing import Level, Tensors
from gradveil.mechanisms import AnyMechanism, Mechanism

SHOWN = (
    "which entries are pruned or clamped can be seen, and the choice was made from the private"
    " batch"
)


def selects(mechanism: AnyMechanism) -> bool:
    """Whether the plan chose entries to prune or clamp: `plan_information` does not count that."""
    if not isinstance(mechanism, Mechanism) or mechanism.clip is not None:
        return True
    keep = mechanism.keep
    levels = keep.values() if isinstance(keep, dict) else ([] if keep is None else [keep])
    return any(bool((torch.as_tensor(level) < 1).any()) for level in levels)


def shows_selection(mechanism: AnyMechanism, values: Tensors) -> bool:
    """Whether some entries, not all, are pruned or clamped without noise that hides it.

    Exact zeros of a mask, and exactly ±P of clamped entries, are noise-free functions of whatever
    the mask or the noise levels were made from.
    """
    if not isinstance(mechanism, Mechanism):
        return False
    return any(_shows(mechanism, name, value) for name, value in values.items())


def _shows(mechanism: Mechanism, name: str, value: Tensor) -> bool:
    bare = _level(mechanism.std, name, value) == 0
    if isinstance(mechanism.keep, dict):
        pruned = mechanism.keep[name] < 1
        others = any(bool((keep > 0).any()) for keep in mechanism.keep.values())
        if bool((bare & pruned).any()) and others:
            return True
    if mechanism.clip is None or not isinstance(mechanism.std, dict):
        return False
    clamped = value.abs() >= _level(mechanism.clip, name, value)
    return bool((bare & clamped).any())


def _level(level: Level, name: str, value: Tensor) -> Tensor:
    own_level = level[name] if isinstance(level, dict) else level
    return torch.as_tensor(own_level, device=value.device)
