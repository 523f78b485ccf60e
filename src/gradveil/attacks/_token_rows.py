"""The bag of tokens, read off the gradient of the embedding table."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradveil._checks import WrongValue
from gradveil._random import generator_or_fresh
from gradveil.messages import TokenGradient, find_lookups

from ._attack import Attack, Reconstruction
from ._labels import recover_labels
from ._observation import Observation, check_observation

SPREAD = 1.4826
"""From the median absolute deviation to the standard deviation of a normal distribution."""


class Text:
    """What an attack can tell of an observation of tokens before it looks for any.

    Labels of classified sequences are read off the last layer if they are not granted.
    """

    def __init__(self, observation: Observation, generator: torch.Generator) -> None:
        check_observation(observation, tokens=True)
        if not observation.targets_are_inputs and observation.task == "classification":
            observation = replace(observation, labels=recover_labels(observation, generator))
        self.observation, self.sent = observation, observation.sent
        size = (observation.batch_size, *observation.input_shape)
        device = next(iter(self.sent.values())).device
        self.blank = torch.zeros(size, dtype=torch.int64, device=device)
        """A batch of the token 0."""
        message = observation.plain_message(self.targets(self.blank))
        assert isinstance(message, TokenGradient)
        self.message, parameters = message, message.parameters
        found = find_lookups(message.loss.at(parameters), self.blank)
        if len(found) != 1 or len(found[0].places) != self.blank.numel():
            expected = "look up all tokens in one table"
            where, advice = "observation.model", "Attack a model of text."
            raise WrongValue(where, expected, f"{len(found)} lookups", advice)
        names = [name for name, p in parameters.items() if p is found[0].table]
        self.table = names[0] if names else None
        """The table's name; `None` where it is not trained."""
        self.tokens = len(found[0].table)
        std = getattr(observation.mechanism, "std", None)
        known = std if isinstance(std, Mapping) else {}
        self.noise = {name: torch.as_tensor(level) for name, level in known.items()}
        """The standard deviations, where they are known."""

    def targets(self, ids: Tensor) -> Tensor:
        """The ids themselves for a language model, else the labels that are granted."""
        if self.observation.targets_are_inputs:
            return ids
        if self.observation.labels is None:
            expected = "tell targets that are neither the tokens nor one label for each sequence"
            raise WrongValue("observation", expected, "none", "Use ThreatModel(labels='known').")
        return self.observation.labels

    def scores(self, name: str) -> Tensor:
        """`row_scores` of what was sent of a parameter."""
        return row_scores(self.sent[name], self.noise.get(name))


def row_scores(gradient: Tensor, std: Tensor | None) -> Tensor:
    """How far each row of the table's gradient is from one of an unused token, in deviations.

    The median row is taken off first: it is 0, unless the table is also the last layer, which
    reaches every row. With known noise, the mean of (y_vj / σ_vj)² over a row of D entries then has
    the mean 1 and the standard deviation √(2/D) if the token was not used. Otherwise the median
    over rows and the median absolute deviation stand for these: most tokens are not used.
    """
    rows = gradient.double()
    rows = rows - rows.median(0).values
    if std is not None and bool((std > 0).all()):
        mean = (rows / std.double()).square().mean(1)
        return (mean - 1) * math.sqrt(rows.shape[1] / 2)
    mean = rows.square().mean(1)
    middle = mean.median()
    deviation = SPREAD * (mean - middle).abs().median()
    least = 1e-12 * mean.max().clamp(min=1e-300)
    return (mean - middle) / torch.maximum(deviation, least)


def likely_tokens(scores: Tensor, count: int) -> Tensor:
    """At most `count` tokens that stand out of all, the clearest first; at least one.

    Of V normal numbers the largest is about √(2 log V); a row counts if it is beyond that by 1.
    """
    standing_out = int((scores > math.sqrt(2 * math.log(len(scores))) + 1).sum())
    return scores.argsort(descending=True)[: max(1, min(count, standing_out))]


@dataclass(frozen=True)
class TokenRows(Attack):
    """Which tokens were used: the rows of the table's gradient that are not 0.

    Row v is Σ_p ∂L/∂e_p over the places p with token v: 0 for all others. So the set of tokens is
    exact without a defense; under noise, rows are tested by their norms (`row_scores`), with its
    levels if they are known. Order and numbers do not show: the tokens found are put into the
    batch one after the other, the clearest first, and start again where there are too few. The
    loss is the share of places that repeat a token for want of others.

    Reference: Melis et al., "Exploiting Unintended Feature Leakage in Collaborative Learning", IEEE
    S&P 2019, section 4.1; Gupta et al., "Recovering Private Text in Federated Learning of Language
    Models", NeurIPS 2022.

    >>> sorted(TokenRows()(seen_text).inputs[0].tolist())
    [1, 3, 4]
    """

    knows_defense = True
    needs_defense = False

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack; random are only the inputs at which labels are read off, if not granted."""
        text = Text(observation, generator_or_fresh(generator))
        if text.table is None:
            expected, found = "train its table of tokens", "that its gradient was not sent"
            raise WrongValue("observation.model", expected, found, "Use `SpanCheck`.")
        tokens, blank = likely_tokens(text.scores(text.table), text.blank.numel()), text.blank
        places = torch.arange(blank.numel(), device=blank.device) % len(tokens)
        ids, missing = tokens[places].reshape(blank.shape), 1 - len(tokens) / blank.numel()
        return Reconstruction(ids, text.targets(ids), missing)
