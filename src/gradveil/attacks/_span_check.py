"""Tokens by the spans of linear layers' gradients, put together and searched by likelihood."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradveil._random import generator_or_fresh
from gradveil._tensors import Tensors, flatten
from gradveil.messages import TokenGradient

from ._attack import FINISHED, TIME_BUDGET, Reconstruction, Search
from ._descent import Watch
from ._matching import Evidence, euclidean_evidence, final_evidence
from ._observation import Observation
from ._token_rows import Text, likely_tokens


class LinearInput(NamedTuple):
    """One input of linear maps, such as the queries, keys and values of a layer."""

    weights: list[tuple[str, bool]]
    """The names of their weights, and whether these are (in, out) instead of (out, in)."""
    inputs: Tensor
    """Shape (sequences, length, features)."""


class _Watch(TorchFunctionMode):
    """Notes the inputs of `F.linear(x, W)` and of `addmm(b, x, W)`, as GPT-2 is written with."""

    def __init__(self, parameters: Tensors) -> None:
        super().__init__()
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self.found: list[tuple[Tensor, str, bool]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        place = {F.linear: 0, torch.addmm: 1}.get(func)
        if place is not None and len(args) > place + 1 and id(args[place + 1]) in self._names:
            name = self._names[id(args[place + 1])]
            self.found.append((args[place], name, func is torch.addmm))
        return func(*args, **(kwargs or {}))


def linear_inputs(message: TokenGradient, ids: Tensor) -> list[LinearInput]:
    """The inputs of linear maps in the order of use, those with one row for each token."""
    parameters = message.parameters
    with torch.no_grad(), _Watch(parameters) as watch:
        message.loss.outputs(parameters, ids)
    found: list[LinearInput] = []
    for _, group in groupby(watch.found, lambda use: id(use[0])):
        (inputs, *_), *_ = uses = list(group)
        if inputs.numel() == ids.numel() * inputs.shape[-1]:
            weights = [(name, transposed) for _, name, transposed in uses]
            found.append(LinearInput(weights, inputs.reshape(*ids.shape, -1)))
    return found


def first_inputs(message: TokenGradient, length: int, tokens: int) -> Tensor:
    """What token v in place p makes of the first linear map's input: (tokens, length, features).

    Sequences of one token repeated give it for all places at once.
    """
    chunk = max(1, 2**22 // (length * tokens))  # numbers that the model makes at once
    parts = [
        linear_inputs(message, part.unsqueeze(1).expand(-1, length).contiguous())[0].inputs
        for part in torch.arange(tokens).split(chunk)
    ]
    return torch.cat(parts)


def distances(span: Tensor, vectors: Tensor) -> Tensor:
    """The share of each vector, by its last axis, that is outside of the span: 0 to 1."""
    vectors = vectors.double()
    sizes = vectors.square().sum(-1).clamp(min=torch.finfo(torch.float64).tiny)
    inside = (vectors @ span.T).square().sum(-1)
    return (1 - inside / sizes).clamp(min=0).sqrt()


def span_of(inputs: LinearInput, sent: Tensors, rows: int, noise: Tensors) -> Tensor:
    """The span of what entered, from the gradients of all maps that read it: orthonormal rows.

    ∂L/∂W = Σ_n δ_n x_nᵀ has all inputs x_n in its row space, if the δ_n are independent; that takes
    fewer inputs than the layer has inputs and outputs. With noise of standard deviation σ on an
    m × n matrix, singular values up to about σ (√m + √n) are noise; directions below that are left
    out. There were `rows` inputs, which is the largest rank.
    """
    gradients, power = [], 0.0
    for name, transposed in inputs.weights:
        gradient = sent[name].double()
        gradients.append(gradient.T if transposed else gradient)
        level = noise.get(name, gradient.new_zeros(()))
        power += float(level.double().square().mean()) * gradient.numel()
    matrix = torch.cat(gradients)
    edge = (power / matrix.numel()) ** 0.5 * sum(size**0.5 for size in matrix.shape)
    _, sizes, vectors = torch.linalg.svd(matrix, full_matrices=False)
    rank = int((sizes > max(edge, 3e-6 * float(sizes[0]))).sum())
    span: Tensor = vectors[: min(rank, rows)]
    return span


class Places(NamedTuple):
    """The tokens of each place, the likeliest first."""

    tokens: list[Tensor]
    decided: list[bool]
    """Whether the place's tokens lie in the first layer's span; the others are the likeliest."""

    def allow(self, place: int, token: Tensor) -> bool:
        """Whether a place can hold a token, as far as that is decided."""
        return not self.decided[place] or bool((self.tokens[place] == token).any())


def find_places(text: Text, first: Tensor | None, width: int) -> Places:
    """By the first layer's span, and by the rows of the table and of the last layer.

    A place that the span does not decide keeps `width` tokens.
    """
    (size, length), count = text.blank.shape, text.tokens
    outside = torch.ones(count, length, dtype=torch.float64)
    if first is not None:
        outside = distances(first, first_inputs(text.message, length, count))
    inside = outside < 0.01
    # the clearer one of what the table and the map to scores of tokens say of each token
    found = linear_inputs(text.message, text.blank)
    last, transposed = found[-1].weights[-1] if found else ("", True)
    names = {text.table} if text.table else set()
    if not transposed and last in text.sent and len(text.sent[last]) == count:
        names.add(last)
    scores = torch.zeros(count, dtype=torch.float64)
    if names:
        scores = torch.stack([text.scores(name) for name in names]).amax(0)
    likely = likely_tokens(scores, size * length).sort().values
    cost = outside - 1e-3 * (scores.argsort().argsort() / count).unsqueeze(1)
    cost += 1.0 * inside.any(1, keepdim=True)  # they are elsewhere already
    cost += 2.0 * ~torch.isin(torch.arange(count), likely).unsqueeze(1)
    open_count = max(width, 2 * size)
    if bool(inside.any()):  # few places are open, as the last of a language model: it has no input
        open_count = max(open_count, len(likely))
    tokens, decided = [], []
    for place in range(length):
        fitting = int(inside[:, place].sum())
        order = (outside if fitting else cost)[:, place].argsort()
        tokens.append(order[: min(fitting, 4 * size) if fitting else open_count])
        decided.append(fitting > 0)
    return Places(tokens, decided)


def assemble(
    text: Text, spans: dict[int, Tensor], places: Places, generator: torch.Generator, watch: Watch
) -> Tensor:
    """Sequences whose inputs of later layers lie in the spans that were sent: (size, length).

    Sequences that are drawn from the candidates are improved one token at a time, and the best ones
    of at most eight starts for each are taken; they count as found if their costs are within 1 of
    the best one's. Places that the first layer did not decide get their likeliest token, and are
    not looked at. Spans are by the number of the linear input.
    """
    pairs = zip(places.tokens, places.decided, strict=True)
    choices = [tokens if known else tokens[:1] for tokens, known in pairs]
    counted = torch.tensor(places.decided, dtype=torch.float64)

    def costs_of(ids: Tensor) -> Tensor:
        """The mean log-distance to the spans over decided places, for each sequence.

        Logarithms, because layers differ in how far a wrong token elsewhere moves their inputs.
        """
        inputs = linear_inputs(text.message, ids)
        parts = [(distances(span, inputs[k].inputs) + 1e-7).log() for k, span in spans.items()]
        return torch.stack(parts).mean(0) @ counted / counted.sum()

    def improved(ids: Tensor) -> Tensor:
        """Up to three rounds over all places, as long as they help."""
        best = torch.inf
        for _ in range(3):
            before = best
            for place, tokens in enumerate(choices):
                trials = ids.repeat(len(tokens), 1)
                trials[:, place] = tokens
                costs = costs_of(trials)
                ids, best = trials[costs.argmin()], float(costs.min())
            if best >= before or watch.is_over():
                break
        return ids

    def unused() -> Tensor:
        """In each place one of the tokens that the sequences found so far use least."""
        ids = []
        for place, tokens in enumerate(choices):
            used = torch.tensor([sum(int(other[place] == t) for other in found) for t in tokens])
            least = tokens[used == used.min()]
            ids.append(least[torch.randint(len(least), (), generator=generator)])
        return torch.stack(ids)

    found, size = list[Tensor](), len(text.blank)
    for _ in range(8 * size):
        ids = improved(unused())
        if not any(torch.equal(ids, other) for other in found):
            found.append(ids)
        costs = costs_of(torch.stack(found))
        if int((costs < costs.min() + 1).sum()) >= size or watch.is_over():
            break
    best = torch.stack(found)[costs.argsort()][:size]
    return best[torch.arange(size) % len(best)]


class TokenSearch:
    """Minimises -log p(sent | g(ids)) over ids; a plan that is not known is made at the start."""

    def __init__(self, text: Text, start: Tensor, generator: torch.Generator, watch: Watch) -> None:
        self._text, self._generator, self._watch = text, generator, watch
        observation, self._names = text.observation, list(text.message.parameters)
        sent = flatten({name: text.sent[name] for name in self._names}).double()
        self._exact = self._evidence = euclidean_evidence(sent)
        if observation.defense is not None or observation.mechanism is not None:
            parts = final_evidence(observation, text.targets(start), start, generator)
            self._evidence = Evidence(*(part.double() for part in parts))  # type: ignore[union-attr]
        self.ids, self.status = start, FINISHED
        self.cost, self.exact = self._seen(start)

    def improve(self, places: Places, sweeps: int) -> None:
        """Rounds of trials, each taken where it costs less, until one round takes none."""
        for _ in range(0 if self.exact else sweeps):
            before = self.cost
            for trial in self._trials(places):
                if self._watch.is_over():
                    self.status = TIME_BUDGET
                    return
                cost, exact = self._seen(trial)
                if cost < self.cost:
                    self.ids, self.cost = trial, cost
                    if exact:
                        return
            if not self.cost < before:
                return

    def _trials(self, places: Places) -> Iterator[Tensor]:
        """The ids of the moment with one change.

        Pairs of sequences change places, where labels differ; each place tries its candidates, and
        to swap with other sequences' and with others of its own.
        """
        size, length = self.ids.shape
        labelled = not self._text.observation.targets_are_inputs
        for pair in combinations(range(size), 2) if labelled else ():
            order = torch.arange(size)
            order[list(pair)] = order[list(reversed(pair))]
            yield self.ids[order]
        for number in torch.randperm(size * length, generator=self._generator).tolist():
            row, column = place = divmod(number, length)
            for token in places.tokens[column]:
                if token != self.ids[place]:
                    trial = self.ids.clone()
                    trial[place] = token
                    yield trial
            others = [(other, column) for other in range(row)]
            for other in others + [(row, other) for other in range(column)]:
                mine, theirs = self.ids[place], self.ids[other]
                fits = places.allow(other[1], mine) and places.allow(column, theirs)
                if mine != theirs and fits:
                    trial = self.ids.clone()
                    trial[place], trial[other] = theirs, mine
                    yield trial

    def _seen(self, ids: Tensor) -> tuple[float, bool]:
        """The cost, and whether nothing but rounding is left to explain."""
        message = self._text.observation.message(self._text.targets(ids))
        values = message.values(ids)  # type: ignore[attr-defined]
        row = flatten({name: values[name] for name in self._names}).double()
        return float(self._evidence.misfit(row)), float(self._exact.misfit(row)) < 1e-6


@dataclass(frozen=True)
class SpanCheck(Search):
    """Tokens whose inputs of the first attention layer lie in the span of its gradient.

    For queries, keys and values u_n = W x_n, the gradient ∂L/∂W = Σ_n δ_n x_nᵀ has its rows in the
    span of the x_n; with fewer tokens in the batch than features, and independent δ_n, the span is
    exactly theirs. The input x of the first layer depends on one token v and its place p alone, so
    every (v, p) is checked by its distance to the span. Later layers' inputs depend on whole
    sequences, and put the tokens together (`assemble`). In the end single tokens are changed where
    what was sent is then more likely under the known mechanism (`TokenSearch`).

    Under noise, directions of the gradient that noise could have made are left out of the spans,
    the table's rows (`TokenRows`) choose the tokens, and the last search does the rest. A batch
    with as many tokens as features or more leaves only these.

    Reference: Petrov et al., "DAGER: Exact Gradient Inversion for Large Language Models", NeurIPS
    2024, arXiv:2405.15586. The use of all three maps, of every later layer and of the likelihood
    is ours.

    Args:
        width: How many tokens are tried in each place where spans do not decide.
        sweeps: Of the last search, over all places.

    >>> SpanCheck(time_budget=5)(seen_text, torch.Generator().manual_seed(0)).inputs
    tensor([[3, 1, 4]])
    """

    knows_defense = True
    needs_defense = False

    width: int = 8
    sweeps: int = 3

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        text = Text(observation, generator)
        spans = _spans(text)
        places = find_places(text, spans.get(0), self.width)
        later = {k: span for k, span in spans.items() if k > 0 and len(span) >= len(spans[0])}
        rows = torch.arange(len(text.blank))  # the likeliest tokens of each place take turns
        start = torch.stack([tokens[rows % len(tokens)] for tokens in places.tokens], 1)
        if later and len(start) > 1 and any(places.decided):
            start = assemble(text, later, places, generator, watch)
        search = TokenSearch(text, start, generator, watch)
        if self.progress is not None:
            self.progress(1, 2, search.cost)
        search.improve(places, self.sweeps)
        if self.progress is not None:
            self.progress(2, 2, search.cost)
        return Reconstruction(search.ids, text.targets(search.ids), search.cost, search.status)


def _spans(text: Text) -> dict[int, Tensor]:
    """Those that leave something out, by the number of the linear input; none without the first."""
    found = {}
    for number, each in enumerate(linear_inputs(text.message, text.blank)):
        if all(name in text.sent and name != text.table for name, _ in each.weights):
            span = span_of(each, text.sent, text.blank.numel(), text.noise)
            if 0 < len(span) < span.shape[1]:  # there are vectors outside of it
                found[number] = span
    return found if 0 in found else {}
