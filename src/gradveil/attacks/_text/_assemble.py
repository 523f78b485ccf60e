"""Puts tokens that are known by place together to sequences, by the spans of later layers."""

import torch
from torch import Tensor

from gradveil.messages import TokenGradient

from .._search import Watch
from ._linear_inputs import linear_inputs
from ._places import Places
from ._spans import Span

BEAM, STARTS, SWEEPS = 4, 8, 3
"""Prefixes and starts for each sequence of the batch, and rounds of changes of single tokens."""

ROUNDING = 1e-7
"""Of distances to a span."""

FOUND = 1.0
"""Sequences count as found if their costs are that near to the best one's."""


class Assembler:
    """Finds sequences whose inputs of later layers lie in the spans that were sent.

    Of a causal model a prefix determines its own inputs, so sequences grow token by token, and the
    best prefixes stay (a beam). Of others, sequences that are drawn from the candidates are
    improved one token at a time. Places that the first layer did not decide get their likeliest
    token, and are not looked at.

    Args:
        message: Of the model.
        spans: By the number of the linear input; the first layer's is not needed.
        places: The possible tokens of each place.
        size: How many sequences are looked for.
        generator: For starts.
        watch: Of the time.
    """

    def __init__(
        self,
        message: TokenGradient,
        spans: dict[int, Span],
        places: Places,
        size: int,
        generator: torch.Generator,
        watch: Watch,
    ) -> None:
        self._message, self._spans, self._places = message, spans, places
        self._tokens = [
            tokens if decided else tokens[:1]
            for tokens, decided in zip(places.tokens, places.decided, strict=True)
        ]
        self._size, self._generator, self._watch = size, generator, watch

    def sequences(self) -> Tensor:
        """The best ones, shape (batch, length)."""
        found = self._by_prefix() if self._is_causal() else self._by_changes()
        found = found[self._costs(found).argsort()][: self._size]
        return found[torch.arange(self._size) % len(found)]

    def _costs(self, ids: Tensor, end: int | None = None) -> Tensor:
        """The mean log-distance to the spans over decided places, for each sequence.

        Logarithms, because layers differ in how far a wrong token elsewhere moves their inputs.
        """
        inputs = linear_inputs(self._message, ids)
        parts = [
            (span.distances(inputs[k].inputs) + ROUNDING).log() for k, span in self._spans.items()
        ]
        counted = torch.tensor(self._places.decided, dtype=torch.float64)
        if end is not None:
            counted[end:] = 0.0
        return (torch.stack(parts).mean(0) * counted).sum(1) / counted.sum().clamp(min=1)

    def _is_causal(self) -> bool:
        one = torch.stack([tokens[0] for tokens in self._tokens]).unsqueeze(0)
        other = one.clone()
        other[0, -1] = (one[0, -1] + 1) % 2
        pair = [linear_inputs(self._message, ids) for ids in (one, other)]
        return all(torch.equal(a.inputs[:, 0], b.inputs[:, 0]) for a, b in zip(*pair, strict=True))

    def _by_prefix(self) -> Tensor:
        length, prefixes = len(self._tokens), self._tokens[0].unsqueeze(1)
        for place in range(1, length):
            more = self._tokens[place]
            old = prefixes.repeat_interleave(len(more), 0)
            prefixes = torch.cat([old, more.repeat(len(prefixes)).unsqueeze(1)], 1)
            padded = torch.nn.functional.pad(prefixes, (0, length - place - 1))
            best = self._costs(padded, place + 1).argsort()
            prefixes = prefixes[best[: BEAM * self._size]]
        return prefixes

    def _by_changes(self) -> Tensor:
        found: list[Tensor] = []
        for number in range(STARTS * self._size):
            start = self._shaken(found) if number % 2 and len(found) > 1 else self._start(found)
            ids = self._improved(start)
            if not any(torch.equal(ids, other) for other in found):
                found.append(ids)
            costs = self._costs(torch.stack(found))
            good = int((costs < costs.min() + FOUND).sum())
            if good >= self._size or self._watch.is_over():
                break
        return torch.stack(found)

    def _start(self, found: list[Tensor]) -> Tensor:
        """In each place one of the tokens that the sequences so far use least."""
        ids = []
        for place, tokens in enumerate(self._tokens):
            used = torch.tensor([sum(int(f[place] == t) for f in found) for t in tokens])
            left = tokens[used == used.min()]
            ids.append(left[torch.randint(len(left), (), generator=self._generator)])
        return torch.stack(ids)

    def _shaken(self, found: list[Tensor]) -> Tensor:
        """The best sequence that is not good enough, with two places drawn again."""
        costs = self._costs(torch.stack(found))
        bad = torch.where(costs < costs.min() + FOUND, torch.inf, costs)
        ids = found[int(bad.argmin())].clone()
        for place in torch.randperm(len(ids), generator=self._generator)[:2].tolist():
            tokens = self._tokens[place]
            ids[place] = tokens[torch.randint(len(tokens), (), generator=self._generator)]
        return ids

    def _improved(self, ids: Tensor) -> Tensor:
        best = torch.inf
        for _ in range(SWEEPS):
            before = best
            for place, tokens in enumerate(self._tokens):
                trials = ids.repeat(len(tokens), 1)
                trials[:, place] = tokens
                costs = self._costs(trials)
                ids, best = trials[costs.argmin()], float(costs.min())
            if best >= before or self._watch.is_over():
                break
        return ids
