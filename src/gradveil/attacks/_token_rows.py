"""The bag of tokens, read off the gradient of the embedding table."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradveil._random import generator_or_fresh
from gradveil._typing import Tensors
from gradveil.messages import TokenGradient, find_lookups

from ._attack import Attack, Reconstruction
from ._labels import recover_labels
from ._observation import Observation, check_observation

SPREAD = 1.4826
"""From the median absolute deviation to the standard deviation of a normal distribution."""


def token_message(observation: Observation, ids: Tensor) -> TokenGradient:
    """The message of these ids, without a defense."""
    targets = targets_of(observation, ids)
    message = observation.plain_message(targets)
    assert isinstance(message, TokenGradient)
    return message


def targets_of(observation: Observation, ids: Tensor) -> Tensor:
    """The targets: the ids themselves for a language model, else the labels that are granted."""
    if observation.targets_are_inputs:
        return ids
    if observation.labels is None:
        raise ValueError(
            "Parameter `observation` should tell the targets where they are not the tokens, and not"
            " one label for each sequence. Found none. Use ThreatModel(labels='known')."
        )
    return observation.labels


def with_labels(observation: Observation, generator: torch.Generator) -> Observation:
    """The same with the labels of classified sequences, read off the last layer if not granted."""
    if observation.targets_are_inputs or observation.task != "classification":
        return observation
    return replace(observation, labels=recover_labels(observation, generator))


def blank_ids(observation: Observation) -> Tensor:
    """A batch of the token 0."""
    device = next(iter(observation.sent.values())).device
    size = (observation.batch_size, *observation.input_shape)
    return torch.zeros(size, dtype=torch.int64, device=device)


def table_of(observation: Observation) -> tuple[str | None, int]:
    """The name of the table, `None` where it is not trained, and its number of rows."""
    blank = blank_ids(observation)
    message = token_message(observation, blank)
    parameters = message.parameters
    found = find_lookups(message.loss.at(parameters), blank)
    if len(found) != 1 or len(found[0].places) != blank.numel():
        raise ValueError(
            "Parameter `observation.model` should look up all tokens in one table. Found"
            f" {len(found)} lookups. Attack a model of text."
        )
    names = [name for name, p in parameters.items() if p is found[0].table]
    return (names[0] if names else None), len(found[0].table)


def noise_of(observation: Observation) -> Tensors | None:
    """The standard deviations that are known, if any."""
    std = getattr(observation.mechanism, "std", None)
    return {n: torch.as_tensor(s) for n, s in std.items()} if isinstance(std, Mapping) else None


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
        scale: float = (rows.shape[1] / 2) ** 0.5
        return (mean - 1) * scale
    mean = rows.square().mean(1)
    middle = mean.median()
    deviation = SPREAD * (mean - middle).abs().median()
    least = 1e-12 * mean.max().clamp(min=1e-300)
    return (mean - middle) / torch.maximum(deviation, least)


def likely_tokens(scores: Tensor, count: int) -> Tensor:
    """At most `count` tokens that stand out of all, the clearest first; at least one.

    Of V normal numbers the largest is about √(2 log V); a row counts if it is beyond that by 1.
    """
    limit = (2 * torch.log(torch.tensor(float(len(scores))))) ** 0.5 + 1
    order = scores.argsort(descending=True)
    standing_out = int((scores > limit).sum())
    return order[: max(1, min(count, standing_out))]


@dataclass(frozen=True)
class TokenRows(Attack):
    """Which tokens were used: the rows of the table's gradient that are not 0.

    Row v is Σ_p ∂L/∂e_p over the places p with token v: 0 for all others. So the set of tokens is
    exact without a defense; under noise, rows are tested by their norms (`row_scores`), with its
    levels if they are known. Order and numbers do not show: the tokens found are put into the
    batch one after the other, the clearest first, and start again where there are too few.

    Where the table is also the last layer (GPT-2), rows of tokens that were not used are those
    that nearly all rows are like. The loss is the share of places that repeat a token for want of
    others.

    Reference: Melis et al., "Exploiting Unintended Feature Leakage in Collaborative Learning", IEEE
    S&P 2019, section 4.1; Gupta et al., "Recovering Private Text in Federated Learning of Language
    Models", NeurIPS 2022.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import NoDefense
    >>> from gradveil.attacks import observe
    >>> from gradveil.models import TokenTransformer
    >>> _ = torch.manual_seed(0)
    >>> model = TokenTransformer(tokens=12, length=4, width=16, depth=1).eval()
    >>> private = torch.tensor([[3, 1, 4]]), torch.tensor([1])
    >>> seen = observe(model, cross_entropy, private, NoDefense(), num_classes=2)
    >>> sorted(TokenRows()(seen).inputs[0].tolist())
    [1, 3, 4]
    """

    knows_defense = True
    needs_defense = False

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack; random are only the inputs at which labels are read off, if not granted."""
        check_observation(observation, tokens=True)
        observation = with_labels(observation, generator_or_fresh(generator))
        blank = blank_ids(observation)
        found = likely_tokens(token_scores(observation), blank.numel())
        places = torch.arange(blank.numel(), device=blank.device) % len(found)
        ids = found[places].reshape(blank.shape)
        missing = 1 - len(found) / blank.numel()
        return Reconstruction(ids, targets_of(observation, ids), missing)


def token_scores(observation: Observation) -> Tensor:
    """`row_scores` of the table; an error where it is not trained."""
    name, _ = table_of(observation)
    if name is None:
        raise ValueError(
            "Parameter `observation.model` should train its table of tokens. Found that its"
            " gradient was not sent. Use `SpanCheck`."
        )
    noise = noise_of(observation)
    return row_scores(observation.sent[name], None if noise is None else noise[name])
