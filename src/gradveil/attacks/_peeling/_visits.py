"""Which examples FedAvg's local steps take."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil.messages import LocalSteps


@dataclass(frozen=True)
class Visits:
    """A visit is one example in one local step; all of them, in the order of the steps.

    >>> visits = Visits.of(LocalSteps(lr=0.1, steps=3, batch_size=2), 4)
    >>> visits.examples.tolist(), len(visits), visits.cover(4)
    ([0, 1, 2, 3, 0, 1], 6, True)
    """

    steps: tuple[Tensor, ...]
    """The examples of each step."""

    @classmethod
    def of(cls, local: LocalSteps, examples: int) -> "Visits":
        """Mini-batches in order, and again from the start after the last."""
        parts = torch.arange(examples).split(local.batch_size or examples)
        return cls(tuple(parts[step % len(parts)] for step in range(local.steps)))

    def __len__(self) -> int:
        return sum(len(step) for step in self.steps)

    @property
    def examples(self) -> Tensor:
        """The example of each visit."""
        return torch.cat(self.steps)

    def cover(self, examples: int) -> bool:
        """Whether each of so many examples is visited."""
        return len(self.examples.unique()) == examples

    def rows(self) -> list[Tensor]:
        """The parts of a table of visits that belong to the steps."""
        return list(torch.arange(len(self)).split([len(step) for step in self.steps]))

    def alike(self) -> list[list[Tensor]]:
        """The visits of each example; examples that the same steps take are together."""
        times = torch.cat([torch.full_like(step, t) for t, step in enumerate(self.steps)])
        found: dict[tuple[int, ...], list[Tensor]] = {}
        for example in self.examples.unique():
            own = (self.examples == example).nonzero().flatten()
            found.setdefault(tuple(times[own].tolist()), []).append(own)
        return list(found.values())
