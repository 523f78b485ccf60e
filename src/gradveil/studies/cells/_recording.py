"""A record of the noise that each layer gets while a model trains."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradveil.defenses import Defended, Defense
from gradveil.mechanisms import Mechanism
from gradveil.messages import Message


class Recording(Defense):
    """A wrapper of a defense that records the mean standard deviation of each tensor."""

    def __init__(self, defense: Defense) -> None:
        self.defense = defense
        self.levels: list[dict[str, float]] = []

    def respond(
        self, message: Message, inputs: Tensor, generator: torch.Generator | None = None
    ) -> Defended:
        """What the other one responds."""
        defended = self.defense.respond(message, inputs, generator)
        mechanism = defended.mechanism
        if isinstance(mechanism, Mechanism) and isinstance(mechanism.std, Mapping):
            self.levels.append({name: float(std.mean()) for name, std in mechanism.std.items()})
        return defended


def mean_levels(recordings: Sequence[Recording]) -> dict[str, list[float]]:
    """The mean over clients for each tensor and round; empty where no noise was planned."""
    rounds = min(len(recording.levels) for recording in recordings)
    names = recordings[0].levels[0] if rounds else {}
    means = {
        name: [sum(r.levels[t][name] for r in recordings) / len(recordings) for t in range(rounds)]
        for name in names
    }
    return means if any(any(levels) for levels in means.values()) else {}
