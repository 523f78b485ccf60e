"""Plays the exact attacker on one defense, at little cost."""

from typing import TYPE_CHECKING

import torch

from gradveil._batches import task_of
from gradveil._random import numbered_stream
from gradveil.attacks import identify_trials
from gradveil.defenses import Defense
from gradveil.messages import trainable_parameters

from ._outcome import ToldApart

if TYPE_CHECKING:
    from gradveil.auditing._subject import Subject

CANDIDATES, FEWEST = 32, 8
"""How many there are to choose from; of one class where a class has at least the fewest."""

TRIALS, DRAWS, LEAST_TRIALS = 24, 2, 6
"""Messages in all, draws of candidates, and messages for a very large model."""

MOST_WORK = 2**27
"""Trials times candidates times entries of the message: some seconds."""

STREAM = 5
"""The place of its random numbers in those of an audit."""


def told_apart(subject: "Subject", defense: Defense, seed: int) -> ToldApart | None:
    """The rate and the bits for one defense; `None` where they cannot be computed.

    Candidates are public examples where there are any, of one class where one has enough. A
    defense that does not state what it does as a mechanism with a likelihood has no such number.
    """
    examples = (subject.data.inputs, subject.data.targets)
    if subject.public is not None:
        examples = subject.public
    count, one_class = candidate_choice(examples[1], subject.batch_size)
    if count < 2:
        return None
    trials = _trials(subject, count)
    try:
        report = identify_trials(
            subject.model,
            subject.loss_fn,
            examples,
            defense,
            num_classes=subject.data.num_classes,
            candidates=count,
            batch_size=subject.batch_size,
            trials=trials,
            per_draw=-(-trials // DRAWS),
            one_class=one_class,
            local=subject.local,
            generator=numbered_stream(seed, STREAM),
        )
    except TypeError:  # no mechanism, or one without a likelihood
        return None
    assert report.rate is not None
    assert report.rank is not None
    return ToldApart(
        count,
        trials,
        report.rate,
        report.bits,
        report.rank.mean,
        report.error.mean,
        one_class,
    )


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


def _trials(subject: "Subject", candidates: int) -> int:
    """Fewer for large models."""
    entries = sum(p.numel() for p in trainable_parameters(subject.model).values())
    return max(LEAST_TRIALS, min(TRIALS, MOST_WORK // (candidates * entries)))
