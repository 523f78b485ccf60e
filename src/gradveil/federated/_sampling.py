"""Who is asked in a round, and which examples a client takes."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gradveil._checks import check_choice, check_count, check_kind, check_number, check_seed
from gradveil._random import generator_or_fresh, named_stream
from gradveil.defenses import Defense, PrivateNoise
from gradveil.privacy import check_sample_rate, poisson_sample


def sample_clients(identifiers: Sequence[int], fraction: float, seed: int, round: int) -> list[int]:
    """`count_asked` of them, drawn anew in every round, in order.

    They come from the stream (seed, "sampling", round).

    >>> sample_clients([0, 1, 2, 3], 1.0, seed=0, round=1)
    [0, 1, 2, 3]
    """
    check_kind(identifiers, "identifiers", (list, tuple, range), "Give the clients' numbers.")
    if not identifiers:
        raise ValueError("Parameter `identifiers` should hold at least one. Found none.")
    check_seed(seed)
    count = count_asked(len(identifiers), fraction)
    drawn = torch.randperm(len(identifiers), generator=named_stream(seed, "sampling", round))
    return sorted(identifiers[i] for i in drawn[:count].tolist())


def count_asked(clients: int, fraction: float) -> int:
    """⌊fraction · clients + 1/2⌋, at least 1."""
    check_number(fraction, "fraction")
    if not 0 < fraction <= 1:
        raise ValueError(
            f"Parameter `fraction` should be in (0, 1]. Found `fraction = {fraction}`."
            " For percentages, divide by 100."
        )
    return max(1, int(fraction * clients + 0.5))


SAMPLINGS = ("shuffle", "poisson")


@dataclass(frozen=True)
class Batches:
    """The batches of a client, one for each reply.

    "shuffle": each epoch is a new permutation, cut into pieces of `size`; the last may be smaller.
    "poisson": each example with probability `rate`, independently of all others and of other
    replies; there may be none. This is the sampling that accountants mean.

    Args:
        count: The client's examples, n.
        size: Of a batch. With Poisson sampling it is B, the fixed number that a private sum is
            divided by, whatever n and the rate are: a divisor made from n would tell n.
        sampling: "shuffle" or "poisson".
        rate: q of Poisson sampling, a public number; size/n if `None`, at most 1, which makes n
            public.
        least: The fewest examples in a shuffled piece: a shorter rest of an epoch is left out.

    Attributes:
        neighbours: The data sets that an account of these batches can be about (`epsilon_after`):
            "add-remove" where the rate was given; "zero-out" where it was made from n, as one
            example less would change it for all others; "replace-one" for a shuffled epoch, where
            it would move all that come after it.
    """

    count: int
    size: int
    sampling: str = "shuffle"
    rate: float | None = None
    least: int = 1
    neighbours: str = field(init=False, default="replace-one")

    def __post_init__(self) -> None:
        check_count(self.size, "batch_size")
        check_count(self.least, "least")
        check_choice(self.sampling, "sampling", SAMPLINGS)
        if self.sampling == "shuffle" and self.rate is not None:
            raise ValueError(
                "Parameter `sample_rate` should be left out for sampling='shuffle'. Found"
                f" `sample_rate = {self.rate}`. Use sampling='poisson'."
            )
        if self.sampling == "poisson":  # the class is frozen for everyone else
            relation = "zero-out" if self.rate is None else "add-remove"
            object.__setattr__(self, "neighbours", relation)
            own = min(1.0, self.size / max(1, self.count))
            object.__setattr__(self, "rate", own if self.rate is None else self.rate)
        if self.rate is not None:
            check_sample_rate(self.rate)

    def draw(self, root: int, identifier: int, step: int, *, secure: bool) -> Tensor:
        """Which examples are in reply number `step`.

        Shuffled ones come from the stream (root, "batches", identifier, epoch), Poisson samples
        from (root, "batches", identifier, step), or from a secure generator.
        """
        if self.rate is not None:
            source = named_stream(root, "batches", identifier, step)
            return poisson_sample(self.count, self.rate, _secure() if secure else source)
        whole, rest = divmod(self.count, self.size)
        epoch, position = divmod(step, max(1, whole + (rest >= self.least)))
        generator = named_stream(root, "batches", identifier, epoch)
        order = torch.randperm(self.count, generator=generator)
        return order[position * self.size :][: self.size]

    def check_for(self, defense: Defense) -> None:
        """Require a defense that can do without examples, where a batch may have none."""
        if self.sampling == "poisson" and not is_private(defense, "example"):
            raise ValueError(
                "Parameter `sampling` should be 'shuffle' for a defense that does not clip each"
                " example: a Poisson sample may be empty. Found `sampling = 'poisson'` with"
                f" {type(defense).__name__}. Leave it out, or use PrivateNoise."
            )


def is_private(defense: Defense, unit: str | None = None) -> bool:
    """Whether a defense clips, for a guarantee on each "example", each "client" or on any."""
    return isinstance(defense, PrivateNoise) and unit in (None, defense.unit)


def fixed_size(defense: Defense, size: int) -> Defense:
    """The defense, a private one with a fixed divisor: that at hand would tell who was drawn."""
    if not isinstance(defense, PrivateNoise) or defense.unit != "example":
        return defense
    return replace(defense, batch_size=defense.batch_size or size)


def told_size(defense: Defense, size: int) -> int | None:
    """The number of examples that a private reply tells, which is fixed; `None` for all others."""
    if not isinstance(defense, PrivateNoise):
        return None
    return defense.batch_size if defense.unit == "example" else size


def _secure() -> torch.Generator:
    return generator_or_fresh(None, secure=True)
