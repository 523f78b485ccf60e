"""How much noise each layer gets while a model trains."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradveil._typing import Tensors
from gradveil.defenses import Defense
from gradveil.mechanisms import AnyMechanism, Mechanism
from gradveil.messages import Message
from gradveil.sensitivity import Moments


class Recording(Defense):
    """Another defense, which keeps the mean standard deviation of each tensor it planned."""

    def __init__(self, defense: Defense) -> None:
        self.defense = defense
        self.levels: list[dict[str, float]] = []

    def observe(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> tuple[Tensors, Moments]:
        """What the other one observes."""
        return self.defense.observe(message, inputs, generator)

    def plan(self, moments: Moments) -> AnyMechanism:
        """What the other one plans."""
        mechanism = self.defense.plan(moments)
        if isinstance(mechanism, Mechanism) and isinstance(mechanism.std, Mapping):
            self.levels.append({name: float(std.mean()) for name, std in mechanism.std.items()})
        return mechanism


def mean_levels(recordings: Sequence[Recording]) -> dict[str, list[float]]:
    """The mean over clients for each tensor and round; empty where no noise was planned."""
    rounds = min(len(recording.levels) for recording in recordings)
    names = recordings[0].levels[0] if rounds else {}
    found = {
        name: [sum(r.levels[t][name] for r in recordings) / len(recordings) for t in range(rounds)]
        for name in names
    }
    return found if any(any(levels) for levels in found.values()) else {}
