"""The likelihood of what was sent under each candidate."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._typing import Tensors
from gradveil.defenses import Defense, PruningDefense
from gradveil.mechanisms import AnyMechanism, Doubt, LikelihoodMechanism

from .._observation import Observation
from ._candidates import Candidates

PAIRS = 3
"""Candidates at which the attacker plans twice, to see how far two plans are apart."""


class Hypothesis(NamedTuple):
    """What one candidate would make of the message."""

    values: Tensors
    mechanism: LikelihoodMechanism
    doubt: Doubt | None
    """`None`: this very mechanism was applied."""


def likelihood_table(
    observations: Sequence[Observation], candidates: Candidates, generator: torch.Generator
) -> Tensor:
    """log p(sent | candidate), float64, a row for each observation and a column for each candidate.

    The candidates outside, one at a time: memory for one message beside those that were sent.
    """
    table = torch.empty(len(observations), len(candidates), dtype=torch.float64)
    if plans_again(observations[0]):
        for column, hypothesis in enumerate(_planned(candidates, generator)):
            for row, observation in enumerate(observations):
                table[row, column] = _log_likelihood(hypothesis, observation.sent)
        return table
    mechanisms = _known(observations, candidates, generator)
    for column, values in enumerate(candidates.values()):
        for row, (observation, mechanism) in enumerate(zip(observations, mechanisms, strict=True)):
            hypothesis = Hypothesis(values, mechanism, None)
            table[row, column] = _log_likelihood(hypothesis, observation.sent)
    return table


def plans_again(observation: Observation) -> bool:
    """Whether the mechanism is not told and depends on the private batch."""
    return observation.mechanism is None and plan_is_private(_told(observation))


def plan_is_private(defense: Defense) -> bool:
    """Whether the mechanism that a defense applies depends on the private batch."""
    return defense.plan_varies or isinstance(defense, PruningDefense)


def _known(
    observations: Sequence[Observation], candidates: Candidates, generator: torch.Generator
) -> list[LikelihoodMechanism]:
    """The mechanism of each observation: told, or the same whatever the batch is."""
    mechanisms: list[LikelihoodMechanism] = []
    anybody: LikelihoodMechanism | None = None
    for observation in observations:
        if observation.mechanism is not None:
            mechanisms.append(_with_likelihood(observation.mechanism))
            continue
        anybody = anybody or _at(_told(observation), candidates, 0, generator).mechanism
        mechanisms.append(anybody)
    return mechanisms


def _planned(candidates: Candidates, generator: torch.Generator) -> Iterator[Hypothesis]:
    """Each candidate's message with the plan that it leads to, by the attacker's own probes."""
    defense = _told(candidates.observation)
    doubts = []
    for index in range(min(PAIRS, len(candidates))):
        one, other = (_at(defense, candidates, index, generator) for _ in range(2))
        doubts.append(one.mechanism.doubt(other.mechanism, one.values))
    doubt = Doubt.mean(doubts)
    for index in range(len(candidates)):
        yield _at(defense, candidates, index, generator)._replace(doubt=doubt)


def _at(
    defense: Defense, candidates: Candidates, index: int, generator: torch.Generator
) -> Hypothesis:
    """What the defense does to the batch with this candidate; nothing is kept of its noise."""
    inputs, _ = candidates.batch(index)
    step = defense.without_memory().respond(candidates.message(index), inputs, generator)
    return Hypothesis(step.values, _with_likelihood(step.mechanism), None)


def _log_likelihood(hypothesis: Hypothesis, sent: Tensors) -> Tensor:
    values, mechanism, doubt = hypothesis
    own = {name: sent[name] for name in values}
    if doubt is None:
        return mechanism.log_likelihood(values, own)
    return mechanism.log_likelihood(values, own, doubt)


def _told(observation: Observation) -> Defense:
    if observation.defense is None:
        raise ValueError(
            "Parameter `observation` should tell the defense or the mechanism. Found neither. Use"
            " ThreatModel(mechanism='known') or 'realised'."
        )
    return observation.defense


def _with_likelihood(mechanism: AnyMechanism | None) -> LikelihoodMechanism:
    if not isinstance(mechanism, LikelihoodMechanism):
        raise TypeError(
            "A mechanism should have the methods `log_likelihood` and `doubt` to tell candidates"
            f" apart. Found {type(mechanism).__name__}. Plan a Mechanism or a RoundingMechanism,"
            " or give it these methods."
        )
    return mechanism
