"""Plays the exact attacker on one defense, at little cost."""

from typing import TYPE_CHECKING

import torch

from gradveil._batches import task_of
from gradveil._random import numbered_stream
from gradveil.attacks import Lineups, draw_lineups
from gradveil.defenses import Defense
from gradveil.messages import trainable_parameters

from ._outcome import ToldApart

if TYPE_CHECKING:
    from gradveil.auditing._subject import Subject

CANDIDATES, FEWEST = 32, 8
"""How many there are to choose from; of one class where a class has at least the fewest."""

TRIALS, DRAWS, LEAST_TRIALS = 24, 2, 6
"""Messages in all, draws of candidates, and messages for a very large model."""

MOST_WORK = 2**29
"""Trials times candidates times entries of the message: some seconds."""

STREAM = 5
"""The place of its random numbers in those of an audit."""


def told_apart(
    subject: "Subject", defense: Defense, seed: int, lineups: Lineups | None = None
) -> ToldApart | None:
    """The rate and the bits for one defense; `None` where they cannot be computed.

    Candidates are public examples where there are any, of one class where one has enough. A
    defense that does not state what it does as a mechanism with a likelihood has no such number.

    Args:
        subject: Model and data.
        defense: What the client does to its message.
        seed: Of the candidates and the noise.
        lineups: What `lineups_of` drew for this subject and seed, to try several defenses on the
            same candidates; drawn here if `None`.
    """
    lineups = lineups_of(subject, seed) if lineups is None else lineups
    if lineups is None:
        return None
    try:
        report = lineups.report(defense, numbered_stream(seed, STREAM, 0))
    except TypeError:  # no mechanism, or one without a likelihood
        return None
    assert report.rate is not None
    assert report.rank is not None
    return ToldApart(
        report.candidates,
        len(report.trials),
        report.rate,
        report.bits,
        report.rank.mean,
        report.error.mean,
        candidate_choice(_examples(subject)[1], subject.batch_size)[1],
    )


def lineups_of(subject: "Subject", seed: int, trials: int = TRIALS) -> Lineups | None:
    """The candidates for all defenses of an audit; `None` where there are fewer than two."""
    examples = _examples(subject)
    count, one_class = candidate_choice(examples[1], subject.batch_size)
    if count < 2:
        return None
    trials = _trials(subject, count, trials)
    return draw_lineups(
        subject.model,
        subject.loss_fn,
        examples,
        num_classes=subject.data.num_classes,
        candidates=count,
        batch_size=subject.batch_size,
        trials=trials,
        per_draw=-(-trials // DRAWS),
        one_class=one_class,
        local=subject.local,
        generator=numbered_stream(seed, STREAM),
    )


def _examples(subject: "Subject") -> tuple[torch.Tensor, torch.Tensor]:
    """To draw from: public ones where there are any."""
    return subject.public or (subject.data.inputs, subject.data.targets)


def candidate_choice(
    targets: torch.Tensor, batch_size: int, most: int = CANDIDATES
) -> tuple[int, bool]:
    """How many candidates, and whether all of one class; other targets have none."""
    left = len(targets) - (batch_size - 1)
    if task_of(targets) != "classification":
        return min(most, left), False
    largest = min(int(torch.bincount(targets).max()), left)
    if largest >= FEWEST:
        return min(most, largest), True
    return min(most, left), False


def _trials(subject: "Subject", candidates: int, most: int) -> int:
    """Fewer for large models."""
    entries = sum(p.numel() for p in trainable_parameters(subject.model).values())
    return max(LEAST_TRIALS, min(most, MOST_WORK // (candidates * entries)))
