"""Search over tokens: changes one at a time, by the likelihood of what was sent."""

from itertools import combinations, permutations

import torch
from torch import Tensor

from gradveil._tensors import flatten

from .._evidence import Evidence, euclidean_evidence, plan_channel
from .._observation import Observation
from .._reconstruction import FINISHED, TIME_BUDGET
from .._search import Watch
from ._places import Places
from ._token_evidence import targets_of

EXACT = 1e-6
"""A share of the message's power that is rounding."""

FEW = 4
"""Sequences of which all orders are tried."""

LOOSENESS = 1e-3
"""Of entries without noise, as in `Adaptive`."""


class TokenSearch:
    """Minimises -log p(sent | g(ids)) over ids, with the mechanism that is known, if one is.

    Args:
        observation: What was sent.
        start: The first estimate, at which a plan that is not known is made again.
        generator: For probes and the order of places.
        watch: Of the time.
    """

    def __init__(
        self, observation: Observation, start: Tensor, generator: torch.Generator, watch: Watch
    ) -> None:
        self._observation, self._generator, self._watch = observation, generator, watch
        self.ids = start
        self._evidence = self._known_evidence(start)
        self.cost = self._cost(start)
        self.status = FINISHED

    def improve(self, places: Places, sweeps: int) -> None:
        """Rounds over all places: each tries its candidates, and to swap with other places.

        In each round whole sequences change places first, where labels differ.
        """
        for _ in range(sweeps):
            before = self.cost
            self._reorder()
            for place in self._order():
                if self.is_exact() or self._is_over():
                    return
                self._change(place, places.tokens[place[1]])
                self._swap(place, places)
            if not self.cost < before:
                return

    def is_exact(self) -> bool:
        """Whether nothing but rounding is left to explain."""
        return self._misfit(self.ids) < EXACT

    def _misfit(self, ids: Tensor) -> float:
        return float(euclidean_evidence(self._sent).misfit(self._row(ids)))

    def _change(self, place: tuple[int, int], tokens: Tensor) -> None:
        for token in tokens:
            if token == self.ids[place]:
                continue
            trial = self.ids.clone()
            trial[place] = token
            self._take(trial)

    def _swap(self, place: tuple[int, int], places: Places) -> None:
        """With the same place of other sequences, and with other places of the sequence."""
        row, column = place
        others = [(other, column) for other in range(row)]
        for other in others + [(row, other) for other in range(column)]:
            mine, theirs = self.ids[place], self.ids[other]
            fits = places.allow(other[1], mine) and places.allow(column, theirs)
            if mine != theirs and fits:
                trial = self.ids.clone()
                trial[place], trial[other] = theirs, mine
                self._take(trial)

    def _reorder(self) -> None:
        """Which sequence has which label: all orders of a few, else pairs that change places."""
        size = len(self.ids)
        if self._observation.targets_are_inputs or size < 2:
            return
        orders = list(permutations(range(size)))[1:] if size <= FEW else _exchanges(size)
        start = self.ids
        for order in orders:
            if self._is_over():
                return
            self._take((start if size <= FEW else self.ids)[list(order)])

    def _take(self, trial: Tensor) -> None:
        cost = self._cost(trial)
        if cost < self.cost:
            self.ids, self.cost = trial, cost

    def _order(self) -> list[tuple[int, int]]:
        count, length = self.ids.shape
        order = torch.randperm(count * length, generator=self._generator).tolist()
        return [divmod(number, length) for number in order]

    def _is_over(self) -> bool:
        if self._watch.is_over():
            self.status = TIME_BUDGET
        return self.status != FINISHED

    def _cost(self, ids: Tensor) -> float:
        return float(self._evidence.misfit(self._row(ids)))

    def _row(self, ids: Tensor) -> Tensor:
        message = self._observation.message(targets_of(self._observation, ids))
        values = message.values(ids)  # type: ignore[attr-defined]
        return flatten({name: values[name] for name in self._names}).double()

    def _known_evidence(self, start: Tensor) -> Evidence:
        observation = self._observation
        message = observation.plain_message(targets_of(observation, start))
        self._names = list(message.parameters)  # type: ignore[attr-defined]
        self._sent = flatten({name: observation.sent[name] for name in self._names}).double()
        if observation.defense is None and observation.mechanism is None:
            return euclidean_evidence(self._sent)
        targets = targets_of(observation, start)
        channel = plan_channel(observation, targets, start, 8, self._generator)
        evidence = channel.evidence(1.0, LOOSENESS, start.numel())
        return Evidence(*(None if part is None else part.double() for part in evidence))  # type: ignore[arg-type]


def _exchanges(size: int) -> list[tuple[int, ...]]:
    """All orders in which two are exchanged."""
    orders = []
    for first, second in combinations(range(size), 2):
        order = list(range(size))
        order[first], order[second] = second, first
        orders.append(tuple(order))
    return orders
