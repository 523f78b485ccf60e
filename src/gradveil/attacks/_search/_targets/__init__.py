"""Targets that the attacker was not told: read off the message, or looked for with the inputs."""

from ._labels_of import labels_of
from ._soft_targets import SoftTargets, soft_targets

__all__ = ["SoftTargets", "labels_of", "soft_targets"]
