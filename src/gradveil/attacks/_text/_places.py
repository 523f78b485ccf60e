"""The tokens that each place of a sequence can hold."""

from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._extras import require
from gradveil.messages import TokenGradient

from .._observation import Observation
from ._linear_inputs import first_inputs, linear_inputs
from ._spans import Span
from ._token_evidence import blank_ids, likely_tokens, noise_of, row_scores, table_of

CLOSE = 0.01
"""A distance to a span up to which a vector counts as inside."""


class Places(NamedTuple):
    """The tokens of each place, the likeliest first."""

    tokens: list[Tensor]
    decided: list[bool]
    """Whether the place's tokens lie in the first layer's span; the others are the likeliest."""

    def allow(self, place: int, token: Tensor) -> bool:
        """Whether a place can hold a token, as far as that is decided."""
        return not self.decided[place] or bool((self.tokens[place] == token).any())

    likely: Tensor
    """The tokens that stand out of all."""
    costs: Tensor
    """How badly each of these fits into each place."""

    def start(self, size: int) -> Tensor:
        """One token of each place for each of so many sequences.

        Where nothing is decided, each likely token is used once, in the place that suits them all
        best; what is left open gets the likeliest tokens of its place.
        """
        rows = torch.arange(size)
        ids = torch.stack([tokens[rows % len(tokens)] for tokens in self.tokens], 1)
        if any(self.decided):
            return ids
        require("matching tokens", "gradveil[audit]", "scipy")
        from scipy.optimize import linear_sum_assignment  # only attackers need it

        costs = self.costs.repeat(1, size).cpu().numpy()  # a column for each place of each sequence
        tokens, slots = (torch.as_tensor(part) for part in linear_sum_assignment(costs))
        ids.view(-1)[slots] = self.likely[tokens]
        return ids


def find_places(
    observation: Observation, message: TokenGradient, first: Span | None, width: int
) -> Places:
    """By the first layer's span, and by the rows of the table and of the last layer.

    Args:
        observation: What was sent.
        message: Of the model.
        first: The span of the first layer's inputs, where that says something.
        width: How many tokens to keep in a place that the span does not decide.
    """
    name, count = table_of(observation)
    length, size = observation.input_shape[0], observation.batch_size
    distances = torch.ones(count, length, dtype=torch.float64)
    if first is not None:
        distances = first.distances(first_inputs(message, length, count))
    inside = distances < CLOSE
    scores = _scores(observation, message, name, count)
    likely = torch.zeros(count, dtype=torch.bool)
    likely[likely_tokens(scores, size * length)] = True
    ranks = scores.argsort().argsort() / count
    explained = inside.any(1)
    cost = distances + 2.0 * ~likely.unsqueeze(1) - 1e-3 * ranks.unsqueeze(1)
    open_cost = cost + 1.0 * explained.unsqueeze(1)  # elsewhere already
    open_count = max(width, 2 * size)
    if bool(inside.any()):  # few places are open, as the last of a language model: it has no input
        open_count = max(open_count, int(likely.sum()))
    tokens, decided = [], []
    for place in range(length):
        found = int(inside[:, place].sum())
        order = (distances if found else open_cost)[:, place].argsort()
        tokens.append(order[: min(found, 4 * size) if found else open_count])
        decided.append(found > 0)
    found_likely = likely.nonzero().flatten()
    return Places(tokens, decided, found_likely, distances[found_likely])


def _scores(
    observation: Observation, message: TokenGradient, table: str | None, count: int
) -> Tensor:
    """The clearer one of what the table and the last layer say of each token."""
    names = {name for name in (table, _last_layer(observation, message, count)) if name}
    noise = noise_of(observation)
    scores = [
        row_scores(observation.sent[name], None if noise is None else noise[name]) for name in names
    ]
    return torch.stack(scores).amax(0) if scores else torch.zeros(count, dtype=torch.float64)


def _last_layer(observation: Observation, message: TokenGradient, count: int) -> str | None:
    """The linear map to scores of tokens, whose gradient has large rows for the targets."""
    found = linear_inputs(message, blank_ids(observation))
    name, transposed = found[-1].weights[-1] if found else ("", True)
    sent = observation.sent.get(name)
    return name if sent is not None and not transposed and len(sent) == count else None
