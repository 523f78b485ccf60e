"""The likelihood of what was sent under each candidate."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._typing import Tensors
from gradveil.defenses import Defense
from gradveil.mechanisms import AnyMechanism, Doubt, LikelihoodMechanism, Mechanism

from .._observation import Observation
from ._candidates import Candidates

PAIRS = 8
"""Candidates at which the attacker plans twice, to see how far two plans are apart."""

NUMBERS = 2**24
"""Up to how many numbers the messages of several candidates have that are held at a time."""


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

    The candidates outside, some at a time: memory for few messages beside those that were sent.
    """
    table = torch.empty(len(observations), len(candidates), dtype=torch.float64)
    sent = [observation.sent for observation in observations]
    if plans_again(observations[0]):
        for column, hypothesis in enumerate(_planned(candidates, generator)):
            table[:, column] = _log_likelihoods(hypothesis, [hypothesis.values], sent)[:, 0].cpu()
        return table
    plans = _by_plan(_public(observations, candidates, generator))
    count = max(1, NUMBERS // sum(value.numel() for value in observations[0].sent.values()))
    each, start = iter(candidates.values()), 0
    while values := list(islice(each, count)):
        for plan, rows in plans:
            found = _log_likelihoods(plan, values, [sent[row] for row in rows])
            table[rows, start : start + len(values)] = found.cpu()
        start += len(values)
    return table


def plans_again(observation: Observation) -> bool:
    """Whether the mechanism is not told and depends on the private batch."""
    return observation.mechanism is None and _told(observation).plan_is_private


def _public(
    observations: Sequence[Observation], candidates: Candidates, generator: torch.Generator
) -> list[Hypothesis]:
    """The plan of each observation: told, or one's own, the same whatever the batch is."""
    plans, own = [], None
    for observation in observations:
        if observation.mechanism is not None:
            plans.append(Hypothesis({}, _with_likelihood(observation.mechanism), None))
            continue
        own = own or _own_plan(_told(observation), candidates, generator)
        plans.append(own)
    return plans


def _by_plan(plans: list[Hypothesis]) -> list[tuple[Hypothesis, list[int]]]:
    """The plans that differ, each with its observations."""
    found: list[tuple[Hypothesis, list[int]]] = []
    for row, plan in enumerate(plans):
        for known, rows in found:
            if _same(known, plan):
                rows.append(row)
                break
        else:
            found.append((plan, [row]))
    return found


def _same(one: Hypothesis, other: Hypothesis) -> bool:
    """Whether both are one plan, or Gaussian with the same levels."""
    if one is other or one.doubt is not None or other.doubt is not None:
        return one is other
    a, b = one.mechanism, other.mechanism
    return isinstance(a, Mechanism) and isinstance(b, Mechanism) and a.equals(b)


def _own_plan(defense: Defense, candidates: Candidates, generator: torch.Generator) -> Hypothesis:
    """What anybody would plan; in doubt where the plan is an estimate."""
    plan = _at(defense, candidates, 0, generator)
    if not defense.reads_moments:
        return plan
    others = [_at(defense, candidates, 0, generator).mechanism for _ in range(PAIRS)]
    doubt = Doubt.mean([plan.mechanism.doubt(other, plan.values) for other in others])
    return plan._replace(doubt=doubt)


def _planned(candidates: Candidates, generator: torch.Generator) -> Iterator[Hypothesis]:
    """Each candidate's message with the plan that it leads to, by the attacker's own probes."""
    defense = _told(candidates.observation)
    planned: dict[int, Hypothesis] = {}
    doubts: list[Doubt] = []
    for place in range(PAIRS):
        index = place * len(candidates) // PAIRS
        one, other = (_at(defense, candidates, index, generator) for _ in range(2))
        planned[index] = one
        doubts.append(one.mechanism.doubt(other.mechanism, one.values))
        if not doubts[0].levels_differ:
            break
    doubt = Doubt.mean(doubts)
    for index in range(len(candidates)):
        known = planned.pop(index, None) or _at(defense, candidates, index, generator)
        yield known._replace(doubt=doubt)


def _at(
    defense: Defense, candidates: Candidates, index: int, generator: torch.Generator
) -> Hypothesis:
    """What the defense does to the batch with this candidate; nothing is kept of its noise."""
    inputs, targets = candidates.batch(index)
    message = candidates.observation.plain_message(targets)
    step = defense.without_memory().respond(message, inputs, generator)
    return Hypothesis(step.values, _with_likelihood(step.mechanism), None)


def _log_likelihoods(plan: Hypothesis, values: list[Tensors], sent: list[Tensors]) -> Tensor:
    """A row for each message, a column for each candidate's values."""
    if isinstance(plan.mechanism, Mechanism):
        own = [{name: one[name] for name in values[0]} for one in sent]
        return plan.mechanism.log_likelihoods(values, own, plan.doubt)
    rows = [[_log_likelihood(plan._replace(values=v), one) for v in values] for one in sent]
    return torch.stack([torch.stack(row) for row in rows])


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
